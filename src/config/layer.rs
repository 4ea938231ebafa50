//! Layers of settings: flags over environment over file over defaults, each value with its place.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::defaults::{self, DEFAULTS};
use super::typed::{SETTINGS, Setting, Typed};

/// Where a value was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the command line.
    Flag,
    /// In the environment.
    Variable,
    /// In the configuration file, on that line.
    File(Arc<Path>, u64),
    /// Nowhere.
    Default,
}

/// One text as it was typed; a list has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) place: Place,
}

/// What was typed for one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) texts: Vec<Text>,
    pub(super) place: Place,
}

impl Given {
    pub(super) fn one(text: impl Into<String>, place: &Place) -> Self {
        Self { texts: vec![Text { text: text.into(), place: place.clone() }], place: place.clone() }
    }
}

/// One layer, or several merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<&'static str, Given>);

impl Settings {
    /// What is built in.
    pub(super) fn defaults() -> Self {
        let workers = ("workers", &*defaults::workers().to_string());
        let all = DEFAULTS.iter().copied().chain([workers]);
        Self(all.map(|(key, text)| (key, Given::one(text, &Place::Default))).collect())
    }

    /// What was typed on the command line.
    pub(super) fn of_flags(typed: &Typed) -> Self {
        let Ok(Value::Object(fields)) = serde_json::to_value(typed) else { return Self::default() };
        let given = |value: &Value| {
            let texts: Vec<String> = match value {
                Value::Null => return None,
                Value::Array(list) if list.is_empty() => return None,
                Value::Array(list) => list.iter().map(text_of).collect(),
                one => vec![text_of(one)],
            };
            let texts = texts.into_iter().map(|text| Text { text, place: Place::Flag }).collect();
            Some(Given { texts, place: Place::Flag })
        };
        Self(SETTINGS.iter().filter_map(|setting| Some((&*setting.key, given(fields.get(&setting.key)?)?))).collect())
    }

    /// Sets one key of this layer.
    pub(super) fn set(&mut self, setting: &'static Setting, given: Given) {
        self.0.insert(&setting.key, given);
    }

    /// This layer on top of another: whole values, so that a list replaces a list.
    pub(super) fn over(self, mut under: Self) -> Self {
        under.0.extend(self.0);
        under
    }

    /// What was typed for `key`.
    pub(super) fn given(&self, key: &str) -> Option<&Given> {
        self.0.get(key)
    }

    /// Where the value of `key` was typed.
    pub(super) fn place(&self, key: &str) -> Place {
        self.given(key).map_or(Place::Default, |given| given.place.clone())
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
