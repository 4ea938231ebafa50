//! A matrix: a YAML list of rows, each a level with a name. Its keys are `name`, `hypothesis`, `expect`, `baseline`,
//! `cache`, and the flags of
//! `load` (of `replay` where there is a trace) without their dashes.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_saphyr::Spanned;

use super::level_args::matrix_row_flags;
use crate::config::{closest_match, yaml};
use crate::report::sweep::expectation::Expectation;
use crate::report::sweep::file::{CacheState, SweepLevel};

/// Keys that are no flags.
const NON_FLAG_KEYS: [&str; 5] = ["name", "hypothesis", "expect", "baseline", "cache"];
/// Characters of a name, which is a folder's too.
const MAX_NAME_CHARS: usize = 60;

/// Advice for a key that has a list.
const ONE_VALUE_HINT: &str = "takes one value; write a row for each";

/// Reads the rows of a file.
///
/// # Errors
/// The first thing that is wrong, with its place and the remedy.
pub(super) fn read(path: &Path, with_trace: bool) -> Result<Vec<SweepLevel>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    rows(&text, with_trace).map_err(|(line, message)| format!("{}:{line}: {message}", path.display()))
}

fn rows(text: &str, with_trace: bool) -> Result<Vec<SweepLevel>, (u64, String)> {
    let rows: Vec<MatrixRow> = yaml::read(text, "a list of rows, as in `- {name: short, isl: 128, rate: 4}`")?;
    let known = matrix_row_flags(with_trace);
    let mut levels: Vec<SweepLevel> = Vec::new();
    for MatrixRow(entries) in rows {
        let line = entries.first().map_or(1, |entry| entry.line);
        let level = level(entries, &known)?;
        if levels.iter().any(|other| other.name == level.name) {
            return Err((line, format!("a second row is named `{}`; give each a name of its own", level.name)));
        }
        levels.push(level);
    }
    let (baselines, needed) = (levels.iter().filter(|level| level.baseline).count(), levels.iter().any(needs_baseline));
    match baselines {
        _ if levels.is_empty() => Err((1, "there are no rows".to_owned())),
        0 if needed => Err((1, "an `expect` names the baseline, and no row has `baseline: true`".to_owned())),
        0 | 1 => Ok(levels),
        _ => Err((1, "several rows have `baseline: true`; keep one".to_owned())),
    }
}

fn needs_baseline(level: &SweepLevel) -> bool {
    let expectation = level.expect.as_ref().and_then(|text| text.parse::<Expectation>().ok());
    expectation.is_some_and(|expectation| expectation.needs_baseline())
}

fn level(entries: Vec<MatrixEntry>, known: &[(String, bool)]) -> Result<SweepLevel, (u64, String)> {
    let mut level = SweepLevel::default();
    let first = entries.first().map_or(1, |entry| entry.line);
    for MatrixEntry { key, line, text } in entries {
        let wrong = |message: String| (line, message);
        let flag = flag_name(&key);
        match &*flag {
            "name" => level.name = name(text).map_err(wrong)?,
            "hypothesis" => level.hypothesis = Some(text),
            "expect" => {
                text.parse::<Expectation>().map_err(wrong)?;
                level.expect = Some(text);
            }
            "baseline" if text == "true" => level.baseline = true,
            "baseline" if text == "false" => {}
            "baseline" => return Err(wrong("expected `true` or `false` for `baseline`".to_owned())),
            "cache" if text == "cold" => level.cache = CacheState::Cold,
            "cache" if text == "warm" => level.cache = CacheState::Warm,
            "cache" => return Err(wrong("expected `cold` or `warm` for `cache`".to_owned())),
            "rate" => level.rate = Some(text.parse().map_err(|_| wrong("expected a number for `rate`".to_owned()))?),
            "concurrency" => {
                let slots = text.parse().map_err(|_| wrong("expected a whole number for `concurrency`".to_owned()))?;
                level.concurrency = Some(slots);
            }
            _ => match known.iter().find(|(name, _)| *name == flag) {
                Some((_, true)) => _ = level.flags.insert(flag, vec![text]),
                Some((_, false)) if text == "true" => _ = level.flags.insert(flag, Vec::new()),
                Some((_, false)) if text == "false" => {}
                Some(_) => return Err(wrong(format!("expected `true` or `false` for `{flag}`"))),
                None => return Err(wrong(unknown(&key, known))),
            },
        }
    }
    if level.name.is_empty() {
        return Err((first, "a row has no name: give it one, as in `name: short-prompts`".to_owned()));
    }
    if level.rate.is_some() == level.concurrency.is_some() {
        return Err((first, format!("`{}` needs either a `rate` or a `concurrency`", level.name)));
    }
    if level.cache == CacheState::Warm && !level.flags.contains_key("shared-prefix") {
        let message = format!("`{}` has nothing to warm: `cache: warm` is for a `shared-prefix`", level.name);
        return Err((first, message));
    }
    Ok(level)
}

fn name(text: String) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let good =
        text.chars().all(fits) && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= MAX_NAME_CHARS;
    if good {
        Ok(text)
    } else {
        Err(format!("expected a name of letters, digits, `-`, `_` and `.` ({MAX_NAME_CHARS} at most)"))
    }
}

/// `ISL` and `shared_prefix` as flags have them.
fn flag_name(key: &str) -> String {
    key.replace('_', "-").to_ascii_lowercase()
}

fn unknown(key: &str, known: &[(String, bool)]) -> String {
    let names = || NON_FLAG_KEYS.into_iter().chain(known.iter().map(|(name, _)| &**name));
    let key = key.chars().take(MAX_NAME_CHARS).collect::<String>();
    match closest_match(&flag_name(&key), names()) {
        Some(nearest) => format!("unknown key `{}`; did you mean `{nearest}`?", key.escape_debug()),
        None => {
            format!("unknown key `{}`; the keys are {}", key.escape_debug(), names().collect::<Vec<_>>().join(", "))
        }
    }
}

/// A row as it stands.
struct MatrixRow(Vec<MatrixEntry>);

struct MatrixEntry {
    key: String,
    line: u64,
    text: String,
}

impl<'de> Deserialize<'de> for MatrixRow {
    fn deserialize<D: Deserializer<'de>>(yaml: D) -> Result<Self, D::Error> {
        yaml.deserialize_map(MatrixRowVisitor)
    }
}

struct MatrixRowVisitor;

impl<'de> Visitor<'de> for MatrixRowVisitor {
    type Value = MatrixRow;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row of keys and values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MatrixRow, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let line = key.referenced.line();
            // As text whatever it looks like: the flag reads it.
            let text = map.next_value::<Option<String>>().map_err(|_| {
                let key: String = key.value.chars().take(MAX_NAME_CHARS).collect();
                serde::de::Error::custom(format!("`{}` {ONE_VALUE_HINT}", key.escape_debug()))
            })?;
            let text = text.unwrap_or_default();
            entries.push(MatrixEntry { key: key.value, line, text });
        }
        Ok(MatrixRow(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_level_with_a_name_and_flags_of_its_own() {
        let text = "- {name: short, hypothesis: prefill is cheap, ISL: 128, no_stream: true, rate: 4}\n\
                    - name: shared\n  shared-prefix: 1000\n  cache: warm\n  concurrency: 8\n";
        let rows = rows(text, false).unwrap();
        let flags = |row: &SweepLevel| row.flags.clone().into_iter().collect::<Vec<_>>();
        assert_eq!((&*rows[0].name, rows[0].rate, rows[0].concurrency), ("short", Some(4.0), None));
        assert_eq!(rows[0].hypothesis.as_deref(), Some("prefill is cheap"));
        assert_eq!(flags(&rows[0]), [("isl".to_owned(), vec!["128".to_owned()]), ("no-stream".to_owned(), vec![])]);
        assert_eq!((rows[1].cache, rows[1].concurrency), (CacheState::Warm, Some(8)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_the_remedy() {
        let error = |text: &str| rows(text, false).unwrap_err();
        let (line, message) = error("- name: a\n  rate: 1\n  oslo: 5\n");
        assert_eq!((line, &*message), (3, "unknown key `oslo`; did you mean `osl`?"));
        assert!(
            error("- {name: a, rate: 1, colour: red}")
                .1
                .contains("the keys are name, hypothesis, expect, baseline, cache, ")
        );
        assert!(error("- {name: a, rate: 1, target: x}").1.contains("unknown key `target`"));
        assert!(error("- {name: a, rate: 1}\n- {name: a, rate: 2}").1.contains("a second row is named `a`"));
        assert!(error("- {rate: 1}").1.contains("has no name"));
        assert!(error("- {name: ../a, rate: 1}").1.contains("a name of letters"));
        assert!(error("- {name: a}").1.contains("either a `rate` or a `concurrency`"));
        assert!(error("- {name: a, rate: 1, concurrency: 1}").1.contains("either"));
        assert!(error("- {name: a, rate: 1, cache: warm}").1.contains("nothing to warm"));
        assert!(error("- {name: a, rate: 1, cache: hot}").1.contains("`cold` or `warm`"));
        assert!(error("- {name: a, rate: 1, no-stream: yes please}").1.contains("`true` or `false`"));
        let list = "`isl` takes one value; write a row for each";
        assert_eq!(error("- {name: a, rate: 1}\n- name: b\n  rate: 1\n  isl: [16, 32]\n").1, list);
        assert!(error("- {name: a, stages: 5@2s}").1.contains("unknown key `stages`"), "a level has one load");
        assert!(error("name: a").1.contains("expected a list of rows"));
        let twice = "this key is set a second time; keep one";
        assert_eq!(error("- name: a\n  rate: 1\n  rate: 2\n"), (3, twice.to_owned()));
        assert!(error("[]").1.contains("no rows"));
        let expecting = "- {name: a, rate: 1, expect: 'ttft.p95 < baseline + 10%'}\n";
        assert!(error(expecting).1.contains("no row has `baseline: true`"));
        assert!(
            error("- {name: a, rate: 1, expect: fast}").1.starts_with("expected `<=`, `<`, `>=` or `>` after `fast`")
        );
        assert!(error("- {name: a, rate: 1, baseline: 1}").1.contains("`true` or `false`"));
        let two = "- {name: b, rate: 1, baseline: true}\n- {name: c, rate: 1, baseline: true}\n";
        assert!(error(two).1.contains("several rows"));
        let rows = rows(&format!("{expecting}- {{name: b, rate: 1, baseline: true}}\n"), false).unwrap();
        assert_eq!((rows[0].expect.as_deref(), rows[1].baseline), (Some("ttft.p95 < baseline + 10%"), true));
    }
}
