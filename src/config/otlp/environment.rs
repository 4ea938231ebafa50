//! Reads OpenTelemetry's environment variables by its rules. An empty variable is unset, and enum values are
//! case-insensitive. An invalid value causes a warning and counts as unset.

use crate::config::error::{expected_but_found, expected_one_of};
use crate::measure::time::Gap;

/// A timeout of 0 means no limit; this is the longest one that the specification suggests.
const NO_LIMIT: Gap = Gap::from_millis(i32::MAX as u64);

/// The environment, and the warnings about it.
pub(super) struct OtelEnvironment<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    pub(super) warnings: Vec<String>,
}

impl<'a> OtelEnvironment<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { lookup, warnings: Vec::new() }
    }

    /// Adds a warning once, even if several signals read the same variable.
    pub(super) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// A variable's value, if it is set.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The first variable of `names` that is set and valid. The error of `parse` completes a sentence that starts with
    /// the variable's name.
    pub(super) fn first<T>(
        &mut self,
        names: &[impl AsRef<str>],
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        for name in names.iter().map(AsRef::as_ref) {
            let Some(text) = self.text(name) else { continue };
            match parse(&text) {
                Ok(value) => return Some(value),
                Err(wrong) => self.warn(format!("{name} is ignored: {wrong}")),
            }
        }
        None
    }

    pub(super) fn one_of<T: Copy>(&mut self, names: &[impl AsRef<str>], known: &[(&str, T)]) -> Option<T> {
        self.first(names, |text| parse_name(text, known))
    }

    /// An integer from 1.
    pub(super) fn count(&mut self, name: &str) -> Option<usize> {
        self.first(&[name], |text| {
            let count = text.parse::<i32>().ok().and_then(|count| usize::try_from(count).ok());
            count.filter(|count| *count > 0).ok_or_else(|| expected_but_found("expected a whole number from 1", text))
        })
    }

    /// Milliseconds, from 1.
    pub(super) fn duration(&mut self, name: &str) -> Option<Gap> {
        self.count(name).map(|millis| Gap::from_millis(millis as u64))
    }

    /// Milliseconds; 0 means no limit.
    pub(super) fn timeout(&mut self, names: &[impl AsRef<str>]) -> Option<Gap> {
        self.first(names, |text| match text.parse::<u32>() {
            Ok(0) => Ok(NO_LIMIT),
            Ok(millis) => Ok(Gap::from_millis(u64::from(millis))),
            Err(_) => Err(expected_but_found("expected milliseconds", text)),
        })
    }

    /// True if the value is `true`.
    pub(super) fn switch(&mut self, names: &[impl AsRef<str>]) -> bool {
        self.one_of(names, &[("true", true), ("false", false)]).unwrap_or(false)
    }
}

/// The value of a known name.
pub(super) fn parse_name<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    let value = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, value)| *value);
    value.ok_or_else(|| expected_but_found(&expected_one_of(known.iter().map(|(name, _)| *name)), text))
}
