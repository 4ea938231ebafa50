//! The queries of deploy/sql, run by each engine on the captures of two pods, against the figures of `report`, `trace info`
//! and `trace reuse`.

mod captures;
mod facts;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use streamgauge::trace_file::gap_sketch::MAX_RELATIVE_ERROR;
use tempfile::tempdir;

use self::captures::Captures;
use self::facts::Facts;
use crate::processes::exclusive_turn;
use crate::tools::{program, trino};

/// The rows of each query. `python` is the program that has the engine; a server has an address.
fn answers(python: &str, engine: &[&str], captures: &Captures) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = program(python);
    command.arg(root.join("tests/real/sql/query.py")).arg(root.join("deploy/sql"));
    command.arg(captures.folder.path().join("parquet")).args(captures.slo.map(|limit| limit.to_string())).args(engine);
    // Spark writes into its folder.
    let output = command.current_dir(captures.folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{engine:?}: {stderr}");
    // Time and memory of each query: `cargo test … -- --nocapture`.
    eprint!("{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}

fn rows<'a>(answers: &'a Value, query: &str) -> &'a [Value] {
    answers[query].as_array().unwrap_or_else(|| panic!("no rows of {query}"))
}

fn key<const N: usize>(row: &Value, columns: [&str; N]) -> [String; N] {
    columns.map(|column| row[column].as_str().unwrap_or_else(|| panic!("{row} has no {column}")).to_owned())
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a Value>, column: &str) -> f64 {
    rows.into_iter().map(|row| number(&row[column])).sum()
}

fn check(answers: &Value, captures: &Captures, facts: &Facts) {
    check_latency(answers, facts);
    check_goodput(answers, facts);
    check_traffic(answers, facts);
    check_reuse(answers, captures, facts);
    check_cost(answers, facts);
}

fn check_latency(answers: &Value, facts: &Facts) {
    let groups = rows(answers, "latency");
    assert_eq!(groups.len(), facts.latencies.len());
    for row in groups {
        check_quantiles(row, &facts.latencies[&key(row, ["hour", "model", "class", "instance", "metric"])]);
    }
    let pods = rows(answers, "latency_by_instance");
    assert_eq!(pods.len(), 4, "{pods:?}");
    for row in pods {
        let [pod, metric] = key(row, ["instance", "metric"]);
        let (exact, reported) = (facts.of_pod(&pod, &metric), &facts.reports[pod.as_str()]["metrics"][&metric]);
        assert_eq!(number(&reported["count"]), exact.len() as f64);
        for (percent, low, high) in check_quantiles(row, &exact) {
            let reported = number(&reported[format!("p{percent}")]);
            assert!((low - 1e-6..=high + 1e-6).contains(&reported), "{pod} {metric} p{percent}: {reported}");
        }
    }
}

/// Each quantile is one of the two values beside its rank, but for the sketch's error. A report interpolates between
/// these two, which are returned.
fn check_quantiles(row: &Value, exact: &[f64]) -> [(u32, f64, f64); 3] {
    assert_eq!(number(&row["n"]), exact.len() as f64, "{row}");
    [50, 90, 99].map(|percent| {
        let rank = f64::from(percent) / 100.0 * (exact.len() - 1) as f64;
        let (low, high) = (exact[rank.floor() as usize], exact[rank.ceil() as usize]);
        let within = low / (1.0 + MAX_RELATIVE_ERROR) - 1e-6..=high * (1.0 + MAX_RELATIVE_ERROR) + 1e-6;
        assert!(within.contains(&number(&row[format!("p{percent}_ms")])), "{row}: p{percent} from {low} to {high}");
        (percent, low, high)
    })
}

fn check_goodput(answers: &Value, facts: &Facts) {
    let groups = rows(answers, "goodput");
    let is_gold = |row: &&Value| row["class"].as_str().unwrap().contains("gold");
    let gold: Vec<&Value> = groups.iter().filter(is_gold).collect();
    for (judged, groups) in [(&facts.goodput[0], groups.iter().collect()), (&facts.goodput[1], gold)] {
        for column in ["met", "counted"] {
            assert_eq!(sum(groups.iter().copied(), column), number(&judged[column]), "{column}: {groups:?}");
        }
    }
    let share = number(&facts.goodput[0]["met"]) / number(&facts.goodput[0]["counted"]);
    assert!(0.1 < share && share < 0.9, "the SLO decides: {share}");
}

fn check_traffic(answers: &Value, facts: &Facts) {
    let groups = rows(answers, "traffic");
    assert_eq!(groups.len(), facts.traffic.len());
    for row in groups {
        let sums = &facts.traffic[&key(row, ["hour", "class"])];
        let counted =
            [sums.requests, sums.sessions.len() as u64, sums.input_tokens, sums.output_tokens, sums.incomplete];
        let values =
            ["requests", "sessions", "input_tokens", "output_tokens", "incomplete"].map(|name| number(&row[name]));
        assert_eq!(values, counted.map(|count| count as f64), "{row}");
    }
    assert_eq!(sum(groups, "requests"), sum(&facts.info, "requests"));
    check_hours(groups);
}

/// Each hour of the day is there on two days, which are not merged.
fn check_hours(groups: &[Value]) {
    let hours: BTreeSet<[String; 1]> = groups.iter().map(|row| key(row, ["hour"])).collect();
    let (days, of_day): (BTreeSet<&str>, BTreeSet<&str>) =
        hours.iter().map(|[hour]| hour.split_once('T').unwrap()).unzip();
    assert_eq!((days.len(), hours.len()), (2, 2 * of_day.len()), "{hours:?}");
}

fn check_reuse(answers: &Value, captures: &Captures, facts: &Facts) {
    let (mut blocks, mut kept_blocks) = (0.0, 0.0);
    for row in rows(answers, "reuse") {
        let of_model = row["model"].as_str().unwrap();
        let reuse = if of_model.is_empty() { &facts.reuse["all"] } else { &facts.reuse["by"]["model"][of_model] };
        let share = |column: &str| number(&reuse[column]) / number(&reuse["prompt_tokens"]);
        let routed = share("offered_tokens") - share("lost_by_routing_tokens");
        for (column, expected, allowed) in [
            ("offered", share("offered_tokens"), captures.partial_blocks),
            ("kept_by_routing", routed, captures.partial_blocks),
            ("cached", share("cached_tokens"), 0.0),
        ] {
            assert!((number(&row[column]) - expected).abs() <= allowed + 1e-9, "{column} {expected}: {row}");
        }
        assert!(number(&row["offered"]) > number(&row["kept_by_routing"]) + 0.001, "{row}");
        blocks += number(&row["blocks"]);
        kept_blocks += number(&row["blocks"]) * number(&row["kept_by_routing"]);
    }
    let hits = facts.blocks - facts.distinct.len() as u64;
    assert_eq!((blocks, kept_blocks.round()), (facts.blocks as f64, hits as f64));
}

fn check_cost(answers: &Value, facts: &Facts) {
    let groups = rows(answers, "cost");
    assert_eq!(groups.len(), facts.models.len());
    for row in groups {
        let sums = &facts.models[&key(row, ["hour", "model"])];
        let cost = sums.pods.len() as f64 * 2.5;
        let expected = [sums.output_tokens as f64, cost, cost / sums.output_tokens as f64 * 1e6];
        for (name, expected) in ["output_tokens", "cost", "cost_per_million"].into_iter().zip(expected) {
            assert!((number(&row[name]) / expected - 1.0).abs() < 1e-9, "{name} {expected}: {row}");
        }
    }
}

fn check_on_recorded_rows(python: &str, engine: &[&str]) {
    let captures = Captures::recorded();
    check(&answers(python, engine, &captures), &captures, &Facts::of(&captures));
}

#[test]
fn duckdb_answers_as_a_report_does() {
    check_on_recorded_rows("sql", &["duckdb"]);
}

#[test]
fn clickhouse_answers_as_a_report_does() {
    check_on_recorded_rows("sql", &["clickhouse"]);
}

fn check_on_a_million_rows(python: &str, engines: &[&[&str]]) {
    let _turn = exclusive_turn();
    let captures = Captures::simulated();
    let facts = Facts::of(&captures);
    for engine in engines {
        check(&answers(python, engine, &captures), &captures, &facts);
    }
}

#[test]
fn both_answer_so_on_a_million_rows() {
    check_on_a_million_rows("sql", &[&["duckdb"], &["clickhouse"]]);
}

#[test]
#[ignore = "needs Spark: tests/run --real"]
fn spark_answers_as_a_report_does() {
    check_on_a_million_rows("jvm-sql", &[&["spark"]]);
}

#[test]
#[ignore = "needs Trino: tests/run --real"]
fn trino_answers_as_a_report_does_from_files_and_from_iceberg() {
    let folder = tempdir().unwrap();
    let trino = trino(folder.path());
    let port = trino.addr.port().to_string();
    check_on_a_million_rows("jvm-sql", &[&["trino", &port], &["trino", &port, "iceberg"]]);
}
