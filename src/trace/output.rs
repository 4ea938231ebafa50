//! Trace output to a file, compressed by its file name.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::write::GzEncoder;

use super::format::TraceOutput;

const BUFFER_BYTES: usize = 64 << 10;

/// Creates or truncates a file. The suffix selects the compression: `.zst`, `.gz`, or none.
pub fn create(path: &Path) -> io::Result<TraceOutput> {
    let file = File::create(path)?;
    let ends = |with: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(with));
    let to = if ends("zst") {
        CompressedFile::new(file, FrameEncoder::zstd)?
    } else if ends("gz") {
        CompressedFile::new(file, FrameEncoder::gzip)?
    } else {
        return Ok(Box::new(BufWriter::with_capacity(BUFFER_BYTES, file)));
    };
    Ok(Box::new(BufWriter::with_capacity(BUFFER_BYTES, to)))
}

/// Compresses its input. A flush ends the frame, so that the file is complete; later bytes start another frame.
struct CompressedFile {
    state: FrameState,
    begin_frame: fn(File) -> io::Result<FrameEncoder>,
}

enum FrameState {
    BetweenFrames(File),
    InFrame(FrameEncoder),
    /// A frame could not be completed.
    Failed,
}

enum FrameEncoder {
    Zstd(zstd::Encoder<'static, File>),
    Gzip(Box<GzEncoder<File>>),
}

impl FrameEncoder {
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

impl CompressedFile {
    /// Starts a frame at once, so that an empty trace becomes an empty frame and not an empty file.
    fn new(file: File, begin: fn(File) -> io::Result<FrameEncoder>) -> io::Result<Self> {
        Ok(Self { state: FrameState::InFrame(begin(file)?), begin_frame: begin })
    }
}

impl Write for CompressedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.state = match std::mem::replace(&mut self.state, FrameState::Failed) {
            FrameState::BetweenFrames(file) => FrameState::InFrame((self.begin_frame)(file)?),
            state => state,
        };
        match &mut self.state {
            FrameState::InFrame(FrameEncoder::Zstd(encoder)) => encoder.write(bytes),
            FrameState::InFrame(FrameEncoder::Gzip(encoder)) => encoder.write(bytes),
            FrameState::BetweenFrames(_) | FrameState::Failed => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.state = match std::mem::replace(&mut self.state, FrameState::Failed) {
            FrameState::InFrame(pack) => FrameState::BetweenFrames(pack.finish()?),
            state => state,
        };
        match &mut self.state {
            FrameState::BetweenFrames(file) => file.flush(),
            FrameState::InFrame(_) | FrameState::Failed => Err(io::Error::other("the file could not be ended before")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::InputSource;
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
            let InputSource::Stream(stream) = InputSource::open(&path).unwrap() else { panic!("a file") };
            assert_eq!(stream.read_all().unwrap(), b"one\ntwo\n", "{name}");
        }
    }

    #[test]
    fn an_empty_trace_is_a_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["t.zst", "t.gz"] {
            let path = folder.path().join(name);
            create(&path).unwrap().flush().unwrap();
            assert!(!std::fs::read(&path).unwrap().is_empty(), "{name}");
            let InputSource::Stream(stream) = InputSource::open(&path).unwrap() else { panic!("a file") };
            assert_eq!(stream.read_all().unwrap(), b"", "{name}");
        }
    }
}
