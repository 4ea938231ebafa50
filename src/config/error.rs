//! What cannot be believed: the thing, its place, and what to type instead.

use std::fmt;

use super::layer::SettingOrigin;
use super::raw_settings::setting;

/// One thing that cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    key: Option<&'static str>,
    origin: SettingOrigin,
    message: String,
}

impl ConfigProblem {
    /// What is wrong with the setting `key`, which was typed at `place`.
    pub(super) fn for_setting(key: &'static str, place: SettingOrigin, message: impl Into<String>) -> Self {
        Self { key: Some(key), origin: place, message: message.into() }
    }

    /// What is wrong at `place` with something that is no setting.
    pub(super) fn at_origin(place: SettingOrigin, message: impl Into<String>) -> Self {
        Self { key: None, origin: place, message: message.into() }
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let SettingOrigin::File(path, line) = &self.origin {
            write!(f, "{}:{line}: ", path.display())?;
        }
        if let Some(setting) = self.key.and_then(setting) {
            let name = match &self.origin {
                SettingOrigin::Flag => &setting.flag,
                SettingOrigin::Variable => &setting.variable,
                SettingOrigin::File(..) | SettingOrigin::Default => &setting.key,
            };
            write!(f, "{name}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Everything in a configuration that cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub(super) Vec<ConfigProblem>);

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
    pub(super) fn with_warnings(mut self, warnings: &[String]) -> Self {
        self.0.extend(warnings.iter().map(|warning| ConfigProblem::at_origin(SettingOrigin::Default, warning)));
        self
    }
}

impl From<ConfigProblem> for ConfigError {
    fn from(problem: ConfigProblem) -> Self {
        Self(vec![problem])
    }
}

/// The known name that was probably meant.
pub(crate) fn closest_match<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    // A third of the letters may be wrong; beyond that a suggestion is a guess.
    let near = near.filter(|(distance, known)| distance * 3 <= known.len().max(name.len()));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Longest text that an error shows, in characters.
const MAX_SHOWN_CHARS: usize = 60;

/// What was expected and what was found, which is nothing secret.
pub(super) fn expected_but_found(expected: &str, text: &str) -> String {
    let shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{expected}, found `{}{more}`", shown.escape_debug())
}

/// `expected a, b or c`.
pub(super) fn expected_one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.collect();
    let last = names.pop().unwrap_or_default();
    if names.is_empty() { format!("expected {last}") } else { format!("expected {} or {last}", names.join(", ")) }
}
