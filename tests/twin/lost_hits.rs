//! `trace reuse` on simulated fleets, beside the truth: what equal fleets with endless caches, or other routing, really cache.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::{PromptShape, TraceEntry};

use crate::command::ok;
use crate::traffic::SCHEME;

const SESSIONS: u64 = 300;
const TURNS: u64 = 5;
/// Cache of a replica that never evicts here, in blocks.
const ENDLESS: u64 = 1_000_000;
/// Caches of a replica that hold about a fifth, and two fifths, of what its sessions have sent.
const SMALL: [u64; 2] = [1_500, 3_000];

/// Conversations of ten families, each with a system prompt of its own. Five turns come half a minute apart, and many
/// sessions are under way at once.
fn conversations() -> Vec<TraceEntry> {
    let mut random = StdRng::seed_from_u64(5);
    let mut rows = Vec::new();
    for session in 0..SESSIONS {
        let start = random.random_range(0.0..120.0);
        for turn in 0..TURNS {
            let at = start + 30.0 * turn as f64 + random.random_range(0.0..5.0);
            let system = (0..8).map(|block| 1 << 40 | (session % 10) << 8 | block);
            let own = (0..10 + 12 * turn).map(|block| session << 8 | block);
            let blocks: Vec<u64> = system.chain(own).collect();
            // An engine computes at least the last token of a prompt.
            let tokens = Some(16 * blocks.len() as u64 + 1);
            rows.push(TraceEntry {
                at: (at * 1e9) as u64,
                model: Some("m".to_owned()),
                stream: Some(true),
                prompt: PromptShape { tokens, blocks, ..PromptShape::default() },
                session: Some(format!("s{session}")),
                output_tokens: Some(20),
                ..TraceEntry::default()
            });
        }
    }
    rows.sort_by_key(|row| row.at);
    rows
}

fn write(path: &Path, rows: &[TraceEntry]) {
    let header = TraceHeader { blocks: Some(SCHEME), ..TraceHeader::new("test") };
    let lines = [serde_json::to_string(&header).unwrap()].into_iter();
    let lines = lines.chain(rows.iter().map(|row| serde_json::to_string(row).unwrap()));
    fs::write(path, lines.collect::<Vec<_>>().join("\n")).unwrap();
}

/// A folder with a twin, and traffic.
fn place(rows: &[TraceEntry]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("twin.json"), r#"{"streamgauge_twin": 1, "engines": [{"model": "m"}]}"#).unwrap();
    write(&folder.path().join("traffic.jsonl"), rows);
    folder
}

/// The rows of a simulated fleet, which `out` keeps.
fn run(folder: &Path, out: &str, (replicas, router): (u32, &str), cache: u64) -> Vec<TraceEntry> {
    let (replicas, cache) = (replicas.to_string(), format!("kv-blocks={cache}"));
    let fleet = ["--replicas", &*replicas, "--router", router, "--set", &*cache];
    ok(folder, &[&["twin", "run", "twin.json", "--traffic", "traffic.jsonl", "-o", out], &fleet[..]].concat());
    let mut rows: Vec<TraceEntry> = TraceReader::open(&folder.join(out)).unwrap().map(Result::unwrap).collect();
    rows.sort_by_key(|row| row.at);
    rows
}

fn cached(rows: &[TraceEntry]) -> f64 {
    rows.iter().filter_map(|row| row.prompt.cached).sum::<u64>() as f64
}

/// The figures of all requests.
fn reuse(folder: &Path, trace: &str, cache: u64) -> Value {
    let stdout = ok(folder, &["trace", "reuse", trace, "--json", "--cache-blocks", &cache.to_string()]);
    serde_json::from_str::<Value>(&stdout).unwrap()["all"].take()
}

/// A figure is within 2 % of the truth, which is no small part of the prompts.
fn check(all: &Value, figure: &str, truth: f64) {
    let (found, prompts) = (all[figure].as_f64().unwrap(), all["prompt_tokens"].as_f64().unwrap());
    assert!(truth > 0.05 * prompts, "{figure}: {truth} of {prompts} tokens are too few to prove anything");
    assert!((found - truth).abs() <= 0.02 * truth, "{figure}: {found}, and the truth is {truth}");
}

#[test]
fn each_loss_of_a_simulated_fleet_is_within_two_percent_of_the_truth() {
    let place = place(&conversations());
    let folder = place.path();
    let offered = cached(&run(folder, "one", (1, "round-robin"), ENDLESS));
    let routed = cached(&run(folder, "four", (4, "round-robin"), ENDLESS));
    for blocks in SMALL {
        let out = format!("small-{blocks}");
        let mut rows = run(folder, &out, (4, "round-robin"), blocks);
        let all = reuse(folder, &out, blocks);
        check(&all, "offered_tokens", offered);
        check(&all, "lost_by_routing_tokens", offered - routed);
        check(&all, "lost_to_capacity_tokens", routed - cached(&rows));
        // The engines forget all that each third request had in the cache.
        let mut forgotten = 0;
        for row in rows.iter_mut().step_by(3) {
            forgotten += row.prompt.cached.replace(0).unwrap();
        }
        write(&folder.join("forgetful.jsonl"), &rows);
        let forgetful = reuse(folder, "forgetful.jsonl", blocks);
        check(&forgetful, "lost_otherwise_tokens", forgotten as f64);
        let lost = |all: &Value| all["lost_otherwise_tokens"].as_i64().unwrap();
        assert_eq!(lost(&forgetful) - lost(&all), forgotten.cast_signed());
    }
}

#[test]
fn the_gain_of_sticky_sessions_is_what_replicas_cache_that_keep_their_first_sessions() {
    let rows = conversations();
    let place_of_all = place(&rows);
    let folder = place_of_all.path();
    for blocks in SMALL {
        let out = format!("round-robin-{blocks}");
        let spread = run(folder, &out, (4, "round-robin"), blocks);
        let mut first_pods = HashMap::new();
        for row in &spread {
            first_pods.entry(row.session.clone()).or_insert_with(|| row.upstream.clone().unwrap());
        }
        let hits = (1..=4).map(|pod| {
            let is_here = |row: &&TraceEntry| first_pods[&row.session] == format!("simulated-{pod}");
            let place = place(&rows.iter().filter(is_here).cloned().collect::<Vec<_>>());
            cached(&run(place.path(), "out", (1, "round-robin"), blocks))
        });
        let gain = hits.sum::<f64>() - cached(&spread);
        check(&reuse(folder, &out, blocks), "sticky_session_gain_tokens", gain);
    }
}
