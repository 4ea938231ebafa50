//! Every wire vector means what its expectation says, however its bytes are cut.

#![expect(clippy::unwrap_used, reason = "clippy knows tests by their attribute, and these have helpers")]

use std::path::PathBuf;

use serde_json::Value;
use streamgauge::cli::inspect::{Exchange, inspect};
use streamgauge::measure::dialect;

/// The keys of an expectation that are an answer of `inspect --json`.
const KEYS: [&str; 18] = [
    "dialect",
    "events",
    "comments",
    "first_token_event",
    "first_evidence_event",
    "first_output_event",
    "last_token_event",
    "token_events",
    "evidence_events",
    "output_tokens",
    "output_tokens_from",
    "tokens_by_event",
    "input_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "finish",
    "error",
    "complete",
];

struct Vector {
    name: String,
    body: Vec<u8>,
    expect: Value,
}

fn vectors() -> Vec<Vector> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let mut vectors = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".expect.json")) else {
            continue;
        };
        let expect: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let body = std::fs::read(folder.join(expect["vector"].as_str().unwrap())).unwrap();
        vectors.push(Vector { name: name.to_owned(), body, expect });
    }
    assert!(vectors.len() >= 28, "only {} vectors under {}", vectors.len(), folder.display());
    vectors
}

impl Vector {
    fn answer(&self, reads: &[&[u8]]) -> Value {
        let request = self.expect["request"]["body"].to_string();
        let path = self.expect["request"]["path"].as_str().unwrap();
        let exchange = Exchange {
            dialect: dialect::for_path(path.split('?').next().unwrap()),
            request: request.as_bytes(),
            content_type: self.expect["content_type"].as_str().unwrap(),
            content_encoding: self.expect["content_encoding"].as_str().unwrap_or(""),
        };
        serde_json::to_value(inspect(&exchange, reads.iter().copied()).0).unwrap()
    }

    fn check(&self, reads: &[&[u8]], cut: &str) {
        let answer = self.answer(reads);
        assert_eq!(answer.as_object().unwrap().len(), KEYS.len(), "the keys of inspect --json are a contract");
        for key in KEYS {
            assert_eq!(answer[key], self.expect[key], "{} of {}, {cut}", key, self.name);
        }
    }
}

#[test]
fn every_vector_means_what_it_should_when_fed_whole() {
    for vector in vectors() {
        vector.check(&[&vector.body], "whole");
    }
}

#[test]
fn every_vector_means_the_same_byte_by_byte() {
    for vector in vectors() {
        let bytes: Vec<&[u8]> = vector.body.chunks(1).collect();
        vector.check(&bytes, "byte by byte");
    }
}

#[test]
fn every_vector_means_the_same_by_its_segments() {
    let mut segmented = 0;
    for vector in vectors() {
        let Some(segments) = vector.expect["segments"].as_array() else { continue };
        segmented += 1;
        let mut rest = &vector.body[..];
        let mut reads = Vec::new();
        for length in segments {
            let (read, tail) = rest.split_at(length.as_u64().unwrap() as usize);
            reads.push(read);
            rest = tail;
        }
        assert!(rest.is_empty(), "{}: the segments do not add up", vector.name);
        vector.check(&reads, "by segments");
    }
    assert!(segmented >= 3);
}

#[test]
fn every_vector_means_the_same_when_cut_in_two_anywhere() {
    for vector in vectors() {
        for at in 0..=vector.body.len() {
            let (first, second) = vector.body.split_at(at);
            vector.check(&[first, second], &format!("cut at {at}"));
        }
    }
}

#[test]
fn every_vector_means_the_same_under_random_cuts() {
    use proptest::prelude::*;
    let vectors = vectors();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(400));
    let strategy = (0..vectors.len(), proptest::collection::vec(any::<prop::sample::Index>(), 0..20));
    runner
        .run(&strategy, |(which, cuts)| {
            let vector = &vectors[which];
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(vector.body.len() + 1)).collect();
            cuts.sort_unstable();
            let mut reads = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([vector.body.len()]) {
                reads.push(&vector.body[from..cut]);
                from = cut;
            }
            vector.check(&reads, "random cuts");
            Ok(())
        })
        .unwrap();
}
