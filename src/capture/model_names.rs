//! Which model names the capture writes.
//!
//! Clients can send any text as a model name. A name is written only after a server has answered a minimum number of
//! requests for it with success (default 1). It is then the server's name and not free text. Before that, and beyond
//! 1,024 names, a row contains [`OTHER_MODEL`]. Rows already written do not change. If the name is a path, only its
//! last segment is written.

use crate::measure::request_class::OTHER;
use ahash::AHashMap;

/// Written instead of a name that is not published.
pub const OTHER_MODEL: &str = OTHER;
/// Distinct names that are tracked.
const MAX_MODEL_NAMES: usize = 1_024;

/// Counts the successes per model name.
pub struct ModelNames {
    min_successes: usize,
    seen: AHashMap<String, ModelNameStats>,
}

struct ModelNameStats {
    successes: usize,
    /// Written once the name has enough successes.
    published_name: Box<str>,
}

impl ModelNames {
    /// Publishes a name from its `needed`th success on.
    pub fn new(needed: usize) -> Self {
        Self { min_successes: needed, seen: AHashMap::new() }
    }

    /// The text to write for `name`; `success` counts this request's reply.
    pub fn resolve(&mut self, name: &str, success: bool) -> String {
        if !success {
            let known = self.seen.get(name).filter(|seen| seen.successes >= self.min_successes);
            return known.map_or(OTHER_MODEL, |seen| &seen.published_name).to_owned();
        }
        let full = self.seen.len() == MAX_MODEL_NAMES;
        let seen = match self.seen.get_mut(name) {
            Some(seen) => seen,
            None if full => return OTHER_MODEL.to_owned(),
            None => {
                let new = ModelNameStats { successes: 0, published_name: shorten(name).into() };
                self.seen.entry(name.to_owned()).or_insert(new)
            }
        };
        seen.successes = seen.successes.saturating_add(1);
        if seen.successes >= self.min_successes { (*seen.published_name).to_owned() } else { OTHER_MODEL.to_owned() }
    }
}

/// Returns hub names (`organisation/model`) unchanged, and the last segment of a path, because directory names are
/// private.
pub fn shorten(name: &str) -> &str {
    let places = |letter: u8| memchr::memchr_iter(letter, name.as_bytes());
    // Two of a URL's slashes follow its colon.
    let is_path = name.starts_with(['/', '.', '~'])
        || name.starts_with("arn:")
        || places(b'\\').next().is_some()
        || places(b'/').nth(1).is_some();
    if !is_path {
        return name;
    }
    name.rsplit(['/', '\\']).find(|segment| !segment.is_empty()).unwrap_or(OTHER_MODEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_once_a_server_has_known_it_often_enough() {
        let mut names = ModelNames::new(1);
        assert_eq!(names.resolve("typed by a person", false), OTHER_MODEL);
        assert_eq!(names.resolve("m", true), "m");
        assert_eq!(names.resolve("m", false), "m");
        let mut names = ModelNames::new(3);
        assert_eq!([(); 4].map(|()| names.resolve("m", true)), [OTHER_MODEL, OTHER_MODEL, "m", "m"]);
    }

    #[test]
    fn of_a_path_the_last_segment_is_kept() {
        for (name, expected) in [
            ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
            ("qwen3:8b", "qwen3:8b"),
            ("alice/qwen3:8b", "alice/qwen3:8b"),
            ("arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.qwen3", "us.qwen3"),
            ("/data/alice/models/llama", "llama"),
            ("/data/alice/models/", "models"),
            ("~/llama", "llama"),
            ("./secret/llama", "llama"),
            ("C:\\Users\\alice\\llama", "llama"),
            ("s3://bucket/team/llama", "llama"),
            ("team/alice/llama", "llama"),
            ("//", OTHER_MODEL),
        ] {
            assert_eq!(shorten(name), expected);
        }
    }

    #[test]
    fn names_are_bounded() {
        let mut names = ModelNames::new(1);
        for n in 0..MAX_MODEL_NAMES {
            names.resolve(&n.to_string(), true);
        }
        assert_eq!(names.resolve("one more", true), OTHER_MODEL);
        assert_eq!(names.resolve("7", true), "7");
    }
}
