//! What cannot be believed: the thing, its place, and what to type instead.

use std::fmt;

use super::layer::Place;
use super::typed::setting;

/// One thing that cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    key: Option<&'static str>,
    place: Place,
    message: String,
}

impl Problem {
    /// What is wrong with the setting `key`, which was typed at `place`.
    pub(super) fn with(key: &'static str, place: Place, message: impl Into<String>) -> Self {
        Self { key: Some(key), place, message: message.into() }
    }

    /// What is wrong at `place` with something that is no setting.
    pub(super) fn at(place: Place, message: impl Into<String>) -> Self {
        Self { key: None, place, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Place::File(path, line) = &self.place {
            write!(f, "{}:{line}: ", path.display())?;
        }
        if let Some(setting) = self.key.and_then(setting) {
            let name = match &self.place {
                Place::Flag => &setting.flag,
                Place::Variable => &setting.variable,
                Place::File(..) | Place::Default => &setting.key,
            };
            write!(f, "{name}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Everything in a configuration that cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(super) Vec<Problem>);

impl fmt::Display for ConfigError {
    /// One problem per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not valid")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  {}", problem.to_string().replace('\n', "\n  ")))
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// These problems, and what else was noticed.
    pub(super) fn and(mut self, warnings: &[String]) -> Self {
        self.0.extend(warnings.iter().map(|warning| Problem::at(Place::Default, warning)));
        self
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// The known name that was probably meant.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    // A third of the letters may be wrong; beyond that a suggestion is a guess.
    let near = near.filter(|(distance, known)| distance * 3 <= known.len().max(name.len()));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Longest text that an error shows, in characters.
const MOST_SHOWN: usize = 60;

/// What was expected and what was found, which is nothing secret.
pub(super) fn found(expected: &str, text: &str) -> String {
    let shown: String = text.chars().take(MOST_SHOWN).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{expected}, found `{}{more}`", shown.escape_debug())
}

/// `expected a, b or c`.
pub(super) fn expected_one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { format!("expected {last}") } else { format!("expected {} or {last}", names.join(", ")) }
}
