//! The captures of two pods that the queries run on: a small one that was recorded, and one of a million simulated rows.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp};
use streamgauge::measure::calendar::utc_hour;
use streamgauge::measure::record::Outcome;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::Timing;
use tempfile::{TempDir, tempdir};

use crate::program::streamgauge;

const RECORDED: &str = "tests/data/captures";
const PODS: [&str; 2] = ["pod-a", "pod-b"];
/// Rows of each simulated pod. A release is fast enough for a million in all.
const ROWS: u64 = if cfg!(debug_assertions) { 12_000 } else { 500_000 };
const HOUR: u64 = 3_600_000_000_000;
/// Requests per second of each simulated pod.
const RATE: f64 = 125.0;
const TWIN: &str = r#"{"streamgauge_twin": 1, "engines": [
    {"model": "large", "upstream": "large-0", "parameters": {"step_base": {"value": 8e6}, "prefill_rate": {"value": 4e4}}},
    {"model": "small", "upstream": "small-0", "parameters": {"step_base": {"value": 3e6}, "prefill_rate": {"value": 9e4}}}
]}"#;

/// The captures of two pods.
pub(super) struct Captures {
    /// Name and rows of each pod: its part of the bucket.
    pub(super) pods: [(&'static str, String); 2],
    /// The rows of both.
    pub(super) lake: String,
    /// Limits of TTFT and TPOT in ms, which some of the requests keep.
    pub(super) slo: [u32; 2],
    /// Largest difference between shares of blocks and shares of tokens: 0 if prompts are whole blocks.
    pub(super) partial_blocks: f64,
    /// Has the segments of both pods as a bucket has them: as JSON Lines in `rows`, as Parquet in `parquet`.
    pub(super) folder: TempDir,
}

impl Captures {
    /// 160 rows of two proxies in front of `streamgauge sim`.
    pub(super) fn recorded() -> Self {
        let root = env!("CARGO_MANIFEST_DIR");
        let pods = PODS.map(|pod| (pod, format!("{root}/{RECORDED}/{pod}")));
        Self { slo: [60, 15], partial_blocks: 0.02, ..Self::store(pods, tempdir().unwrap()) }
    }

    /// A million rows of the simulated engine in virtual time: two models, two classes, and sessions of four
    /// turns, some of them in both pods. They begin before a full hour and end after it.
    pub(super) fn simulated() -> Self {
        let folder = tempdir().unwrap();
        fs::write(folder.path().join("twin.json"), TWIN).unwrap();
        let path = |name: String| folder.path().join(name).display().to_string();
        let simulate = |number: usize| {
            let (pod, traffic) = (PODS[number], path(format!("{number}.jsonl")));
            write_traffic(number as u64, Path::new(&traffic));
            let run = path(pod.to_owned());
            succeed(&["twin", "run", &path("twin.json".to_owned()), "--traffic", &traffic, "--out", &run]);
            fs::remove_file(traffic).unwrap();
            (pod, format!("{run}/records.jsonl.zst"))
        };
        let pods = std::thread::scope(|scope| {
            [0, 1].map(|number| scope.spawn(move || simulate(number))).map(|pod| pod.join().unwrap())
        });
        Self::store(pods, folder)
    }

    /// Stores the rows of both pods as a bucket has them.
    fn store(pods: [(&'static str, String); 2], folder: TempDir) -> Self {
        let lake = folder.path();
        std::thread::scope(|scope| {
            for (pod, rows) in &pods {
                scope.spawn(move || {
                    for segment in write_segments(&lake.join("rows"), pod, Path::new(rows)) {
                        let rows = lake.join("rows").join(&segment).display().to_string();
                        let parquet = lake.join("parquet").join(&segment).with_extension("parquet");
                        fs::create_dir_all(parquet.parent().unwrap()).unwrap();
                        let parquet = parquet.display().to_string();
                        succeed(&["trace", "convert", &rows, "--to", "parquet", "--output", &parquet]);
                    }
                });
            }
        });
        let lake = format!("file://{}/rows", lake.display());
        let pods = PODS.map(|pod| (pod, format!("{lake}/dt=*/hour=*/instance={pod}/")));
        Self { pods, lake, slo: [10, 9], partial_blocks: 0.0, folder }
    }
}

/// Writes a pod's rows as JSON Lines by hour, and returns the files' paths in the bucket. Half of the sessions come a day
/// later, so that the same hours are there on two days. One in 50 requests is answered with 503.
fn write_segments(lake: &Path, pod: &str, rows: &Path) -> Vec<String> {
    let reader = TraceReader::open(rows).unwrap();
    let header = reader.header().clone();
    let started = header.started_unix_ns.unwrap();
    let mut segments = BTreeMap::new();
    for (number, row) in reader.enumerate() {
        let mut row = row.unwrap();
        let session = row.session.as_deref().unwrap_or_default();
        let is_later = session.bytes().map(u32::from).sum::<u32>() % 2 == 1;
        let shift = if is_later { 24 * HOUR } else { 0 };
        (row.at, row.planned) = (row.at + shift, row.planned.map(|planned| planned + shift));
        if number % 50 == 7 {
            (row.status, row.outcome, row.finish) = (Some(503), Some(Outcome::Failed), None);
            (row.output_tokens, row.prompt.cached, row.timing) = (None, None, Timing::default());
        }
        let hour = utc_hour(started + row.at);
        let (day, hour) = hour.trim_end_matches('Z').split_once('T').unwrap();
        let name = format!("{}T{hour}0000Z-00000000-0123456789abcdef.jsonl", day.replace('-', ""));
        let name = format!("dt={day}/hour={hour}/instance={pod}/{name}");
        let file = segments.entry(name).or_insert_with_key(|name| {
            let path = lake.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut file = BufWriter::new(File::create(path).unwrap());
            writeln!(file, "{}", serde_json::to_string(&header).unwrap()).unwrap();
            file
        });
        writeln!(file, "{}", serde_json::to_string(&row).unwrap()).unwrap();
    }
    segments.values_mut().for_each(|file| file.flush().unwrap());
    segments.into_keys().collect()
}

fn succeed(arguments: &[&str]) {
    let done = streamgauge(arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Short requests of a pod. Each 400 are four turns of 100 sessions, whose prompts grow by a block per turn.
fn write_traffic(pod: u64, path: &Path) {
    let (mut random, gap) = (StdRng::seed_from_u64(pod), Exp::new(RATE).unwrap());
    let mut file = BufWriter::new(File::create(path).unwrap());
    let started = 497_000 * HOUR - (ROWS as f64 / RATE / 2.0 * 1e9) as u64;
    writeln!(
        file,
        r#"{{"streamgauge_trace":1,"source":"tests","started_unix_ns":{started},"blocks":{{"size":64,"unit":"tokens","last":"dropped","ids":"chained","scope":"trace","key":"fleet"}},"turns":"full"}}"#
    )
    .unwrap();
    let mut at = 0.0;
    for number in 0..ROWS {
        at += gap.sample(&mut random);
        let (session, turn) = (number / 400 * 100 + number % 100, number / 100 % 4);
        // Half of the sessions are in both pods.
        let session = if session / 4 % 2 == 0 { session } else { pod << 32 | session };
        let family = session % 40;
        // The system prompt of the family, in both pods, and the conversation. Real ids have 64 bits.
        let shared = (0..4).map(|block| u64::MAX - (family << 8 | block));
        let blocks: Vec<u64> = shared.chain((0..turn).map(|block| 1 << 50 | session << 8 | block)).collect();
        let (model, tier) =
            (["large", "small"][(family % 2) as usize], ["gold", "free", "free"][(session % 3) as usize]);
        let (stream, output) = (random.random_range(0..50) > 0, random.random_range(2..14));
        let left = if random.random_range(0..100) == 0 { r#","wanted":{"abort_tokens":1}"# } else { "" };
        writeln!(
            file,
            r#"{{"at":{},"model":"{model}","stream":{stream},"prompt":{{"tokens":{},"blocks":{blocks:?}}},"session":"s{session}","turn":{turn},"output_tokens":{output},"class":{{"tier":"{tier}"}}{left}}}"#,
            (at * 1e9) as u64,
            64 * blocks.len()
        )
        .unwrap();
    }
}
