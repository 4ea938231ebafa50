//! `Content-Encoding` undone. The first byte selects the coding, and whether the rest is text to be compressed or a
//! server's bytes.
//!
//! Text that was compressed and flushed is seen at once. Any split of any bytes decodes alike, to the output of the
//! coding's own one-shot reader, in bounded memory. Of brotli only the bound is known to hold for rubbish.

#![no_main]

use std::io::{Read, Write};

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::measure::framing::coding::{DecodeError, Decoder};
use streamgauge_fuzz::measure::work_budget::WorkBudget;
use streamgauge_fuzz::memory;
use streamgauge_fuzz::split::ways;

/// The largest window of the codings is brotli's, 16 MiB; zstd allocates its own in C, out of sight.
const MAX_HELD_BYTES: usize = 16 << 20 | 4 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let encoding = ["gzip", "deflate", "zstd", "br", "identity", "deflate"][usize::from(choice % 6)];
    if choice < 128 {
        memory::within(MAX_HELD_BYTES, || hostile(encoding, bytes));
    } else if encoding != "br" {
        let raw = choice % 6 == 5;
        honest(encoding, raw, bytes);
    }
});

/// Bytes from anybody.
fn hostile(encoding: &str, bytes: &[u8]) {
    let [whole, singly, scattered] = ways(bytes).map(|pieces| {
        let (mut decoder, mut text, mut budget) = (decoder(encoding), Vec::new(), WorkBudget::default());
        let read = pieces.iter().try_for_each(|piece| {
            budget.receive(piece.len());
            decoder.push(piece, &mut budget, |plain, _| {
                text.extend_from_slice(plain);
                true
            })
        });
        // How the bytes are cut decides where the budget ends.
        (
            read.or_else(|lost| if lost == DecodeError::OutOfBudget { Ok(()) } else { Err(lost) }),
            budget.is_exhausted(),
            text,
        )
    });
    if encoding == "br" {
        // The library overlooks some rubbish where it has more of it at hand, and makes something of it.
        return;
    }
    for (read, exhausted, text) in [&singly, &scattered] {
        // Bytes before rubbish may be seen or not, but never other ones.
        let (short, long) = if text.len() < whole.2.len() { (text, &whole.2) } else { (&whole.2, text) };
        assert!(long.starts_with(short));
        if !exhausted && !whole.1 {
            assert_eq!(*read, whole.0);
            assert!(read.is_err() || short.len() == long.len());
        }
    }
    let reference = reference(encoding, bytes);
    let (short, long) = if reference.len() < whole.2.len() { (&reference, &whole.2) } else { (&whole.2, &reference) };
    assert!(long.starts_with(short), "the one-shot reader reads something else");
}

/// Everything that the coding's own reader can get out of the bytes.
fn reference(encoding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    let _read = match (encoding, bytes.first()) {
        ("gzip", _) => flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut text).is_ok(),
        ("deflate", Some(first)) if first & 0x8f == 8 => {
            flate2::read::ZlibDecoder::new(bytes).read_to_end(&mut text).is_ok()
        }
        ("deflate", _) => flate2::read::DeflateDecoder::new(bytes).read_to_end(&mut text).is_ok(),
        ("zstd", _) => zstd::stream::read::Decoder::new(bytes).is_ok_and(|mut zstd| {
            zstd.window_log_max(23).expect("a window that zstd knows");
            zstd.read_to_end(&mut text).is_ok()
        }),
        _ => {
            text.extend_from_slice(bytes);
            true
        }
    };
    text
}

/// Text that a server compressed, each piece flushed.
fn honest(encoding: &str, raw: bool, text: &[u8]) {
    let level = flate2::Compression::fast();
    for pieces in ways(text) {
        let mut encoder: Box<dyn Encoder> = match encoding {
            "gzip" => Box::new(flate2::write::GzEncoder::new(Vec::new(), level)),
            "deflate" if raw => Box::new(flate2::write::DeflateEncoder::new(Vec::new(), level)),
            "deflate" => Box::new(flate2::write::ZlibEncoder::new(Vec::new(), level)),
            "zstd" => Box::new(zstd::stream::write::Encoder::new(Vec::new(), 1).expect("an encoder")),
            _ => Box::new(Vec::new()),
        };
        let mut decoder = decoder(encoding);
        // Each piece costs a block; a few show what many would.
        for piece in pieces.iter().take(50) {
            encoder.write_all(piece).expect("memory takes everything");
            encoder.flush().expect("memory takes everything");
            let mut seen = Vec::new();
            let pushed = decoder.push(&encoder.taken(), &mut WorkBudget::default(), |plain, _| {
                seen.extend_from_slice(plain);
                true
            });
            pushed.expect("it was made by an encoder");
            assert_eq!(seen, *piece, "{encoding}");
        }
    }
}

fn decoder(encoding: &str) -> Decoder {
    Decoder::for_encoding(encoding.as_bytes()).expect("a coding that is known")
}

trait Encoder: Write {
    fn taken(&mut self) -> Vec<u8>;
}

macro_rules! encoder {
    ($($kind:ty),*) => { $(impl Encoder for $kind { fn taken(&mut self) -> Vec<u8> { std::mem::take(self.get_mut()) } })* };
}

encoder!(
    flate2::write::GzEncoder<Vec<u8>>,
    flate2::write::DeflateEncoder<Vec<u8>>,
    flate2::write::ZlibEncoder<Vec<u8>>,
    zstd::stream::write::Encoder<'static, Vec<u8>>
);

impl Encoder for Vec<u8> {
    fn taken(&mut self) -> Vec<u8> {
        std::mem::take(self)
    }
}
