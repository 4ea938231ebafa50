//! The layer of the configuration file: YAML, one mapping of settings, every value with its line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::error::{Problem, nearest};
use super::layer::{Given, Place, Settings, Text};
use super::typed::{SETTINGS, Setting, setting};
use super::yaml;

/// Reads the text of the file at `path`. A key without a value (`provider:`) is not set.
///
/// # Errors
/// The first thing that is not YAML or not a value, or every key that is not a setting.
pub(super) fn read(path: &Path, text: &str) -> Result<Settings, Vec<Problem>> {
    let path: Arc<Path> = path.into();
    let at = |line| Place::File(Arc::clone(&path), line);
    let file: File = yaml::read(text, "settings, as in `listen: 127.0.0.1:8080`")
        .map_err(|(line, said)| vec![Problem::at(at(line), said)])?;
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    for Entry { key, line, texts } in file.0 {
        let Some(setting) = setting(&key) else {
            let nearest = nearest(&key.replace('-', "_"), SETTINGS.iter().map(|setting| &*setting.key));
            let said = unknown(&key, nearest, "`streamgauge config schema` lists the keys");
            problems.push(Problem::at(at(line), said));
            continue;
        };
        if let Some(texts) = texts {
            let text = |(text, own): (String, Option<u64>)| Text { text, place: at(own.unwrap_or(line)) };
            settings.set(setting, Given { texts: texts.into_iter().map(text).collect(), place: at(line) });
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(problems) }
}

/// A key that is none, with the nearest that is; else with the remedy.
fn unknown(key: &str, nearest: Option<&str>, remedy: &str) -> String {
    let remedy = nearest.map_or(remedy.to_owned(), |nearest| format!("did you mean `{nearest}`?"));
    format!("unknown key `{}`; {remedy}", key.escape_debug())
}

/// The file as it stands.
struct File(Vec<Entry>);

struct Entry {
    key: String,
    line: u64,
    texts: Option<Texts>,
}

/// Texts with their lines, where these are not that of the key.
type Texts = Vec<(String, Option<u64>)>;

impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(yaml: D) -> Result<Self, D::Error> {
        yaml.deserialize_map(FileVisitor)
    }
}

struct FileVisitor;

impl<'de> Visitor<'de> for FileVisitor {
    type Value = File;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let line = key.referenced.line();
            let texts = match setting(&key.value) {
                None => map.next_value::<IgnoredAny>().map(|_| None)?,
                Some(Setting { list: true, pair, .. }) => map.next_value_seed(List(*pair))?,
                // As text whatever it looks like, so that `007` stays what it is.
                Some(_) => map.next_value::<Option<String>>()?.map(|text| vec![(text, None)]),
            };
            entries.push(Entry { key: key.value, line, texts });
        }
        Ok(File(entries))
    }
}

/// One text or a list of them; an entry may be a mapping of these two keys.
struct List(Option<[&'static str; 2]>);

impl<'de> DeserializeSeed<'de> for List {
    type Value = Option<Texts>;

    fn deserialize<D: Deserializer<'de>>(self, yaml: D) -> Result<Option<Texts>, D::Error> {
        yaml.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for List {
    type Value = Option<Texts>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_unit<E>(self) -> Result<Option<Texts>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Option<Texts>, E> {
        Ok(Some(vec![(text.to_owned(), None)]))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Option<Texts>, A::Error> {
        Err(A::Error::custom(yaml::ONE_VALUE))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Option<Texts>, A::Error> {
        let mut texts = Vec::new();
        let Some(keys) = self.0 else {
            while let Some(text) = sequence.next_element::<Spanned<String>>()? {
                texts.push((text.value, Some(text.referenced.line())));
            }
            return Ok(Some(texts));
        };
        while let Some(item) = sequence.next_element::<Spanned<Item>>()? {
            let text = match item.value {
                Item::Text(text) => text,
                Item::Pair(mut pair) => {
                    let expected = format!("expected the keys `{}` and `{}`", keys[0], keys[1]);
                    if let Some(key) = pair.keys().find(|key| !keys.contains(&key.as_str())) {
                        let said = unknown(key, nearest(key, keys.into_iter()), &expected);
                        return Err(A::Error::custom(said));
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

/// An entry of a list that may hold mappings.
#[derive(Deserialize)]
#[serde(untagged)]
enum Item {
    Text(String),
    Pair(BTreeMap<String, String>),
}
