//! The lines of one file of a trace, whatever it is packed in.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use zstd::bulk::Decompressor;

use super::format::MAX_ROW;
use super::frame::{Damaged, FrameHead, HEAD};
use super::reader::{Damage, ReadError};

/// The lines of one file, with their line ends.
pub(super) struct Lines {
    pub(super) path: PathBuf,
    pub(super) number: u64,
    source: Source,
}

enum Source {
    Frames(Box<Frames>),
    Stream(Box<dyn BufRead + Send>),
    /// Nothing more can be read.
    Over,
}

impl Lines {
    pub(super) fn open(path: PathBuf) -> Result<Self, ReadError> {
        let source = match Source::open(&path) {
            Ok(source) => source,
            Err(error) => return Err(ReadError::Io { path, error }),
        };
        Ok(Self { path, number: 0, source })
    }

    /// The lines of a stream, which is called by the name of a file.
    pub(super) fn of_stream(path: PathBuf, stream: Box<dyn BufRead + Send>) -> Self {
        Self { path, number: 0, source: Source::Stream(stream) }
    }

    /// Passes over frames that have no row of these times, as far as frames tell. Of those nothing is read but the head:
    /// what is damaged in them is not found.
    pub(super) fn only(&mut self, times: Range<u64>) {
        if let Source::Frames(frames) = &mut self.source {
            frames.times = times;
        }
    }

    pub(super) fn damage(&self, what: &str) -> Damage {
        let frame = match &self.source {
            Source::Frames(frames) => Some(frames.seq),
            Source::Stream(_) | Source::Over => None,
        };
        Damage { path: self.path.clone(), frame, what: what.to_owned() }
    }

    pub(super) fn next(&mut self, damage: &mut Vec<Damage>) -> Option<Result<Vec<u8>, ReadError>> {
        loop {
            let mut line = Vec::new();
            let read = match &mut self.source {
                Source::Over => return None,
                Source::Stream(stream) => stream.take(MAX_ROW as u64 + 1).read_until(b'\n', &mut line),
                Source::Frames(frames) => match frames.line() {
                    Ok(next) => {
                        line = next.unwrap_or_default();
                        Ok(line.len())
                    }
                    Err(Broken::Frame(what)) => {
                        damage.push(self.damage(&what.to_string()));
                        if what == Damaged::Head || what == Damaged::TooLarge {
                            self.source = Source::Over;
                        }
                        continue;
                    }
                    Err(Broken::Io(error)) => Err(error),
                },
            };
            self.number += 1;
            match read {
                Ok(0) => {
                    self.source = Source::Over;
                    return None;
                }
                Ok(_) if line.len() > MAX_ROW => {
                    self.source = Source::Over;
                    let reason = format!("it is longer than {MAX_ROW} bytes");
                    return Some(Err(ReadError::Line { path: self.path.clone(), line: self.number, reason }));
                }
                Ok(_) => return Some(Ok(line)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    damage.push(self.damage("its end is torn off"));
                    self.source = Source::Over;
                    return None;
                }
                Err(error) => {
                    self.source = Source::Over;
                    return Some(Err(ReadError::Io { path: self.path.clone(), error }));
                }
            }
        }
    }
}

impl Source {
    fn open(path: &Path) -> io::Result<Self> {
        let mut file = BufReader::with_capacity(64 << 10, File::open(path)?);
        let start = file.fill_buf()?;
        if FrameHead::begins(start) {
            let decompressor = Decompressor::new()?;
            let plain = io::Cursor::default();
            return Ok(Self::Frames(Box::new(Frames { file, decompressor, plain, seq: 0, times: 0..u64::MAX })));
        }
        let packed = start.starts_with(&zstd::zstd_safe::MAGICNUMBER.to_le_bytes())
            || start.len() > 3 && start[0] >> 4 == 5 && start[1..4] == [0x2a, 0x4d, 0x18];
        if packed {
            let decoder = zstd::stream::read::Decoder::with_buffer(file)?;
            return Ok(Self::Stream(Box::new(BufReader::with_capacity(64 << 10, decoder))));
        }
        Ok(Self::Stream(Box::new(file)))
    }
}

/// A file of frames.
struct Frames {
    file: BufReader<File>,
    decompressor: Decompressor<'static>,
    /// What is left of the frame that was unpacked last.
    plain: io::Cursor<Vec<u8>>,
    /// The frame that is read next, or is being read.
    seq: u64,
    /// What the rows' times have to be; no end is `u64::MAX`.
    times: Range<u64>,
}

/// Why there is no next line.
enum Broken {
    Frame(Damaged),
    /// `UnexpectedEof`: the file ends inside a frame.
    Io(io::Error),
}

impl Frames {
    /// The next line; `None` at a clean end.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        loop {
            let mut line = Vec::new();
            if self.plain.read_until(b'\n', &mut line).map_err(Broken::Io)? > 0 {
                return Ok(Some(line));
            }
            if self.file.fill_buf().map_err(Broken::Io)?.is_empty() {
                return Ok(None);
            }
            self.frame()?;
        }
    }

    /// Passes over what is packed.
    fn pass(&mut self, packed: u32) -> Result<(), Broken> {
        self.file.seek_relative(packed.into()).map_err(Broken::Io)?;
        // Whoever seeks finds no end.
        if self.file.stream_position().map_err(Broken::Io)? > self.file.get_ref().metadata().map_err(Broken::Io)?.len()
        {
            return Err(Broken::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.seq += 1;
        Ok(())
    }

    fn frame(&mut self) -> Result<(), Broken> {
        let mut head = [0; HEAD];
        self.file.read_exact(&mut head).map_err(Broken::Io)?;
        let head = FrameHead::read(&head).map_err(Broken::Frame)?;
        self.seq = head.seq;
        let later = self.times.end != u64::MAX && head.first >= self.times.end;
        if head.last < self.times.start || later {
            return self.pass(head.packed);
        }
        // Grows as bytes come: a head that lies makes no room for what is not there.
        let mut packed = Vec::new();
        let length = u64::from(head.packed);
        if self.file.by_ref().take(length).read_to_end(&mut packed).map_err(Broken::Io)? as u64 != length {
            return Err(Broken::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let plain = head.unpack(&packed, &mut self.decompressor).map_err(Broken::Frame)?;
        self.plain = io::Cursor::new(plain);
        self.seq += 1;
        Ok(())
    }
}
