//! What is wrong with a trace: where, in what, and what to do about it.

use std::fmt;

/// An error with its place. It names fields and kinds of values; a value of the input never gets into it, for it may be
/// what a person wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// The file, as the user named it.
    pub file: String,
    /// The line, from 1, where there are lines.
    pub line: Option<u64>,
    /// What is wrong.
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

/// What is wrong with one thing of the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct TraceProblem {
    /// The field, where one is to blame.
    pub field: Option<String>,
    /// What was expected there, or what is wrong.
    pub message: String,
    /// What to do.
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
    /// Something is wrong that no field is to blame for.
    pub fn new(what: impl Into<String>) -> Self {
        Self { field: None, message: what.into(), remedy: None }
    }

    /// Something is wrong with a field.
    pub fn in_field(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: Some(field.into()), message: what.into(), remedy: None }
    }

    /// A field that a row cannot be without is not there.
    pub fn missing(field: &str) -> Self {
        Self::in_field(field, "is missing")
    }

    /// With what to do about it.
    #[must_use]
    pub const fn with_remedy(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }

    /// With its place.
    pub fn at_line(self, file: &str, line: Option<u64>) -> Error {
        Error { file: file.to_owned(), line, problem: self }
    }
}
