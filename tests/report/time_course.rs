//! A run over time: warm-up, steady state, drift, and the windows of figures and servers.

use serde_json::{Value, json};
use streamgauge::trace_file::row::TraceEntry;

use super::diagnosis::{report, steady};

const MS: u64 = 1_000_000;

/// The time section of 2,000 requests in 100 s with this TTFT in milliseconds.
fn course(ttft: impl Fn(u64) -> u64) -> Value {
    let change = |n: u64, row: &mut TraceEntry| {
        row.timing.first_token = Some((ttft(n) + n * 7 % 11) * MS);
        row.timing.ended = Some((ttft(n) + 300) * MS);
    };
    report(&steady(2_000, change), &json!({}), &[])
}

fn verdict<'a>(report: &'a Value, metric: &str) -> &'a Value {
    let trends = report["time_course"]["trends"].as_array().unwrap();
    trends.iter().find(|trend| trend["metric"] == metric).unwrap()
}

#[test]
fn a_steady_run_has_no_warm_up_and_no_drift() {
    let report = course(|_| 100);
    let steady = &report["time_course"]["steady_state"];
    assert_eq!((&steady["found"], &steady["from_s"], steady.get("warm_up_s")), (&json!(true), &json!(0.0), None));
    assert_eq!(verdict(&report, "ttft")["verdict"], "steady");
    assert!(!report["warnings"].to_string().contains("no_warmup"));
}

#[test]
fn a_warm_up_in_the_figures_is_found_with_its_end_and_warned_of() {
    // The first 250 requests, 12.5 s, meet a cold server.
    let report = course(|n| if n < 250 { 900 } else { 100 });
    let steady = &report["time_course"]["steady_state"];
    let until = steady["warm_up_s"].as_f64().unwrap();
    assert!((12.0..17.0).contains(&until), "{steady}");
    assert_eq!((&steady["from_s"], &steady["warm_up_metric"]), (&json!(until), &json!("ttft")));
    assert!((240..340).contains(&steady["warm_up_requests"].as_u64().unwrap()), "{steady}");
    let warning = report["warnings"].as_array().unwrap().iter().find(|warning| warning["warning"] == "no_warmup");
    assert!(warning.unwrap()["text"].as_str().unwrap().contains("was not warm until 1"), "{warning:?}");
    assert_eq!(report["checklist"][0]["answer"], "not_met");
}

#[test]
fn a_server_that_degrades_is_found_with_its_slope() {
    // 100 ms more over 100 s: 60 ms per minute.
    let report = course(|n| 200 + n / 20);
    let trend = verdict(&report, "ttft");
    assert_eq!(trend["verdict"], "degrades", "{trend}");
    let interval = |end: &str| trend["interval"][end].as_f64().unwrap();
    assert!(interval("low") <= 60.0 && 60.0 <= interval("high") && interval("low") > 50.0, "{trend}");
    assert!(trend["p_value"].as_f64().unwrap() < 0.01);
}

#[test]
fn few_requests_have_no_steady_state_and_say_so() {
    let report = report(&steady(199, |_, _| {}), &json!({}), &[]);
    let course = &report["time_course"];
    assert_eq!((&course["slices"], course.get("steady_state")), (&json!(0), None));
    // 20 requests per second: 1.5 s for 30 of them.
    assert_eq!(
        (&course["slice_advice"]["seconds"], &course["slice_advice"]["p99_seconds"]),
        (&json!(2.0), &json!(100.0))
    );
    assert_eq!(course["slice_advice"]["run_too_short"], true);
}

#[test]
fn requests_of_a_slice_explain_ttft_where_bursts_are_not_hidden() {
    // A request costs 2 ms for each other one of its second: 20, 30, 40 or 50 of them.
    let mut rows = Vec::new();
    for second in 0..60_u64 {
        let requests = 20 + 10 * (second * 7 % 4);
        for n in 0..requests {
            let mut row = steady(1, |_, _| {}).remove(0);
            row.at = second * 1_000 * MS + n * 15 * MS;
            row.planned = Some(row.at);
            row.timing.first_token = Some((10 + 2 * requests) * MS);
            rows.push(row);
        }
    }
    rows[0].at = 0;
    let report = report(&rows, &json!({}), &[]);
    let effect = &report["time_course"]["load_effect"];
    assert!((effect["ms_per_request"].as_f64().unwrap() - 2.0).abs() < 0.3, "{effect}");
    assert!(effect["r_squared"].as_f64().unwrap() > 0.75, "{effect}");
}
