//! A trace file: whatever it is, reading ends, and what was read can be written and is read again.

#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::trace_file::gaps;
use streamgauge_fuzz::trace_file::reader::TraceReader;
use streamgauge_fuzz::trace_file::row::TraceEntry;
use streamgauge_fuzz::trace_file::writer::TraceWriter;

fuzz_target!(|file: &[u8]| {
    let path = std::env::temp_dir().join(format!("streamgauge-fuzz-{}", std::process::id()));
    fs::write(&path, file).expect("a temporary file");
    let Ok(mut reader) = TraceReader::open(&path) else { return };
    let rows: Vec<TraceEntry> = reader.by_ref().flatten().collect();
    for packed in rows.iter().filter_map(|row| row.timing.gaps.as_ref()) {
        if let Ok(events) = gaps::unpack(packed) {
            assert_eq!(gaps::unpack(&gaps::pack(&events)), Ok(events));
        }
    }
    let mut writer = TraceWriter::new(Vec::new(), reader.header()).expect("memory");
    rows.iter().for_each(|row| writer.write(row).expect("a row that was read"));
    fs::write(&path, writer.finish().expect("memory")).expect("a temporary file");
    let again: Vec<TraceEntry> = TraceReader::open(&path).expect("a trace").map(|row| row.expect("a row")).collect();
    assert_eq!(again, rows);
});
