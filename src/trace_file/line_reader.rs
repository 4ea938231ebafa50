//! Reads one trace file line by line: frames, zstd or plain text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use zstd::bulk::Decompressor;

use super::PARQUET_MAGIC;
use super::frame::{FRAME_HEAD_BYTES, FrameError, FrameHead};
use super::read_error::{ReadError, TraceDamage};
use super::row::MAX_ROW_BYTES;
use crate::config::StorageUrl;
use crate::storage::ObjectReader;

/// Size up to which an object in Parquet is read whole, if no other is.
const MAX_WHOLE_OBJECT_BYTES: u64 = 64 << 20;
/// Maximum bytes of all objects that are held whole.
const MAX_WHOLE_BYTES: u64 = 256 << 20;
/// Open segments above which each reads small parts of its object.
const MAX_LARGE_PARTS: usize = 16;

/// Lines keep their line ends.
pub(super) struct LineReader {
    pub(super) path: PathBuf,
    pub(super) number: u64,
    /// Size of the object, if it is held whole.
    pub(super) held_bytes: u64,
    source: LineSource,
}

/// Memory that other open segments hold, or may hold.
#[derive(Clone, Copy, Default)]
pub(super) struct HeldMemory {
    pub(super) segments: usize,
    /// Bytes of objects that are held whole.
    pub(super) bytes: u64,
}

impl HeldMemory {
    /// The memory of other readers, if so many share that of one.
    pub(super) fn of_others(readers: usize) -> Self {
        let readers = readers.max(1);
        let share = MAX_WHOLE_BYTES / u64::try_from(readers).unwrap_or(u64::MAX);
        Self { segments: readers - 1, bytes: MAX_WHOLE_BYTES - share }
    }

    /// The memory of further segments too.
    pub(super) const fn with(self, segments: usize, bytes: u64) -> Self {
        Self { segments: self.segments + segments, bytes: self.bytes.saturating_add(bytes) }
    }

    /// Size up to which another object is held whole.
    fn max_whole_object(self) -> u64 {
        MAX_WHOLE_OBJECT_BYTES.min(MAX_WHOLE_BYTES.saturating_sub(self.bytes))
    }
}

enum LineSource {
    Frames(Box<FrameReader>),
    Stream(Box<dyn BufRead + Send>),
    End,
}

impl LineReader {
    pub(super) fn open(path: PathBuf, held: HeldMemory) -> Result<Self, ReadError> {
        match LineSource::open(&path, held) {
            Ok((source, held_bytes)) => Ok(Self { path, number: 0, held_bytes, source }),
            Err(error) => Err(ReadError::Io { path, error }),
        }
    }

    /// Reads a stream; `path` appears only in messages.
    pub(super) fn from_stream(path: PathBuf, stream: Box<dyn BufRead + Send>) -> Self {
        Self { path, number: 0, held_bytes: 0, source: LineSource::Stream(stream) }
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
    /// The source, and the bytes that it holds as a whole.
    fn open(path: &Path, held: HeldMemory) -> io::Result<(Self, u64)> {
        let bytes: Box<dyn TraceBytes> = match StorageUrl::of_path(path) {
            None => Box::new(File::open(path)?),
            Some(url) => {
                let object = open_object(&url.map_err(io::Error::other)?)?;
                Box::new(if held.segments < MAX_LARGE_PARTS { object } else { object.with_small_parts() })
            }
        };
        let mut file = BufReader::with_capacity(64 << 10, bytes);
        let start = file.fill_buf()?;
        if start.starts_with(PARQUET_MAGIC) {
            return file.into_inner().parquet_lines(held.max_whole_object());
        }
        if FrameHead::is_at_start_of(start) {
            let decompressor = Decompressor::new()?;
            let plain = io::Cursor::default();
            let frames = FrameReader { file, decompressor, plain, seq: 0, times: 0..u64::MAX };
            return Ok((Self::Frames(Box::new(frames)), 0));
        }
        let packed = start.starts_with(&zstd::zstd_safe::MAGICNUMBER.to_le_bytes())
            || start.len() > 3 && start[0] >> 4 == 5 && start[1..4] == [0x2a, 0x4d, 0x18];
        if packed {
            let decoder = zstd::stream::read::Decoder::with_buffer(file)?;
            return Ok((Self::Stream(Box::new(BufReader::with_capacity(64 << 10, decoder))), 0));
        }
        Ok((Self::Stream(Box::new(file)), 0))
    }
}

/// The bytes of a file or an object.
trait TraceBytes: Read + Seek + Send {
    /// Current length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads them as Parquet, an object of at most `most` bytes as a whole. Returns the bytes that are held then.
    fn parquet_lines(self: Box<Self>, most: u64) -> io::Result<(LineSource, u64)>;
}

impl TraceBytes for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn parquet_lines(self: Box<Self>, _: u64) -> io::Result<(LineSource, u64)> {
        Ok((open_parquet(*self)?, 0))
    }
}

impl TraceBytes for ObjectReader {
    fn length(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    fn parquet_lines(mut self: Box<Self>, most: u64) -> io::Result<(LineSource, u64)> {
        // Pages are small, and each would be a request.
        let size = self.size();
        if size > most {
            return Ok((open_parquet(*self)?, 0));
        }
        let mut whole = Vec::new();
        self.rewind()?;
        self.read_to_end(&mut whole)?;
        Ok((open_parquet(Bytes::from(whole))?, size))
    }
}

fn open_object(url: &StorageUrl) -> io::Result<ObjectReader> {
    let object = ObjectReader::open(url).map_err(io::Error::other)?;
    object.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such object"))
}

#[cfg(feature = "parquet")]
fn open_parquet(bytes: impl parquet::file::reader::ChunkReader + 'static) -> io::Result<LineSource> {
    Ok(LineSource::Stream(Box::new(super::parquet::ParquetLines::open(bytes)?)))
}

#[cfg(not(feature = "parquet"))]
fn open_parquet<T>(_: T) -> io::Result<LineSource> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without the cargo feature `parquet`"))
}

/// Number of rows of a closed segment, from the heads of its frames or the end of its Parquet.
pub(super) fn count_rows(segment: &Path) -> io::Result<u64> {
    let mut file = BufReader::with_capacity(FRAME_HEAD_BYTES, File::open(segment)?);
    if file.fill_buf()?.starts_with(PARQUET_MAGIC) {
        return parquet_rows(file.into_inner());
    }
    let mut rows = 0;
    let mut head = [0; FRAME_HEAD_BYTES];
    while !file.fill_buf()?.is_empty() {
        file.read_exact(&mut head)?;
        let head = FrameHead::read(&head).map_err(io::Error::other)?;
        rows += u64::from(head.rows);
        file.seek_relative(head.packed_bytes.into())?;
    }
    Ok(rows)
}

#[cfg(feature = "parquet")]
fn parquet_rows(file: File) -> io::Result<u64> {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};
    let reader = SerializedFileReader::new(file).map_err(io::Error::other)?;
    u64::try_from(reader.metadata().file_metadata().num_rows()).map_err(io::Error::other)
}

#[cfg(not(feature = "parquet"))]
fn parquet_rows(_: File) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

struct FrameReader {
    file: BufReader<Box<dyn TraceBytes>>,
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
            > self.file.get_ref().length().map_err(LineReadError::Io)?
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_that_are_open_at_once_hold_no_more_objects_than_one_may() {
        assert_eq!(HeldMemory::of_others(1).max_whole_object(), MAX_WHOLE_OBJECT_BYTES);
        for readers in [4, 60, 1_000] {
            let (mut held, mut all) = (HeldMemory::of_others(readers), 0);
            while held.max_whole_object() > 0 {
                all += held.max_whole_object();
                held = held.with(1, held.max_whole_object());
            }
            assert_eq!(all, MAX_WHOLE_BYTES / readers as u64, "{readers} readers");
            assert!(readers <= MAX_LARGE_PARTS || held.segments >= MAX_LARGE_PARTS, "they read small parts");
        }
    }
}
