//! Trace errors with their file, line and field, the problem, and a remedy.

use std::fmt;

/// An error with its location. It names fields and expected types, but never quotes input values, because they may be
/// text that a person wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The file, as the user named it.
    pub file: String,
    /// Line number, from 1; `None` if the input has no lines.
    pub line: Option<u64>,
    /// The problem.
    pub problem: TraceProblem,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// A problem in the input, without its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TraceProblem {
    /// The invalid field; `None` if no single field is invalid.
    pub field: Option<String>,
    /// The expected value, or the problem.
    pub message: String,
    /// Advice to the user.
    pub remedy: Option<&'static str>,
}

impl fmt::Display for TraceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.message)?;
        self.remedy.map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl TraceProblem {
    /// A problem without a field.
    pub fn new(what: impl Into<String>) -> Self {
        Self { field: None, message: what.into(), remedy: None }
    }

    /// A problem in a field.
    pub fn in_field(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: Some(field.into()), message: what.into(), remedy: None }
    }

    /// A required field is missing.
    pub fn missing(field: &str) -> Self {
        Self::in_field(field, "is missing")
    }

    /// Adds advice.
    #[must_use]
    pub const fn with_remedy(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }

    /// Adds the location.
    pub fn at_line(self, file: &str, line: Option<u64>) -> Error {
        Error { file: file.to_owned(), line, problem: self }
    }
}
