//! Bytes of a trace: from a file or a pipe, decompressed, line by line, with a bound on every line.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use memchr::memchr;

use super::error::{Error, TraceProblem};

/// Longest line in bytes: a prompt of a million tokens in blocks of 16, with ids of 20 digits, is 1.4 MB.
pub const MAX_LINE_BYTES: usize = 16 << 20;
/// Largest document that has to be read whole.
pub const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// Bytes from which a format is guessed.
const SAMPLE_BYTES: usize = 256 << 10;
const BUFFER_BYTES: usize = 64 << 10;
/// What lines are read in: so much more than the others that they are passed by.
const LINE_BUFFER_BYTES: usize = 256 << 10;

/// What a trace is read from.
pub enum InputSource {
    /// A stream of bytes.
    Stream(InputStream),
    /// A folder.
    Folder(PathBuf),
}

/// A stream of bytes whose beginning is known.
pub struct InputStream {
    /// How the user named it.
    pub name: String,
    /// Its folder, where tables may lie beside it.
    pub folder: Option<PathBuf>,
    /// What it begins with: all of it, or so much that a format can be told.
    pub sample: Vec<u8>,
    is_packed: bool,
    /// Where it can be read once more; a pipe cannot.
    reopen_path: Option<PathBuf>,
    /// Whether it is packed in the frames of a capture, each of which can be read without the others.
    pub in_frames: bool,
    rest: Box<dyn BufRead + Send>,
}

impl InputSource {
    /// Opens a file, a folder, or stdin for `-`; undoes zstd and gzip.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let error = |error: io::Error| cannot_read(&error).at_line(&name, None);
        if path == Path::new("-") {
            return Ok(Self::Stream(InputStream::new(
                "stdin",
                Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin())),
            )?));
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
}

impl InputStream {
    /// Takes the beginning of `bytes` in, decompressed.
    pub fn new(name: &str, mut bytes: Box<dyn BufRead + Send>) -> Result<Self, Error> {
        let error = |error: io::Error| cannot_read(&error).at_line(name, None);
        let mut magic = Vec::new();
        bytes.by_ref().take(4).read_to_end(&mut magic).map_err(error)?;
        let in_frames = matches!(*magic.as_slice(), [0x50..=0x5f, 0x2a, 0x4d, 0x18]);
        let compressed = Cursor::new(magic.clone()).chain(bytes);
        let mut rest: Box<dyn BufRead + Send> = match *magic.as_slice() {
            // A frame of data, or a skippable one before it.
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
            // A capture whose end a kill has torn is known by what is before; who reads on finds the end.
            rest = Box::new(BufReader::with_capacity(0, FailingReader(torn)));
        }
        Ok(Self { name: name.to_owned(), folder: None, sample, is_packed, reopen_path: None, in_frames, rest })
    }

    /// The whole lines of the sample, blank ones left out; an unfinished one only where there is no other.
    pub fn sample_lines(&self) -> impl Iterator<Item = &[u8]> {
        let whole = self.sample.len() < SAMPLE_BYTES;
        let end = memchr::memrchr(b'\n', &self.sample).filter(|_| !whole).unwrap_or(self.sample.len());
        self.sample[..end].split(|byte| *byte == b'\n').map(trim_line).filter(|line| !line.is_empty())
    }

    /// Whole lines from all over a file on disk, behind the sample: a few parts of equal length. Of a packed file, which can
    /// only be read from its beginning, one part that follows the sample. None of a pipe.
    pub fn sample_parts(&self) -> Vec<Vec<u8>> {
        let whole = self.sample.len() < SAMPLE_BYTES;
        let Some(path) = self.reopen_path.as_deref().filter(|_| !whole) else { return Vec::new() };
        let parts =
            if self.is_packed { read_after(path, self.sample.len()) } else { read_parts(path, self.sample.len()) };
        parts.unwrap_or_default()
    }

    /// Its lines.
    pub fn lines(self) -> NumberedLines {
        let name = self.name.clone();
        NumberedLines { name, bytes: self.into_reader(), buffer: vec![0; LINE_BUFFER_BYTES], unread: 0..0, number: 0 }
    }

    /// Its bytes.
    pub fn into_reader(self) -> Box<dyn BufRead + Send> {
        Box::new(Cursor::new(self.sample).chain(self.rest))
    }

    /// All of it, where it is small enough.
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

/// Parts of a file that are looked at behind its sample, and bytes of each; and bytes of the one part of a packed file.
const PROBE_PARTS: (u64, usize) = (16, 64 << 10);
const PACKED_PROBE_BYTES: usize = 4 << 20;

/// Parts of a file from behind its first bytes to its end.
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

/// What follows the first bytes of a packed file.
fn read_after(path: &Path, first: usize) -> io::Result<Vec<Vec<u8>>> {
    let file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    let Ok(stream) = InputStream::new("", Box::new(file)) else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    let mut rest = stream.into_reader();
    io::copy(&mut rest.by_ref().take(first as u64), &mut io::sink())?;
    rest.take(PACKED_PROBE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(whole_lines(&bytes).into_iter().collect())
}

/// Without the pieces of lines at both ends; `None` where nothing else is there.
fn whole_lines(bytes: &[u8]) -> Option<Vec<u8>> {
    let (begin, end) = (memchr(b'\n', bytes)?, memchr::memrchr(b'\n', bytes)?);
    (begin < end).then(|| bytes[begin + 1..=end].to_vec())
}

/// Takes in what a format is told by.
fn fill_sample(rest: &mut dyn BufRead, sample: &mut Vec<u8>) -> io::Result<()> {
    rest.take(SAMPLE_BYTES as u64).read_to_end(sample)?;
    if sample.len() == SAMPLE_BYTES && memchr(b'\n', sample).is_none() {
        // A first row is there as a whole, however long its prompt: by its keys the format is told.
        rest.take((MAX_LINE_BYTES - SAMPLE_BYTES) as u64).read_until(b'\n', sample)?;
    }
    Ok(())
}

/// What cannot be read, and why.
struct FailingReader(io::Error);

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let again = || io::Error::new(self.0.kind(), self.0.to_string());
        Err(self.0.raw_os_error().map_or_else(again, io::Error::from_raw_os_error))
    }
}

fn cannot_read(error: &io::Error) -> TraceProblem {
    let problem = TraceProblem::new(format!("cannot be read: {error}"));
    // What the system did not say was said by who unpacks.
    if error.raw_os_error().is_some() { problem } else { problem.with_remedy("is the file damaged, or cut short?") }
}

/// Without a byte order mark before it, and space around it.
fn trim_line(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii()
}

/// Lines with their numbers.
pub struct NumberedLines {
    name: String,
    bytes: Box<dyn BufRead + Send>,
    /// What was read last, and room for more.
    buffer: Vec<u8>,
    /// What of it was in no line yet.
    unread: Range<usize>,
    number: u64,
}

impl NumberedLines {
    /// The next line that is not blank, without its end.
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

    /// A problem with its place: the line that was read last.
    pub fn error_at_line(&self, problem: TraceProblem) -> Error {
        problem.at_line(&self.name, Some(self.number))
    }

    /// Where the next line is, with its end; `None` when there is no other.
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

    /// Reads on behind what is left; whether there was more.
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
