//! Configuration errors: the setting, its origin, and the expected value.

use std::fmt;

use super::layer::SettingOrigin;
use super::raw_settings::setting;

/// One invalid setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    key: Option<&'static str>,
    origin: SettingOrigin,
    message: String,
}

impl ConfigProblem {
    /// A problem of the setting `key`, whose value comes from `place`.
    pub(super) fn for_setting(key: &'static str, place: SettingOrigin, message: impl Into<String>) -> Self {
        Self { key: Some(key), origin: place, message: message.into() }
    }

    /// A problem at `place` that belongs to no setting.
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
                SettingOrigin::File(..) | SettingOrigin::Default | SettingOrigin::AdminPort => &setting.key,
            };
            write!(f, "{name}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a configuration.
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
    /// Adds the warnings, which often explain a problem.
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

/// The most similar known name, for a suggestion.
pub(crate) fn closest_match<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    // At most a third of the letters may differ; beyond that a suggestion would be a guess.
    let near = near.filter(|(distance, known)| distance * 3 <= known.len().max(name.len()));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Limit on quoted text, in characters.
const MAX_SHOWN_CHARS: usize = 60;

/// Quotes the text: only for values that cannot be secret.
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
