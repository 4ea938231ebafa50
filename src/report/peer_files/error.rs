//! Why a result file of another tool cannot be read. Messages never quote a value, because files contain texts.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::error::Category;

/// The file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {place}{problem}; remedy: {remedy}", path.display())]
pub struct PeerFileError {
    path: PathBuf,
    place: FilePlace,
    problem: String,
    remedy: String,
}

/// Position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilePlace {
    /// The whole file.
    File,
    /// A line, from 1.
    Line(u64),
    /// A request, from 1.
    Request(u64),
}

impl fmt::Display for FilePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => Ok(()),
            Self::Line(number) => write!(f, "line {number}: "),
            Self::Request(number) => write!(f, "request {number}: "),
        }
    }
}

impl PeerFileError {
    pub(super) fn new(path: &Path, place: FilePlace, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), place, problem: problem.into(), remedy: remedy.into() }
    }

    /// The operating system's error.
    pub(super) fn io(path: &Path, error: &std::io::Error) -> Self {
        Self::new(path, FilePlace::File, format!("cannot read it: {error}"), "check the path and its permissions")
    }

    /// The JSON is not what the tool writes. The message of the parser may quote a value, so only its kind is used.
    pub(super) fn json(path: &Path, place: FilePlace, error: &serde_json::Error) -> Self {
        let at = match place {
            FilePlace::Line(_) => format!("column {}", error.column()),
            _ => format!("line {}, column {}", error.line(), error.column()),
        };
        let text = error.to_string();
        // A name of ours follows, never a value of the file.
        let field = text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        match (error.classify(), field) {
            (Category::Io, _) => Self::new(path, place, format!("cannot read it: {text}"), "check the file system"),
            (Category::Eof, _) => {
                Self::new(path, place, "its end is torn off", "let the tool finish, or remove the torn part")
            }
            (Category::Syntax, _) => {
                Self::new(path, place, format!("it is no JSON from {at} on"), "write the file again with the tool")
            }
            (Category::Data, Some(field)) => Self::new(
                path,
                place,
                format!("`{field}` is missing at {at}"),
                "write the file with a version of the tool that the manual names",
            ),
            (Category::Data, None) => Self::new(
                path,
                place,
                format!("the value at {at} is not of the kind that the tool writes"),
                "write the file with a version of the tool that the manual names",
            ),
        }
    }
}
