//! Slices of time and groups of requests, by hand.

use serde_json::{Value, json};
use streamgauge::measure::record::CountSource;
use streamgauge::trace_file::row::TraceEntry;

use super::results::{four, near, run, streamgauge, success};

/// The JSON and the text of a report of rows.
fn reports(rows: &[TraceEntry], args: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = run(&folder.path().join("run"), rows, 0, &json!({}));
    let [json, text] = ["--json", "--plain"].map(|format| {
        let done = streamgauge(&[&path], &[args, &[format]].concat());
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    });
    (serde_json::from_str(&json).unwrap(), text)
}

/// The table whose header begins with `first`: cells of each line by the header's names.
fn table(text: &str, first: &str) -> Vec<Vec<(String, String)>> {
    let cells = |line: &str| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut lines = text.lines().skip_while(|line| cells(line).first().is_none_or(|cell| cell != first));
    let head = cells(lines.next().unwrap_or_else(|| panic!("no {first} in {text}")));
    let row = |line: &str| head.iter().cloned().zip(cells(line)).collect();
    lines.take_while(|line| !line.is_empty()).map(row).collect()
}

fn column<'a>(table: &'a [Vec<(String, String)>], name: &str) -> Vec<&'a str> {
    let cell = |row: &'a Vec<(String, String)>| &*row.iter().find(|(head, _)| head == name).unwrap().1;
    table.iter().map(cell).collect()
}

/// A stream from 0.5 to 2.5 s, whose ten tokens come at 0.6, 1.2, 1.8 and 2.4 s, and a reply at 2.3 s.
fn across_slices() -> Vec<TraceEntry> {
    let mut stream = success(500, 500, 100, 2_000, &[(600, Some(2)), (600, Some(3)), (600, Some(4))]);
    stream.timing.first_tokens = Some(1);
    (stream.output_tokens, stream.output_source) = (Some(10), Some(CountSource::Usage));
    let mut reply = success(2_000, 2_000, 290, 300, &[]);
    reply.stream = Some(false);
    (reply.output_tokens, reply.output_source) = (Some(4), Some(CountSource::Usage));
    vec![stream, reply]
}

#[test]
fn a_slice_has_the_tokens_that_came_in_it_and_the_first_and_the_last_their_true_length() {
    let (report, text) = reports(&across_slices(), &["--slice", "1s"]);
    let slices = report["slices"].as_array().unwrap();
    let of = |pointer: &str| slices.iter().map(|slice| slice.pointer(pointer).cloned()).collect::<Vec<_>>();
    let numbers = |values: [f64; 3]| values.map(|value| Some(json!(value))).to_vec();
    assert_eq!((of("/from_s"), of("/to_s")), (numbers([0.0, 1.0, 2.0]), numbers([1.0, 2.0, 3.0])));
    // From the first start at 0.5 s to the last end at 2.5 s.
    assert_eq!(of("/seconds"), numbers([0.5, 1.0, 0.5]));
    // Tokens: 1, 2 + 3, and 4 + 4. Both responses end in the last half second.
    assert_eq!(of("/throughput/output_tokens"), numbers([2.0, 5.0, 16.0]));
    assert_eq!(of("/throughput/requests"), numbers([0.0, 0.0, 4.0]));
    let e2e = of("/metrics/e2e_from_planned/p50");
    assert_eq!(e2e, [Some(json!(2_000.0)), None, Some(json!(300.0))], "where their request began");
    let table = table(&text, "from");
    assert_eq!(column(&table, "from"), ["0s", "1s", "2s"], "{text}");
    assert_eq!(column(&table, "output tok/s"), ["2", "5", "16"], "{text}");
    for name in ["E2E p50", "E2E p99"] {
        assert_eq!(column(&table, name), ["2.00s", "-", "300ms"], "{text}");
    }
}

#[test]
fn requests_are_grouped_by_their_output_tokens() {
    // 7, 2 and 4 tokens, and 9 of a failed request.
    let (report, text) = reports(&four(), &["--by", "osl-bucket"]);
    let group = |of: &Value| {
        let success = of["outcomes"].get("success").and_then(Value::as_u64).unwrap_or(0);
        (of["by"]["osl-bucket"].as_str().unwrap().to_owned(), success, of["tokens"]["output"].as_u64().unwrap())
    };
    let groups: Vec<_> = report["groups"].as_array().unwrap().iter().map(group).collect();
    let expected = [("000002-000003", 1, 2), ("000004-000007", 2, 11), ("000008-000015", 0, 0)];
    assert_eq!(groups, expected.map(|(name, success, output)| (name.to_owned(), success, output)));
    let table = table(&text, "osl-bucket");
    assert_eq!(column(&table, "osl-bucket"), expected.map(|(name, ..)| name), "{text}");
    assert_eq!(column(&table, "E2E p50"), ["300ms", "330ms", "-"], "{text}");
}

#[test]
fn requests_are_grouped_by_their_turn() {
    let of = |session: Option<&str>, turn: Option<u32>, e2e: u64| TraceEntry {
        session: session.map(str::to_owned),
        turn,
        ..success(0, 0, 100, e2e, &[])
    };
    let rows = [
        of(Some("a"), None, 200),
        of(Some("b"), Some(0), 200),
        of(Some("a"), Some(1), 300),
        of(Some("a"), Some(4), 400),
        of(Some("b"), Some(7), 400),
        of(None, None, 500),
    ];
    let (report, _) = reports(&rows, &["--by", "turn"]);
    let group = |of: &Value| (of["by"]["turn"].clone(), of["requests"].clone(), of["metrics"]["e2e"]["max"].clone());
    let groups: Vec<_> = report["groups"].as_array().unwrap().iter().map(group).collect();
    let expected = [("-", 1, 500.0), ("0", 2, 200.0), ("1", 1, 300.0), ("4-7", 2, 400.0)];
    assert_eq!(groups, expected.map(|(turn, requests, e2e)| (json!(turn), json!(requests), json!(e2e))));
    near(report["metrics"]["e2e"]["avg"].as_f64().unwrap(), 2_000.0 / 6.0);
}
