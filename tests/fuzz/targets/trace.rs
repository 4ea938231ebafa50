//! Traces of every format: whatever is read is read to its end, or is an error; nothing panics, and memory is bounded.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::trace::format::{FORMATS, ReadOptions, convert, detect};
use streamgauge_fuzz::trace::info::info;
use streamgauge_fuzz::trace::input::{InputSource, InputStream};

fn source(data: &[u8]) -> Option<InputSource> {
    InputStream::new("fuzz", Box::new(Cursor::new(data.to_vec()))).ok().map(InputSource::Stream)
}

fuzz_target!(|data: &[u8]| {
    // Rows of most formats have these columns, so that a mutated row is still read by them.
    let columns = "time=timestamp,input=input_length,session=session_id".parse().ok();
    let options = ReadOptions { columns, ..ReadOptions::default() };
    // Each format reads what is taken for any of them.
    for format in FORMATS {
        let Some((read, source)) = format.read.zip(source(data)) else { continue };
        if let Ok(mut trace) = read(source, &options) {
            info(&mut trace, Some(64)).ok();
        }
    }
    // A detected trace is written in every format.
    for target in FORMATS.iter().filter(|format| format.write.is_some()) {
        let Some(source) = source(data) else { return };
        let Some(read) = detect(&source).ok().and_then(|format| format.read) else { return };
        if let Ok(mut trace) = read(source, &options) {
            convert(&mut trace, target, Box::new(std::io::sink())).ok();
        }
    }
});
