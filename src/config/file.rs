//! The configuration file layer: YAML, one mapping of settings, each value with its line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::error::{ConfigProblem, closest_match};
use super::layer::{SettingOrigin, SettingValue, SettingsLayer, SourcedText};
use super::raw_settings::{SETTINGS, SettingNames, setting};
use super::yaml;

/// Parses the file's text. A key without a value (`provider:`) is unset.
///
/// # Errors
/// The first YAML or value error, or else every unknown key.
pub(super) fn read(path: &Path, text: &str) -> Result<SettingsLayer, Vec<ConfigProblem>> {
    let path: Arc<Path> = path.into();
    let at = |line| SettingOrigin::File(Arc::clone(&path), line);
    let file: ConfigFile = yaml::read(text, "settings, as in `listen: 127.0.0.1:8080`")
        .map_err(|(line, message)| vec![ConfigProblem::at_origin(at(line), message)])?;
    let (mut settings, mut problems) = (SettingsLayer::default(), Vec::new());
    for ConfigEntry { key, line, texts } in file.0 {
        let Some(setting) = setting(&key) else {
            let nearest = closest_match(&key.replace('-', "_"), SETTINGS.iter().map(|setting| &*setting.key));
            let message = unknown(&key, nearest, "`streamgauge config schema` lists the keys");
            problems.push(ConfigProblem::at_origin(at(line), message));
            continue;
        };
        if let Some(texts) = texts {
            let text = |(text, own): (String, Option<u64>)| SourcedText { text, origin: at(own.unwrap_or(line)) };
            settings.set(setting, SettingValue { texts: texts.into_iter().map(text).collect(), origin: at(line) });
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(problems) }
}

/// Error for an unknown key, with the nearest known key or else `remedy`.
fn unknown(key: &str, nearest: Option<&str>, remedy: &str) -> String {
    let remedy = nearest.map_or(remedy.to_owned(), |nearest| format!("did you mean `{nearest}`?"));
    format!("unknown key `{}`; {remedy}", key.escape_debug())
}

/// The file's entries, in order.
struct ConfigFile(Vec<ConfigEntry>);

struct ConfigEntry {
    key: String,
    line: u64,
    texts: Option<ListTexts>,
}

/// Texts with their lines, if these differ from the key's.
type ListTexts = Vec<(String, Option<u64>)>;

impl<'de> Deserialize<'de> for ConfigFile {
    fn deserialize<D: Deserializer<'de>>(yaml: D) -> Result<Self, D::Error> {
        yaml.deserialize_map(ConfigFileVisitor)
    }
}

struct ConfigFileVisitor;

impl<'de> Visitor<'de> for ConfigFileVisitor {
    type Value = ConfigFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigFile, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let line = key.referenced.line();
            let texts = match setting(&key.value) {
                None => map.next_value::<IgnoredAny>().map(|_| None)?,
                Some(SettingNames { list: true, pair, .. }) => map.next_value_seed(ListSeed(*pair))?,
                // Read as text, so that `007` keeps its zeros.
                Some(_) => map.next_value::<Option<String>>()?.map(|text| vec![(text, None)]),
            };
            entries.push(ConfigEntry { key: key.value, line, texts });
        }
        Ok(ConfigFile(entries))
    }
}

/// One text or a list of texts; list entries may be mappings of these two keys.
struct ListSeed(Option<[&'static str; 2]>);

impl<'de> DeserializeSeed<'de> for ListSeed {
    type Value = Option<ListTexts>;

    fn deserialize<D: Deserializer<'de>>(self, yaml: D) -> Result<Option<ListTexts>, D::Error> {
        yaml.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListSeed {
    type Value = Option<ListTexts>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_unit<E>(self) -> Result<Option<ListTexts>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<ListTexts>, E> {
        Ok(Some(vec![(text.to_owned(), None)]))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Option<ListTexts>, A::Error> {
        Err(A::Error::custom(yaml::ONE_VALUE))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Option<ListTexts>, A::Error> {
        let mut texts = Vec::new();
        let Some(keys) = self.0 else {
            while let Some(text) = sequence.next_element::<Spanned<String>>()? {
                texts.push((text.value, Some(text.referenced.line())));
            }
            return Ok(Some(texts));
        };
        while let Some(item) = sequence.next_element::<Spanned<ListItem>>()? {
            let text = match item.value {
                ListItem::Text(text) => text,
                ListItem::Pair(mut pair) => {
                    let expected = format!("expected the keys `{}` and `{}`", keys[0], keys[1]);
                    if let Some(key) = pair.keys().find(|key| !keys.contains(&key.as_str())) {
                        let message = unknown(key, closest_match(key, keys.into_iter()), &expected);
                        return Err(A::Error::custom(message));
                    }
                    if pair.len() < keys.len() {
                        return Err(A::Error::custom(expected));
                    }
                    keys.map(|key| pair.remove(key).unwrap_or_default()).join("=")
                }
            };
            texts.push((text, Some(item.referenced.line())));
        }
        Ok(Some(texts))
    }
}

/// An entry of such a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum ListItem {
    Text(String),
    Pair(BTreeMap<String, String>),
}
