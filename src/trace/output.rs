//! Where a trace is written: a file, packed as its name says.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::write::GzEncoder;

use super::format::Output;

const BUFFER: usize = 64 << 10;

/// Makes a file, or makes it anew. What is written is packed as its name ends: `.zst`, `.gz`, or not at all.
pub fn create(path: &Path) -> io::Result<Output> {
    let file = File::create(path)?;
    let ends = |with: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(with));
    let to = if ends("zst") {
        Packed::new(file, Pack::zstd)?
    } else if ends("gz") {
        Packed::new(file, Pack::gzip)?
    } else {
        return Ok(Box::new(BufWriter::with_capacity(BUFFER, file)));
    };
    Ok(Box::new(BufWriter::with_capacity(BUFFER, to)))
}

/// Packs what is written. A flush ends the frame, so that the file is whole; what comes later begins another one.
struct Packed {
    state: State,
    begin: fn(File) -> io::Result<Pack>,
}

enum State {
    Between(File),
    Within(Pack),
    /// A frame could not be ended.
    Broken,
}

enum Pack {
    Zstd(zstd::Encoder<'static, File>),
    Gzip(Box<GzEncoder<File>>),
}

impl Pack {
    fn zstd(file: File) -> io::Result<Self> {
        let mut encoder = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
        encoder.include_checksum(true)?;
        Ok(Self::Zstd(encoder))
    }

    fn gzip(file: File) -> io::Result<Self> {
        Ok(Self::Gzip(Box::new(GzEncoder::new(file, flate2::Compression::default()))))
    }

    fn finish(self) -> io::Result<File> {
        match self {
            Self::Zstd(encoder) => encoder.finish(),
            Self::Gzip(encoder) => encoder.finish(),
        }
    }
}

impl Packed {
    /// Begins a frame at once: an empty trace is a frame without content, not a file without a frame.
    fn new(file: File, begin: fn(File) -> io::Result<Pack>) -> io::Result<Self> {
        Ok(Self { state: State::Within(begin(file)?), begin })
    }
}

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.state = match std::mem::replace(&mut self.state, State::Broken) {
            State::Between(file) => State::Within((self.begin)(file)?),
            state => state,
        };
        match &mut self.state {
            State::Within(Pack::Zstd(encoder)) => encoder.write(bytes),
            State::Within(Pack::Gzip(encoder)) => encoder.write(bytes),
            State::Between(_) | State::Broken => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Broken) {
            State::Within(pack) => State::Between(pack.finish()?),
            state => state,
        };
        match &mut self.state {
            State::Between(file) => file.flush(),
            State::Within(_) | State::Broken => Err(io::Error::other("the file could not be ended before")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::Source;
    use super::*;

    #[test]
    fn a_file_is_packed_as_its_name_says_and_read_again_also_after_a_flush_in_its_middle() {
        let folder = tempfile::tempdir().unwrap();
        let starts: [(&str, &[u8]); 4] =
            [("t.jsonl", b"one"), ("t.jsonl.zst", b"\x28\xb5\x2f\xfd"), ("t.GZ", b"\x1f\x8b"), ("t", b"one")];
        for (name, start) in starts {
            let path = folder.path().join(name);
            let mut out = create(&path).unwrap();
            for text in ["one\n", "two\n"] {
                out.write_all(text.as_bytes()).unwrap();
                out.flush().unwrap();
            }
            drop(out);
            assert!(std::fs::read(&path).unwrap().starts_with(start), "{name}");
            let Source::Stream(stream) = Source::open(&path).unwrap() else { panic!("a file") };
            assert_eq!(stream.whole().unwrap(), b"one\ntwo\n", "{name}");
        }
    }

    #[test]
    fn an_empty_trace_is_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["t.zst", "t.gz"] {
            let path = folder.path().join(name);
            create(&path).unwrap().flush().unwrap();
            assert!(!std::fs::read(&path).unwrap().is_empty(), "{name}");
            let Source::Stream(stream) = Source::open(&path).unwrap() else { panic!("a file") };
            assert_eq!(stream.whole().unwrap(), b"", "{name}");
        }
    }
}
