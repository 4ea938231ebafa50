//! Reads one trace file line by line: frames, zstd or plain text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use zstd::bulk::Decompressor;

use super::PARQUET_MAGIC;
use super::frame::{FRAME_HEAD_BYTES, FrameError, FrameHead};
use super::read_error::{ReadError, TraceDamage};
use super::row::MAX_ROW_BYTES;

/// Lines keep their line ends.
pub(super) struct LineReader {
    pub(super) path: PathBuf,
    pub(super) number: u64,
    source: LineSource,
}

enum LineSource {
    Frames(Box<FrameReader>),
    Stream(Box<dyn BufRead + Send>),
    End,
}

impl LineReader {
    pub(super) fn open(path: PathBuf) -> Result<Self, ReadError> {
        let source = match LineSource::open(&path) {
            Ok(source) => source,
            Err(error) => return Err(ReadError::Io { path, error }),
        };
        Ok(Self { path, number: 0, source })
    }

    /// Reads a stream; `path` appears only in messages.
    pub(super) fn from_stream(path: PathBuf, stream: Box<dyn BufRead + Send>) -> Self {
        Self { path, number: 0, source: LineSource::Stream(stream) }
    }

    /// Skips frames without rows in this time range. The reader reads only their heads, so it does not detect damage in
    /// skipped frames.
    pub(super) fn set_time_range(&mut self, times: Range<u64>) {
        if let LineSource::Frames(frames) = &mut self.source {
            frames.times = times;
        }
    }

    pub(super) fn damage(&self, what: &str) -> TraceDamage {
        let frame = match &self.source {
            LineSource::Frames(frames) => Some(frames.seq),
            LineSource::Stream(_) | LineSource::End => None,
        };
        TraceDamage { path: self.path.clone(), frame, what: what.to_owned() }
    }

    pub(super) fn next_line(&mut self, damage: &mut Vec<TraceDamage>) -> Option<Result<Vec<u8>, ReadError>> {
        loop {
            let mut line = Vec::new();
            let read = match &mut self.source {
                LineSource::End => return None,
                LineSource::Stream(stream) => stream.take(MAX_ROW_BYTES as u64 + 1).read_until(b'\n', &mut line),
                LineSource::Frames(frames) => match frames.read_line() {
                    Ok(next) => {
                        line = next.unwrap_or_default();
                        Ok(line.len())
                    }
                    Err(LineReadError::Frame(what)) => {
                        damage.push(self.damage(&what.to_string()));
                        if what == FrameError::Head || what == FrameError::TooLarge {
                            self.source = LineSource::End;
                        }
                        continue;
                    }
                    Err(LineReadError::Io(error)) => Err(error),
                },
            };
            self.number += 1;
            match read {
                Ok(0) => {
                    self.source = LineSource::End;
                    return None;
                }
                Ok(_) if line.len() > MAX_ROW_BYTES => {
                    self.source = LineSource::End;
                    let reason = format!("it is longer than {MAX_ROW_BYTES} bytes");
                    return Some(Err(ReadError::Line { path: self.path.clone(), line: self.number, reason }));
                }
                Ok(_) => return Some(Ok(line)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    damage.push(self.damage("its end is torn off"));
                    self.source = LineSource::End;
                    return None;
                }
                Err(error) => {
                    self.source = LineSource::End;
                    return Some(Err(ReadError::Io { path: self.path.clone(), error }));
                }
            }
        }
    }
}

impl LineSource {
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(64 << 10, File::open(path)?);
        let start = file.fill_buf()?;
        if start.starts_with(PARQUET_MAGIC) {
            return Self::open_parquet(file.into_inner());
        }
        if FrameHead::is_at_start_of(start) {
            let decompressor = Decompressor::new()?;
            let plain = io::Cursor::default();
            return Ok(Self::Frames(Box::new(FrameReader { file, decompressor, plain, seq: 0, times: 0..u64::MAX })));
        }
        let packed = start.starts_with(&zstd::zstd_safe::MAGICNUMBER.to_le_bytes())
            || start.len() > 3 && start[0] >> 4 == 5 && start[1..4] == [0x2a, 0x4d, 0x18];
        if packed {
            let decoder = zstd::stream::read::Decoder::with_buffer(file)?;
            return Ok(Self::Stream(Box::new(BufReader::with_capacity(64 << 10, decoder))));
        }
        Ok(Self::Stream(Box::new(file)))
    }

    #[cfg(feature = "parquet")]
    fn open_parquet(file: File) -> io::Result<Self> {
        Ok(Self::Stream(Box::new(super::parquet::ParquetLines::open(file)?)))
    }

    #[cfg(not(feature = "parquet"))]
    fn open_parquet(_: File) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without the cargo feature `parquet`"))
    }
}

struct FrameReader {
    file: BufReader<File>,
    decompressor: Decompressor<'static>,
    /// The unread rest of the last unpacked frame.
    plain: io::Cursor<Vec<u8>>,
    /// Number of the frame that is read next, or being read.
    seq: u64,
    /// Wanted times; an end of `u64::MAX` is unbounded.
    times: Range<u64>,
}

enum LineReadError {
    Frame(FrameError),
    /// `UnexpectedEof`: the file ends inside a frame.
    Io(io::Error),
}

impl FrameReader {
    /// `None` at a clean end.
    fn read_line(&mut self) -> Result<Option<Vec<u8>>, LineReadError> {
        loop {
            let mut line = Vec::new();
            if self.plain.read_until(b'\n', &mut line).map_err(LineReadError::Io)? > 0 {
                return Ok(Some(line));
            }
            if self.file.fill_buf().map_err(LineReadError::Io)?.is_empty() {
                return Ok(None);
            }
            self.read_frame()?;
        }
    }

    fn skip_frame(&mut self, packed: u32) -> Result<(), LineReadError> {
        self.file.seek_relative(packed.into()).map_err(LineReadError::Io)?;
        // A seek past the end succeeds, so the length has to be checked.
        if self.file.stream_position().map_err(LineReadError::Io)?
            > self.file.get_ref().metadata().map_err(LineReadError::Io)?.len()
        {
            return Err(LineReadError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.seq += 1;
        Ok(())
    }

    fn read_frame(&mut self) -> Result<(), LineReadError> {
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_exact(&mut head).map_err(LineReadError::Io)?;
        let head = FrameHead::read(&head).map_err(LineReadError::Frame)?;
        self.seq = head.seq;
        let later = self.times.end != u64::MAX && head.first >= self.times.end;
        if head.last < self.times.start || later {
            return self.skip_frame(head.packed_bytes);
        }
        // Grows as bytes arrive, so that a false length in a head cannot allocate memory.
        let mut packed = Vec::new();
        let length = u64::from(head.packed_bytes);
        if self.file.by_ref().take(length).read_to_end(&mut packed).map_err(LineReadError::Io)? as u64 != length {
            return Err(LineReadError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let plain = head.unpack(&packed, &mut self.decompressor).map_err(LineReadError::Frame)?;
        self.plain = io::Cursor::new(plain);
        self.seq += 1;
        Ok(())
    }
}
