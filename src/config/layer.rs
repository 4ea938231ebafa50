//! Layers of settings: flags over environment over file over defaults, each value with its origin.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::defaults::{self, DEFAULTS};
use super::raw_settings::{RawSettings, SETTINGS, SettingNames, setting};

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The command line.
    Flag,
    /// The environment.
    Variable,
    /// The configuration file, at this line.
    File(Arc<Path>, u64),
    /// A built-in default.
    Default,
    /// The admin port, at run time.
    AdminPort,
}

/// One text as typed; a list has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourcedText {
    pub(super) text: String,
    pub(super) origin: SettingOrigin,
}

/// A setting's value as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SettingValue {
    pub(super) texts: Vec<SourcedText>,
    pub(super) origin: SettingOrigin,
}

impl SettingValue {
    pub(super) fn single(text: impl Into<String>, place: &SettingOrigin) -> Self {
        Self { texts: vec![SourcedText { text: text.into(), origin: place.clone() }], origin: place.clone() }
    }
}

/// One layer, or several merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsLayer(BTreeMap<&'static str, SettingValue>);

impl SettingsLayer {
    /// The built-in defaults.
    pub(super) fn defaults() -> Self {
        let workers = ("workers", &*defaults::workers().to_string());
        let all = DEFAULTS.iter().copied().chain([workers]);
        Self(all.map(|(key, text)| (key, SettingValue::single(text, &SettingOrigin::Default))).collect())
    }

    /// The command line's settings.
    pub(super) fn from_flags(typed: &RawSettings) -> Self {
        let Ok(Value::Object(fields)) = serde_json::to_value(typed) else { return Self::default() };
        let given = |value: &Value| {
            let texts: Vec<String> = match value {
                Value::Null => return None,
                Value::Array(list) if list.is_empty() => return None,
                Value::Array(list) => list.iter().map(value_text).collect(),
                one => vec![value_text(one)],
            };
            let texts = texts.into_iter().map(|text| SourcedText { text, origin: SettingOrigin::Flag }).collect();
            Some(SettingValue { texts, origin: SettingOrigin::Flag })
        };
        Self(SETTINGS.iter().filter_map(|setting| Some((&*setting.key, given(fields.get(&setting.key)?)?))).collect())
    }

    pub(super) fn set(&mut self, setting: &'static SettingNames, given: SettingValue) {
        self.0.insert(&setting.key, given);
    }

    /// Merges this layer over another. Values are replaced as a whole, so a list replaces a list.
    pub(super) fn layered_over(self, mut under: Self) -> Self {
        under.0.extend(self.0);
        under
    }

    /// Takes over the values that `earlier` has of these settings, which stay in force.
    pub fn hold(&mut self, earlier: &Self, keys: &[&str]) {
        self.0.retain(|key, _| !keys.contains(key));
        let held = earlier.0.iter().filter(|(key, _)| keys.contains(key));
        self.0.extend(held.map(|(key, value)| (*key, value.clone())));
    }

    /// Sets a value at run time.
    pub fn set_at_run_time(&mut self, key: &str, text: impl Into<String>) {
        if let Some(setting) = setting(key) {
            self.set(setting, SettingValue::single(text, &SettingOrigin::AdminPort));
        }
    }

    /// The value of `key`.
    pub(super) fn value(&self, key: &str) -> Option<&SettingValue> {
        self.0.get(key)
    }

    /// The origin of the value of `key`.
    pub(super) fn origin(&self, key: &str) -> SettingOrigin {
        self.value(key).map_or(SettingOrigin::Default, |given| given.origin.clone())
    }
}

fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
