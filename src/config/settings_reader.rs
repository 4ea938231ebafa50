//! Reads single settings: a text of a key becomes a value, or a problem that names the expected one.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::ValueEnum;

use super::defaults::{BOUNDS, NONE};
use super::dump::format_duration;
use super::error::{ConfigProblem, expected_but_found, expected_one_of};
use super::layer::{SettingsLayer, SourcedText};
use crate::measure::time::Gap;

const EXPECTED_PEM_FILE: &str = "expected the path of a PEM file; its contents are read from there";

/// Reads settings by key. An invalid value becomes `None` and a problem.
pub(super) struct SettingsReader<'a> {
    pub(super) settings: &'a SettingsLayer,
    pub(super) problems: Vec<ConfigProblem>,
}

impl<'a> SettingsReader<'a> {
    pub(super) fn new(settings: &'a SettingsLayer) -> Self {
        Self { settings, problems: Vec::new() }
    }

    pub(super) fn add_problem(&mut self, key: &'static str, message: impl Into<String>) {
        self.problems.push(ConfigProblem::for_setting(key, self.settings.origin(key), message));
    }

    pub(super) fn texts(&self, key: &str) -> Vec<SourcedText> {
        self.settings.value(key).map(|given| given.texts.clone()).unwrap_or_default()
    }

    /// Parses one text of `key`; the parser's error is the whole message.
    pub(super) fn parse<T, E: Display>(
        &mut self,
        key: &'static str,
        text: &SourcedText,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let parsed = parse(text.text.trim());
        parsed
            .map_err(|error| {
                self.problems.push(ConfigProblem::for_setting(key, text.origin.clone(), error.to_string()))
            })
            .ok()
    }

    /// Parses the value of `key`, if it is set.
    pub(super) fn value<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.texts(key).pop()?;
        self.parse(key, &text, |text| parse(text).ok_or_else(|| expected_but_found(expected, text)))
    }

    pub(super) fn number(&mut self, key: &'static str) -> Option<usize> {
        let (_, bounds) = BOUNDS.iter().find(|(bounded, _)| *bounded == key)?;
        let expected = format!("expected a whole number from {} to {}", bounds.start(), bounds.end());
        self.value(key, &expected, |text| text.parse().ok().filter(|number| bounds.contains(number)))
    }

    /// Bytes, with or without a unit.
    pub(super) fn bytes(&mut self, key: &'static str) -> Option<usize> {
        let (_, bounds) = BOUNDS.iter().find(|(bounded, _)| *bounded == key)?;
        let expected = format!("expected bytes from {} to {}, as in 64K or 10G", bounds.start(), bounds.end());
        self.value(key, &expected, |text| bytes(text).filter(|number| bounds.contains(number)))
    }

    pub(super) fn time(&mut self, key: &'static str, bounds: RangeInclusive<Gap>) -> Option<Gap> {
        let (least, most) = (format_duration(*bounds.start()), format_duration(*bounds.end()));
        let expected = format!("expected a time from {least} to {most}, as in 30s");
        self.value(key, &expected, |text| text.parse().ok().filter(|time| bounds.contains(time)))
    }

    pub(super) fn enum_value<T: ValueEnum>(&mut self, key: &'static str) -> Option<T> {
        let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        let expected = expected_one_of(names.iter().map(String::as_str));
        self.value(key, &expected, |text| T::from_str(text, true).ok())
    }

    pub(super) fn file(&mut self, key: &'static str) -> Option<PathBuf> {
        let text = self.texts(key).pop()?;
        // Not quoted: the text may be the private key itself instead of its path.
        let is_path = |text: &str| !text.is_empty() && !text.contains("-----BEGIN") && !text.contains('\n');
        self.parse(key, &text, |text| if is_path(text) { Ok(text.into()) } else { Err(EXPECTED_PEM_FILE) })
    }

    /// The path of a file with a secret. Not quoted: the text may be the secret itself.
    pub(super) fn secret_file(&mut self, key: &'static str, expected: &'static str) -> Option<PathBuf> {
        let text = self.texts(key).pop()?;
        self.parse(key, &text, |text| if is_path(text) { Ok(text.into()) } else { Err(expected) })
    }

    /// A list of words, in one text with commas or in several texts.
    pub(super) fn word_list<T: Default>(
        &mut self,
        key: &'static str,
        expected: &str,
        mut add: impl FnMut(&mut T, &str) -> Option<()>,
    ) -> Option<T> {
        let texts = self.texts(key);
        let mut all = T::default();
        for text in texts.iter().filter(|text| text.text.trim() != NONE) {
            for word in text.text.split(',').map(str::trim) {
                let wrong = || match word {
                    NONE => format!("`{NONE}` goes with nothing else; take it or the others out"),
                    word => expected_but_found(expected, word),
                };
                self.parse(key, text, |_| add(&mut all, word).ok_or_else(wrong))?;
            }
        }
        Some(all)
    }
}

/// `65536`, `64K`, `64KiB`; with `B` alone the unit is a power of 1,000 (`10GB`).
fn bytes(text: &str) -> Option<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = |letter: &str| "KMGT".find(&letter.to_ascii_uppercase()).map(|at| at as u32 + 1);
    let scale = match (unit.get(..1), unit.get(1..)) {
        (None, _) | (Some("B"), Some("")) => 1,
        (Some(letter), Some("" | "i" | "iB")) => 1024_usize.checked_pow(power(letter)?)?,
        (Some(letter), Some("B")) => 1000_usize.checked_pow(power(letter)?)?,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(scale)
}

pub(super) fn is_path(text: &str) -> bool {
    !text.is_empty() && !text.contains(['\n', '\0'])
}
