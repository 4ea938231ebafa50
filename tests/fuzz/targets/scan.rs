//! One JSON document read as it passes: any split gives the same scalars, and they are those that the walk finds.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::measure::json_scanner::{DocumentState, JsonScanner, Scalar, ScanFields};
use streamgauge_fuzz::measure::json_walker::JsonWalker;
use streamgauge_fuzz::split::same;

/// (path, element of the outermost array, scalar)
type Found = Vec<(Vec<u8>, u32, Owned)>;

/// Bytes of a string that are kept.
const MAX_STRING_BYTES: usize = 256;

#[derive(Debug, PartialEq)]
enum Owned {
    String(Vec<u8>),
    Number(String),
    Bool(bool),
    Null,
}

#[derive(Default)]
struct Everything(Found);

impl ScanFields for Everything {
    fn wants(&self, _: &[u8]) -> bool {
        true
    }

    fn is_prefix_of_wanted(&self, _: &[u8]) -> bool {
        true
    }
    fn scalar(&mut self, path: &[u8], index: u32, scalar: Scalar<'_>) {
        let _read = (scalar.as_u64(), scalar.as_f64(), scalar.as_bool(), scalar.to_text());
        let scalar = match scalar {
            Scalar::String(raw) => Owned::String(raw.to_vec()),
            Scalar::Number(text) => Owned::Number(text.to_owned()),
            Scalar::Bool(value) => Owned::Bool(value),
            Scalar::Null => Owned::Null,
        };
        self.0.push((path.to_vec(), index, scalar));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (found, document) = same(bytes, |pieces| {
        let (mut scan, mut all) = (JsonScanner::default(), Everything::default());
        for piece in pieces {
            scan.push(piece, &mut all);
        }
        (all.0, scan.document())
    });
    if serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() {
        assert_eq!(document, DocumentState::Whole);
        // serde_json does not check the text of skipped values. A number that is the whole document ends with it.
        let walk = JsonWalker::new(bytes).filter(|_| matches!(bytes.trim_ascii().first(), Some(b'{' | b'[')));
        let mut walked = Vec::new();
        if let Some(mut walk) = walk
            && flatten(&mut walk, &mut Vec::new(), None, &mut walked).is_some()
        {
            assert_eq!(found.len(), walked.len());
            found.iter().zip(&walked).for_each(|(found, walked)| assert!(fits(found, walked), "{found:?}\n{walked:?}"));
        }
    }
});

/// True if they are the same. A long string is cut where it is still text: half an escaped pair of eleven bytes is the
/// most that goes.
fn fits(found: &(Vec<u8>, u32, Owned), walked: &(Vec<u8>, u32, Owned)) -> bool {
    match (&found.2, &walked.2) {
        (Owned::String(short), Owned::String(long)) if long.len() == MAX_STRING_BYTES => {
            (&found.0, found.1) == (&walked.0, walked.1)
                && long.starts_with(short)
                && short.len() >= MAX_STRING_BYTES - 11
        }
        _ => found == walked,
    }
}

/// The scalars whose path is short enough to be named.
fn flatten(walk: &mut JsonWalker<'_>, path: &mut Vec<String>, element: Option<u32>, found: &mut Found) -> Option<()> {
    let index = element.unwrap_or(0);
    if walk.is_object() {
        return walk.object(|key, walk| {
            path.push(String::from_utf8(key.to_vec()).ok()?);
            flatten(walk, path, element, found)?;
            path.pop();
            Some(())
        });
    }
    let raw = walk.raw()?;
    if raw.starts_with('[') {
        path.push("[]".to_owned());
        let mut at = 0;
        JsonWalker::new(raw.as_bytes())?.array(|walk| {
            flatten(walk, path, element.or(Some(at)), found)?;
            at += 1;
            Some(())
        })?;
        path.pop();
        return Some(());
    }
    let named = name(path);
    if path.len() <= 6 && named.len() <= 96 {
        let scalar = match raw.as_bytes() {
            [b'"', inside @ .., b'"'] => Owned::String(inside[..inside.len().min(MAX_STRING_BYTES)].to_vec()),
            b"true" | b"false" => Owned::Bool(raw == "true"),
            b"null" => Owned::Null,
            _ if raw.len() > MAX_STRING_BYTES => return None,
            _ => Owned::Number(raw.to_owned()),
        };
        found.push((named.into_bytes(), index, scalar));
    }
    Some(())
}

fn name(path: &[String]) -> String {
    let mut name = String::new();
    for step in path {
        if !name.is_empty() && step != "[]" {
            name.push('.');
        }
        name.push_str(step);
    }
    name
}
