//! Trace input from a file or a pipe: decompresses it and splits it into lines of limited length.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

use super::array_elements::ArrayElements;
use super::error::{Error, TraceProblem};
use crate::config::StorageUrl;
use crate::storage::{ObjectReader, StorageError};
use crate::trace_file::reader::{ReadError, TraceReader};

/// Maximum line length in bytes. A prompt of a million tokens in blocks of 16, with ids of 20 digits, takes 1.4 MB.
pub const MAX_LINE_BYTES: usize = 16 << 20;
/// Maximum size of a document that is read completely, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// Bytes used for format detection.
const SAMPLE_BYTES: usize = 256 << 10;
const BUFFER_BYTES: usize = 64 << 10;
/// Buffer size for lines. Larger than the other buffers, so that reads bypass them.
const LINE_BUFFER_BYTES: usize = 256 << 10;

/// The input of a trace.
pub enum InputSource {
    /// A stream of bytes.
    Stream(InputStream),
    /// A folder.
    Folder(PathBuf),
}

/// A stream of bytes with a buffered beginning.
pub struct InputStream {
    /// The input, as the user named it.
    pub name: String,
    /// Folder of the file, which may contain tables for it.
    pub folder: Option<PathBuf>,
    /// The beginning, long enough for format detection, or the whole input.
    pub sample: Vec<u8>,
    is_packed: bool,
    /// Path for a second read; `None` for a pipe.
    reopen_path: Option<PathBuf>,
    /// True if the input consists of capture frames, which can be read independently.
    pub in_frames: bool,
    rest: Box<dyn BufRead + Send>,
}

impl InputSource {
    /// Opens a file, a folder, or stdin for `-`; decompresses zstd and gzip.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let error = |error: io::Error| cannot_read(&error).at_line(&name, None);
        if path == Path::new("-") {
            return Ok(Self::Stream(InputStream::new(
                "stdin",
                Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin())),
            )?));
        }
        if let Some(url) = StorageUrl::of_path(path) {
            // The text of an invalid URL may hold credentials.
            let url = url.map_err(|invalid| TraceProblem::new(invalid.to_string()).at_line("the URL", None))?;
            return Self::open_url(path, &url);
        }
        if fs::metadata(path).map_err(error)?.is_dir() {
            return Ok(Self::Folder(path.to_owned()));
        }
        let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(error)?);
        let mut stream = InputStream::new(&name, Box::new(file))?;
        stream.folder = path.parent().map(Path::to_owned);
        stream.reopen_path = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|_| path.to_owned());
        Ok(Self::Stream(stream))
    }

    /// Opens an object, or what lies below a prefix or matches a pattern.
    fn open_url(path: &Path, url: &StorageUrl) -> Result<Self, Error> {
        let name = path.display().to_string();
        let error = |error: io::Error| cannot_read(&error).at_line(&name, None);
        let failed =
            |failure: StorageError| TraceProblem::new(format!("cannot be read: {failure}")).at_line(&name, None);
        let object = if url.is_pattern() { None } else { ObjectReader::open(url).map_err(failed)? };
        match object {
            Some(object) => {
                let mut stream = InputStream::new(&name, Box::new(object))?;
                stream.folder = path.parent().map(Path::to_owned);
                Ok(Self::Stream(stream))
            }
            // Opens the trace, so that an error names what is wrong with the bucket.
            None => match TraceReader::open(path) {
                Ok(_) => Ok(Self::Folder(path.to_owned())),
                Err(ReadError::Io { error: failure, .. }) => Err(error(failure)),
                Err(other) => Err(TraceProblem::new(other.to_string()).at_line(&name, None)),
            },
        }
    }
}

impl InputStream {
    /// Buffers the decompressed beginning of `bytes`.
    pub fn new(name: &str, mut bytes: Box<dyn BufRead + Send>) -> Result<Self, Error> {
        let error = |error: io::Error| cannot_read(&error).at_line(name, None);
        let mut magic = Vec::new();
        bytes.by_ref().take(4).read_to_end(&mut magic).map_err(error)?;
        let in_frames = matches!(*magic.as_slice(), [0x50..=0x5f, 0x2a, 0x4d, 0x18]);
        let compressed = Cursor::new(magic.clone()).chain(bytes);
        let mut rest: Box<dyn BufRead + Send> = match *magic.as_slice() {
            // A zstd data frame, or a skippable frame before it.
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
                let decoder = zstd::stream::read::Decoder::with_buffer(compressed).map_err(error)?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
            }
            [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(compressed))),
            _ => Box::new(compressed),
        };
        let is_packed =
            matches!(*magic.as_slice(), [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] | [0x1f, 0x8b, ..]);
        let mut sample = Vec::new();
        if let Err(torn) = fill_sample(&mut rest, &mut sample) {
            if sample.is_empty() {
                return Err(error(torn));
            }
            // The data before a torn end is enough for detection. A later read reports the error.
            rest = Box::new(BufReader::with_capacity(0, FailingReader(torn)));
        }
        Ok(Self { name: name.to_owned(), folder: None, sample, is_packed, reopen_path: None, in_frames, rest })
    }

    /// Complete lines of the sample without blank ones. A partial line is included only if it is the only one.
    pub fn sample_lines(&self) -> impl Iterator<Item = &[u8]> {
        let whole = self.sample.len() < SAMPLE_BYTES;
        let end = memchr::memrchr(b'\n', &self.sample).filter(|_| !whole).unwrap_or(self.sample.len());
        self.sample[..end].split(|byte| *byte == b'\n').map(trim_line).filter(|line| !line.is_empty())
    }

    /// Complete lines from across a file on disk, after the sample: a few parts of equal length. A compressed file has
    /// one part, right after the sample, because it must be read from its beginning. A pipe has none.
    pub fn sample_parts(&self) -> Vec<Vec<u8>> {
        let whole = self.sample.len() < SAMPLE_BYTES;
        let Some(path) = self.reopen_path.as_deref().filter(|_| !whole) else { return Vec::new() };
        let parts =
            if self.is_packed { read_after(path, self.sample.len()) } else { read_parts(path, self.sample.len()) };
        parts.unwrap_or_default()
    }

    /// Splits the input into lines.
    pub fn lines(self) -> NumberedLines {
        let name = self.name.clone();
        NumberedLines::new(name, self.into_reader())
    }

    /// True if the input is one JSON array.
    pub fn is_array(&self) -> bool {
        trim_line(&self.sample).starts_with(b"[")
    }

    /// Splits a JSON array into its elements; errors have the number of the element as their line.
    pub fn elements(self) -> NumberedLines {
        let name = self.name.clone();
        let bytes = self.into_reader();
        NumberedLines::new(name, Box::new(BufReader::with_capacity(BUFFER_BYTES, ArrayElements::new(bytes))))
    }

    /// The complete input, including the sample.
    pub fn into_reader(self) -> Box<dyn BufRead + Send> {
        Box::new(Cursor::new(self.sample).chain(self.rest))
    }

    /// Reads the complete input, at most [`MAX_DOCUMENT_BYTES`].
    pub fn read_all(self) -> Result<Vec<u8>, Error> {
        let mut bytes = self.sample;
        let most = MAX_DOCUMENT_BYTES as u64 + 1;
        let read = self.rest.take(most).read_to_end(&mut bytes);
        read.map_err(|error| cannot_read(&error).at_line(&self.name, None))?;
        if bytes.len() > MAX_DOCUMENT_BYTES {
            let what = format!("one document of more than {} MiB", MAX_DOCUMENT_BYTES >> 20);
            return Err(TraceProblem::new(what).with_remedy("write one session per line").at_line(&self.name, None));
        }
        Ok(bytes)
    }
}

/// Number and size in bytes of the parts read after the sample, and the size of the one part of a compressed file.
const PROBE_PARTS: (u64, usize) = (16, 64 << 10);
const PACKED_PROBE_BYTES: usize = 4 << 20;

/// Parts of a file, evenly distributed from `first` to its end.
fn read_parts(path: &Path, first: usize) -> io::Result<Vec<Vec<u8>>> {
    let (number, length) = PROBE_PARTS;
    let mut file = File::open(path)?;
    let rest = (file.metadata()?.len().saturating_sub(first as u64)).saturating_sub(length as u64);
    let mut parts = Vec::new();
    for part in 1..=number {
        file.seek(SeekFrom::Start(first as u64 + rest / number * part))?;
        let mut bytes = Vec::new();
        file.by_ref().take(length as u64).read_to_end(&mut bytes)?;
        parts.extend(whole_lines(&bytes));
    }
    Ok(parts)
}

/// Decompressed bytes after the first `first` bytes of a compressed file.
fn read_after(path: &Path, first: usize) -> io::Result<Vec<Vec<u8>>> {
    let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    let Ok(stream) = InputStream::new("", Box::new(file)) else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    let mut rest = stream.into_reader();
    io::copy(&mut rest.by_ref().take(first as u64), &mut io::sink())?;
    rest.take(PACKED_PROBE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(whole_lines(&bytes).into_iter().collect())
}

/// Drops partial lines at both ends; `None` if nothing remains.
fn whole_lines(bytes: &[u8]) -> Option<Vec<u8>> {
    let (begin, end) = (memchr(b'\n', bytes)?, memchr::memrchr(b'\n', bytes)?);
    (begin < end).then(|| bytes[begin + 1..=end].to_vec())
}

fn fill_sample(rest: &mut dyn BufRead, sample: &mut Vec<u8>) -> io::Result<()> {
    rest.take(SAMPLE_BYTES as u64).read_to_end(sample)?;
    if sample.len() == SAMPLE_BYTES && memchr(b'\n', sample).is_none() {
        // Reads the first row completely, whatever the length of its prompt, because its keys determine the format.
        rest.take((MAX_LINE_BYTES - SAMPLE_BYTES) as u64).read_until(b'\n', sample)?;
    }
    Ok(())
}

/// Fails every read with this error.
struct FailingReader(io::Error);

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let again = || io::Error::new(self.0.kind(), self.0.to_string());
        Err(self.0.raw_os_error().map_or_else(again, io::Error::from_raw_os_error))
    }
}

fn cannot_read(error: &io::Error) -> TraceProblem {
    let problem = TraceProblem::new(format!("cannot be read: {error}"));
    // An error without an OS code comes from the decompressor.
    if error.raw_os_error().is_some() { problem } else { problem.with_remedy("is the file damaged, or cut short?") }
}

/// Removes a byte order mark and surrounding white space.
fn trim_line(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii()
}

/// Lines with their numbers.
pub struct NumberedLines {
    name: String,
    bytes: Box<dyn BufRead + Send>,
    /// Bytes read last, followed by free space.
    buffer: Vec<u8>,
    /// Bytes of `buffer` not yet returned in a line.
    unread: Range<usize>,
    number: u64,
}

impl NumberedLines {
    fn new(name: String, bytes: Box<dyn BufRead + Send>) -> Self {
        Self { name, bytes, buffer: vec![0; LINE_BUFFER_BYTES], unread: 0..0, number: 0 }
    }

    /// The next line that is not blank, without its line end.
    pub fn next_line(&mut self) -> Option<Result<&[u8], Error>> {
        loop {
            let line = match self.read_line() {
                Ok(line) => line?,
                Err(problem) => return Some(Err(self.error_at_line(problem))),
            };
            if !trim_line(&self.buffer[line.clone()]).is_empty() {
                return Some(Ok(trim_line(&self.buffer[line])));
            }
        }
    }

    /// Adds the location of the line read last to a problem.
    pub fn error_at_line(&self, problem: TraceProblem) -> Error {
        problem.at_line(&self.name, Some(self.number))
    }

    /// Range of the next line in the buffer, with its line end; `None` at the end of the input.
    fn read_line(&mut self) -> Result<Option<Range<usize>>, TraceProblem> {
        self.number += 1;
        let mut searched = 0;
        loop {
            let left = &self.buffer[self.unread.clone()];
            let end = memchr(b'\n', &left[searched..]).map(|at| searched + at + 1);
            searched = left.len();
            if end.unwrap_or(searched) > MAX_LINE_BYTES {
                let what = format!("a line of more than {} MiB", MAX_LINE_BYTES >> 20);
                return Err(TraceProblem::new(what).with_remedy("a row is one line; is this a trace?"));
            }
            if end.is_some() || !self.fill_buffer()? {
                let begin = self.unread.start;
                self.unread.start += end.unwrap_or(searched);
                return Ok((begin < self.unread.start).then_some(begin..self.unread.start));
            }
        }
    }

    /// Reads more bytes behind the unread ones; false at the end of the input.
    fn fill_buffer(&mut self) -> Result<bool, TraceProblem> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        if self.unread.end > self.buffer.len() / 2 {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        loop {
            match self.bytes.read(&mut self.buffer[self.unread.end..]) {
                Ok(read) => {
                    self.unread.end += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(cannot_read(&error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(bytes: Vec<u8>) -> InputStream {
        InputStream::new("t", Box::new(Cursor::new(bytes))).unwrap()
    }

    #[test]
    fn lines_come_without_their_ends_and_with_their_numbers() {
        let mut lines = stream(b"\xef\xbb\xbfa\r\n\n  b \nc".to_vec()).lines();
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line() {
            let line = line.unwrap().to_vec();
            seen.push((lines.number, line));
        }
        assert_eq!(seen, [(1, b"a".to_vec()), (3, b"b".to_vec()), (4, b"c".to_vec())]);
    }

    #[test]
    fn a_line_without_end_is_an_error_and_not_a_full_memory() {
        let endless = BufReader::new(io::repeat(b'x'));
        let mut lines = InputStream::new("t", Box::new(endless)).unwrap().lines();
        let error = lines.next_line().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "t:1: a line of more than 16 MiB; a row is one line; is this a trace?");
    }

    #[test]
    fn zstd_and_gzip_are_undone_by_their_first_bytes() {
        let text = b"one\ntwo\n".repeat(100_000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut gzip, &text).unwrap();
        for packed in [zstd::encode_all(&text[..], 1).unwrap(), gzip.finish().unwrap(), text.clone()] {
            let mut lines = stream(packed).lines();
            let mut count = 0;
            while let Some(line) = lines.next_line() {
                line.unwrap();
                count += 1;
            }
            assert_eq!(count, 200_000);
        }
    }
}
