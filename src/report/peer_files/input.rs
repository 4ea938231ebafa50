//! Reads a file of bounded size: once as one JSON document, or any number of times line by line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::error::{FilePlace, PeerFileError};

/// Maximum size of a document, in bytes. A parsed number takes at most four times the bytes of its text.
pub const MAX_DOCUMENT_BYTES: u64 = 1 << 30;
/// Maximum length of a line, in bytes: a million gaps.
pub const MAX_LINE_BYTES: u64 = 32 << 20;
const BUFFER_BYTES: usize = 256 << 10;

/// A file, or bytes in memory.
#[derive(Clone, Debug)]
pub struct PeerInput {
    /// Path for messages.
    pub path: PathBuf,
    bytes: Option<Vec<u8>>,
}

impl PeerInput {
    /// Reads a file.
    pub fn file(path: &Path) -> Self {
        Self { path: path.to_owned(), bytes: None }
    }

    /// Reads bytes in memory; `path` appears only in messages.
    pub fn bytes(path: &Path, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), bytes: Some(bytes) }
    }

    fn open(&self) -> Result<Box<dyn BufRead>, PeerFileError> {
        Ok(match &self.bytes {
            Some(bytes) => Box::new(Cursor::new(bytes.clone())),
            None => {
                let file = File::open(&self.path).map_err(|error| self.failed(&error))?;
                Box::new(BufReader::with_capacity(BUFFER_BYTES, file))
            }
        })
    }

    /// Returns the first bytes.
    pub(super) fn start(&self, length: u64) -> Result<Vec<u8>, PeerFileError> {
        let mut start = Vec::new();
        self.open()?.take(length).read_to_end(&mut start).map_err(|error| self.failed(&error))?;
        Ok(start)
    }

    pub(super) fn document<T: DeserializeOwned>(&self) -> Result<T, PeerFileError> {
        let mut limited = self.open()?.take(MAX_DOCUMENT_BYTES + 1);
        let document = serde_json::from_reader(&mut limited);
        if limited.limit() == 0 {
            let problem = format!("it is larger than {MAX_DOCUMENT_BYTES} bytes");
            return Err(self.error(FilePlace::File, problem, "report on fewer requests at once"));
        }
        document.map_err(|error| PeerFileError::json(&self.path, FilePlace::File, &error))
    }

    pub(super) fn lines(&self) -> Result<PeerLines, PeerFileError> {
        Ok(PeerLines { reader: self.open()?, input: Self::file(&self.path), number: 0, line: Vec::new() })
    }

    pub(super) fn error(&self, place: FilePlace, problem: impl Into<String>, remedy: &str) -> PeerFileError {
        PeerFileError::new(&self.path, place, problem, remedy)
    }

    fn failed(&self, error: &io::Error) -> PeerFileError {
        PeerFileError::io(&self.path, error)
    }
}

/// Replaces what Python writes for numbers that JSON does not have, outside of texts.
fn replace_python_numbers(line: &mut Vec<u8>) {
    let (mut replaced, mut in_text, mut escaped, mut at) = (Vec::with_capacity(line.len()), false, false, 0);
    while let Some(&byte) = line.get(at) {
        let number = [&b"-Infinity"[..], b"Infinity", b"NaN"].into_iter().find(|name| line[at..].starts_with(name));
        if let Some(number) = number.filter(|_| !in_text) {
            replaced.extend_from_slice(b"null");
            at += number.len();
            continue;
        }
        in_text ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        replaced.push(byte);
        at += 1;
    }
    *line = replaced;
}

/// Lines of JSON, without blank ones.
pub(super) struct PeerLines {
    reader: Box<dyn BufRead>,
    input: PeerInput,
    number: u64,
    line: Vec<u8>,
}

impl PeerLines {
    /// Parses the next line; `None` at the end of the file.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, PeerFileError> {
        self.next_after(|_| {})
    }

    /// Parses the next line, whose numbers may be `Infinity` or `NaN`, as Python writes them; they become `null`.
    pub(super) fn next_of_python<T: DeserializeOwned>(&mut self) -> Result<Option<T>, PeerFileError> {
        self.next_after(replace_python_numbers)
    }

    fn next_after<T: DeserializeOwned>(&mut self, change: impl Fn(&mut Vec<u8>)) -> Result<Option<T>, PeerFileError> {
        loop {
            self.line.clear();
            let read = self.reader.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut self.line);
            self.number += 1;
            match read {
                Err(error) => return Err(self.input.failed(&error)),
                Ok(0) => return Ok(None),
                Ok(length) if length as u64 > MAX_LINE_BYTES => {
                    let problem = format!("it is longer than {MAX_LINE_BYTES} bytes");
                    return Err(self.input.error(self.place(), problem, "remove the line"));
                }
                Ok(_) => change(&mut self.line),
            }
            let line = self.line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.line).trim_ascii();
            if !line.is_empty() {
                let parsed = serde_json::from_slice(line);
                return parsed.map(Some).map_err(|error| PeerFileError::json(&self.input.path, self.place(), &error));
            }
        }
    }

    pub(super) fn place(&self) -> FilePlace {
        FilePlace::Line(self.number)
    }

    pub(super) fn error(&self, problem: impl Into<String>, remedy: &str) -> PeerFileError {
        self.input.error(self.place(), problem, remedy)
    }
}
