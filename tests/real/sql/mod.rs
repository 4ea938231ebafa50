//! The queries of deploy/sql, run by DuckDB and by ClickHouse's embedded engine on the captures of two pods, against the
//! figures of `report` and `trace`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use streamgauge::trace_file::gap_sketch::MAX_RELATIVE_ERROR;
use streamgauge::trace_file::gaps::unpack;
use streamgauge::trace_file::reader::TraceReader;
use tempfile::TempDir;

use crate::tools::program;

const CAPTURES: &str = "tests/data/captures";
const PODS: [&str; 2] = ["pod-a", "pod-b"];

fn streamgauge(args: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let output = command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// The rows of each query.
fn answers(engine: &str) -> Value {
    let folder = TempDir::new().unwrap();
    for pod in PODS {
        fs::create_dir(folder.path().join(pod)).unwrap();
        let parquet = folder.path().join(pod).join("0.parquet").display().to_string();
        streamgauge(&["trace", "convert", &format!("{CAPTURES}/{pod}"), "--to", "parquet", "--output", &parquet]);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("tests/real/sql.py");
    let output =
        program("sql").arg(script).arg(engine).arg(root.join("deploy/sql")).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// TTFTs and gaps of a pod's successes, in ms, ascending.
fn exact(pod: &str, metric: &str) -> Vec<f64> {
    let rows = TraceReader::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(CAPTURES).join(pod)).unwrap();
    let mut values: Vec<f64> = rows
        .map(Result::unwrap)
        .flat_map(|row| match metric {
            "ttft" => row.timing.first_token.into_iter().collect::<Vec<u64>>(),
            _ => unpack(&row.timing.gaps.unwrap()).unwrap().iter().map(|event| event.latency().0.as_nanos()).collect(),
        })
        .map(|nanos| nanos as f64 / 1e6)
        .collect();
    values.sort_by(f64::total_cmp);
    values
}

fn number(value: &Value) -> f64 {
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}

fn check(engine: &str) {
    let answers = answers(engine);
    let latency = answers["latency"].as_array().unwrap();
    assert_eq!(latency.len(), 4, "{latency:?}");
    for row in latency {
        let (pod, metric) = (row["instance"].as_str().unwrap(), row["metric"].as_str().unwrap());
        let report = streamgauge(&["report", &format!("{CAPTURES}/{pod}"), "--json"]);
        let (reported, exact) = (&report["metrics"][metric], exact(pod, metric));
        assert_eq!((number(&row["n"]), number(&reported["count"])), (exact.len() as f64, exact.len() as f64));
        for percent in [50, 90, 99] {
            // A report interpolates between the two values beside the rank; the sketch has one of them.
            let rank = f64::from(percent) / 100.0 * (exact.len() - 1) as f64;
            let (low, high) = (exact[rank.floor() as usize], exact[rank.ceil() as usize]);
            let told = number(&reported[format!("p{percent}")]);
            assert!((low - 1e-6..=high + 1e-6).contains(&told), "{pod} {metric} p{percent}: {told}");
            let asked = number(&row[format!("p{percent}_ms")]);
            let within = low / (1.0 + MAX_RELATIVE_ERROR) - 1e-6..=high * (1.0 + MAX_RELATIVE_ERROR) + 1e-6;
            assert!(within.contains(&asked), "{pod} {metric} p{percent}: {asked} beside {told}");
        }
    }

    let pods = PODS.map(|pod| format!("{CAPTURES}/{pod}"));
    let report = streamgauge(&["report", &pods[0], &pods[1], "--slo", "x: ttft<=60ms tpot<=15ms", "--json"]);
    let (goodput, judged) = (&answers["goodput"][0], &report["goodput"][0]);
    assert_eq!(
        [number(&goodput["met"]), number(&goodput["counted"])],
        ["met", "counted"].map(|name| number(&judged[name]))
    );
    assert!(number(&goodput["met"]) > 0.0 && number(&goodput["share"]) < 0.5, "{goodput}");

    let [info_a, info_b] = [0, 1].map(|pod| streamgauge(&["trace", "info", &pods[pod], "--json"]));
    let both = |of: &dyn Fn(&Value) -> f64| of(&info_a) + of(&info_b);
    let traffic = &answers["traffic"][0];
    assert_eq!(number(&traffic["requests"]), both(&|info| number(&info["requests"])));
    assert_eq!(number(&traffic["sessions"]), both(&|info| number(&info["sessions"]["count"])));
    assert_eq!(number(&traffic["output_tokens"]), 1_280.0);

    let reuse = &answers["reuse"][0];
    let blocks = both(&|info| number(&info["reuse"][0]["asked_blocks"]));
    let kept = both(&|info| number(&info["reuse"][0]["hit_blocks"])) / blocks;
    assert_eq!(number(&reuse["blocks"]), blocks);
    assert!((number(&reuse["kept_by_routing"]) - kept).abs() < 1e-9, "{reuse}");
    assert!(number(&reuse["offered"]) > kept && number(&reuse["cached"]) < kept, "{reuse}");

    let cost = &answers["cost"][0];
    assert_eq!([number(&cost["cost"]), number(&cost["cost_per_million"])], [5.0, 5.0 / 1_280.0 * 1e6]);
}

#[test]
fn duckdb_answers_as_a_report_does() {
    check("duckdb");
}

#[test]
fn clickhouse_answers_as_a_report_does() {
    check("clickhouse");
}
