//! The ten questions of an honest benchmark.

use serde_json::{Value, json};
use streamgauge::measure::record::Outcome;

use super::diagnosis::{report, steady};

fn answers(report: &Value) -> Vec<(&str, &str)> {
    let rows = report["checklist"].as_array().unwrap();
    rows.iter().map(|row| (row["item"].as_str().unwrap(), row["answer"].as_str().unwrap())).collect()
}

#[test]
fn a_run_that_states_everything_meets_all_ten() {
    let run_file = json!({
        "meta": {"gpu": "H100", "gpu_count": "8", "precision": "fp8", "engine_flags": "--max-num-seqs 256"},
        "command": ["streamgauge", "sweep", "--rates", "1,2"],
        "summary": {"measured": {"from": 1}},
        "load": {"arrivals": "poisson"},
    });
    let rows = steady(4_000, |n, row| {
        row.at += 1;
        row.planned = Some(row.at);
        row.prompt.tokens = Some(50 + n % 200);
        row.output_tokens = Some(11 + n % 5);
    });
    let report = report(&rows, &run_file, &[]);
    let unmet: Vec<_> = answers(&report).into_iter().filter(|(_, answer)| *answer != "met").collect();
    assert_eq!((answers(&report).len(), unmet), (10, vec![]), "{:#}", report["checklist"]);
    assert_eq!(report["checklist"][6]["evidence"], "H100 × 8");
}

#[test]
fn what_is_not_met_or_not_known_says_why() {
    let report = report(&steady(40, |_, _| {}), &json!({"closed_loop": true}), &[]);
    let expected = [
        ("warm_up", "unknown"),
        ("open_loop", "not_met"),
        ("percentiles", "not_met"),
        ("lengths", "not_met"),
        ("sweep", "not_met"),
        ("duration", "not_met"),
        ("hardware", "unknown"),
        ("precision", "unknown"),
        ("batch_settings", "unknown"),
        ("both_phases", "met"),
    ];
    assert_eq!(answers(&report), expected);
    let evidence = |row: usize| report["checklist"][row]["evidence"].as_str().unwrap();
    assert_eq!(evidence(2), "0 of 40 values lie beyond p99; 20 are needed");
    assert_eq!(evidence(3), "ISL 100–100 tokens, OSL 11–11 tokens");
    assert_eq!(evidence(5), "2.3 s");
    assert_eq!(evidence(7), "not stated; --meta precision=… states it");
    let rows = steady(40, |_, row| (row.outcome, row.status) = (Some(Outcome::Failed), Some(404)));
    let failed = super::diagnosis::report(&rows, &json!({}), &[]);
    assert_eq!(answers(&failed)[9], ("both_phases", "unknown"), "a refusal does not show that nothing streams");
}
