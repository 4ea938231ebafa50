//! `streamgauge trace` on the command line: figures and warnings of `info`, and the output of `cut`, `merge`,
//! `anonymize`.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};
use streamgauge::trace_file::row::TraceEntry;
use tempfile::TempDir;

fn trace(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.arg("trace").args(args).env_clear().current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn written(folder: &TempDir, name: &str, lines: &[Value]) -> String {
    let path = folder.path().join(name);
    fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The rows of a trace in our own format, on stdout.
fn rows(output: &Output) -> Vec<TraceEntry> {
    assert!(output.status.success(), "{}", stderr(output));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

const SECOND: u64 = 1_000_000_000;

/// Three requests in blocks of four tokens: the second shares one block with the first, the third all of the first's.
fn small(folder: &TempDir) -> String {
    let blocks = json!({"size": 4, "unit": "tokens", "last": "kept", "ids": "chained", "scope": "trace", "key": "k"});
    let header = json!({"streamgauge_trace": 1, "source": "by hand", "started_unix_ns": 1_000, "blocks": blocks});
    let row = |at: u64, tokens: u64, blocks: &[u64], output: u64, rest: Value| {
        let mut row = json!({"at": at, "prompt": {"tokens": tokens, "blocks": blocks}, "output_tokens": output});
        row.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        row
    };
    let rows = [
        header,
        row(0, 8, &[1, 2], 10, json!({"model": "llama-a", "session": "s", "outcome": "success"})),
        row(
            SECOND,
            6,
            &[1, 3],
            20,
            json!({"model": "qwen-b", "outcome": "cancelled", "ending": "downstream_gone", "abort_tokens": 20,
                "upstream": "10.0.0.1:8000"}),
        ),
        row(3 * SECOND, 12, &[1, 2, 4], 30, json!({"model": "llama-a", "session": "s", "outcome": "success"})),
    ];
    written(folder, "small.jsonl", &rows)
}

#[test]
fn info_as_json_has_the_figures_that_were_reckoned_by_hand() {
    let folder = TempDir::new().unwrap();
    let path = small(&folder);
    let info = |more: &[&str]| -> Value {
        serde_json::from_slice(&trace(&[&["info", &path, "--json"], more].concat()).stdout).unwrap()
    };
    let third = 1.0 / 3.0;
    let near = |value: &Value, expected: f64| {
        assert!((value.as_f64().unwrap() - expected).abs() < 1e-9, "{value} is not {expected}");
    };
    let mut all = info(&["--cache-blocks", "2"]);
    assert_eq!(info(&["--cache-tokens", "8"]), all, "8 tokens are two blocks");
    // Gaps of 1 and 2 s; one, one, no and one request in four seconds.
    let burstiness = all["burstiness"].take();
    near(&burstiness["gap_cv"], third);
    near(&burstiness["dispersion_1s"], 0.25);
    near(&burstiness["peak_1s"], 4.0 * third);
    assert_eq!(burstiness["zero_gaps"], 0.0);
    assert!(burstiness["dispersion_10s"].is_null() && burstiness["peak_10s"].is_null(), "one window has no variance");
    // Of 26 tokens 4 and 8 were there; of each request none of 8, 4 of 6 and 8 of 12. In two blocks there is no room for
    // the block of the first that the second pushed out.
    let reuse = all["reuse"].take();
    let [endless, bounded] = &reuse.as_array().unwrap()[..] else { panic!("{reuse}") };
    near(&endless["token_share"], 12.0 / 26.0);
    near(&endless["request_share"], 4.0 / 9.0);
    assert_eq!((&endless["blocks"], &bounded["blocks"]), (&Value::Null, &json!(2)));
    assert_eq!((&endless["hit_blocks"], &endless["asked_blocks"]), (&json!(3), &json!(7)));
    assert_eq!((&bounded["hit_blocks"], &bounded["asked_blocks"]), (&json!(2), &json!(7)));
    near(&bounded["token_share"], 8.0 / 26.0);
    let windows = all["windows"].take();
    let of = |key: &str| windows.as_array().unwrap().iter().map(|of| of[key].as_f64()).collect::<Vec<_>>();
    assert_eq!(of("from_s"), [0.0, 1.0, 2.0, 3.0].map(Some));
    assert_eq!(of("rate"), [1.0, 1.0, 0.0, 1.0].map(Some));
    assert_eq!(of("input_mean"), [Some(8.0), Some(6.0), None, Some(12.0)]);
    assert_eq!(of("output_mean"), [Some(10.0), Some(20.0), None, Some(30.0)]);
    [0.0, 4.0 / 6.0, 8.0 / 12.0].iter().zip([0, 1, 3]).for_each(|(of, at)| near(&windows[at]["hit_rate"], *of));
    for side in ["input", "output", "total", "hit_percent"] {
        assert!(all[side]["mean"].take().as_f64().is_some());
    }
    assert_eq!(
        all,
        json!({
            "requests": 3, "span_s": 3.0, "rate": 1.0,
            "input": {"requests": 3, "sum": 26, "mean": null, "p25": 7, "p50": 8, "p75": 10, "p90": 11.2, "p99": 11.92,
                "min": 6, "max": 12},
            "input_estimated": 0,
            "output": {"requests": 3, "sum": 60, "mean": null, "p25": 15, "p50": 20, "p75": 25, "p90": 28, "p99": 29.8,
                "min": 10, "max": 30},
            "total": {"requests": 3, "sum": 86, "mean": null, "p25": 22, "p50": 26, "p75": 34, "p90": 38.8, "p99": 41.68,
                "min": 18, "max": 42},
            "hit_percent": {"requests": 3, "sum": 134, "mean": null, "p25": 33.5, "p50": 67, "p75": 67, "p90": 67,
                "p99": 67, "min": 0, "max": 67},
            "burstiness": null, "reuse": null, "windows": null,
            "sessions": {"count": 1, "requests": 2, "estimated": false},
            "models": {"llama-a": 2, "qwen-b": 1},
            "outcomes": {"success": 2, "cancelled": 1},
            "aborted": 1, "warnings": [], "rate_over_time": [1, 1, 0, 1], "rate_window_s": 1,
            "input_histogram": [[8, 2], [16, 1]], "output_histogram": [[16, 1], [32, 2]],
        })
    );
}

#[test]
fn an_unknown_cache_is_reported_and_every_verb_names_formats_alike() {
    let folder = TempDir::new().unwrap();
    let path = written(&folder, "t.jsonl", &[json!({"timestamp": 0, "input_length": 9, "output_length": 2})]);
    let note = "rows have no block ids, so figures of a cache are absent";
    for (args, is_noted) in
        [(&["--cache-blocks", "5"][..], true), (&["--cache-tokens", "5", "--json"], true), (&[], false)]
    {
        assert_eq!(stderr(&trace(&[&["info", &path], args].concat())).contains(note), is_noted, "{args:?}");
    }
    for verb in ["info", "convert", "cut", "merge", "anonymize"] {
        let done = trace(&[verb, &path, "--input-format", "mooncake"]);
        assert!(done.status.success() && stderr(&done).contains("is taken as mooncake; times"), "{}", stderr(&done));
    }
}

#[test]
fn every_warning_about_a_trace_has_its_count_and_a_remedy() {
    let folder = TempDir::new().unwrap();
    let row = |at: u64, length: u64, ids: u64| json!({"timestamp": at, "input_length": length, "output_length": 1, "hash_ids": (0..ids).collect::<Vec<_>>()});
    let own = json!({"streamgauge_trace": 1, "source": "t"});
    let of_512 = json!({"streamgauge_trace": 1, "source": "t", "blocks": {"size": 512, "unit": "tokens", "last": "kept", "ids": "chained", "scope": "trace"}});
    let in_ours = |at: u64, length: u64, ids: u64| json!({"at": at, "prompt": {"tokens": length, "blocks": (0..ids).collect::<Vec<_>>()}});
    let grid: Vec<Value> = (0..60_u64).map(|n| row(n / 6 * 3_000, 10, 1)).collect();
    for (lines, warning, sentence, advice) in [
        (
            grid,
            json!({"warning": "batch_grid", "step_ns": 3 * SECOND, "zero_gaps": 50.0 / 59.0}),
            "arrivals come in batches every 3.00s: 85 % of the gaps are zero",
            "`trace spread` moves each arrival",
        ),
        (
            vec![row(5, 10, 1), row(3, 10, 1), row(4, 10, 1)],
            json!({"warning": "unsorted", "rows": 1}),
            "1 rows come earlier than the row above them; what caches have follows the order of rows",
            "`trace merge` with this one file puts them in order",
        ),
        (
            vec![row(0, 512, 1), row(1, 600, 1), row(2, 700, 3)],
            json!({"warning": "impossible_lengths", "rows": 2, "first": 2, "fitting_block_size": null}),
            "2 rows have another number of block ids than their length asks for, first row 2",
            "check the size of blocks (--block-size)",
        ),
        (
            vec![of_512.clone(), in_ours(0, 64, 1), in_ours(1, 100, 2)],
            json!({"warning": "impossible_lengths", "rows": 1, "first": 2, "fitting_block_size": 64}),
            "first row 2; blocks of 64 tokens would fit all, and are taken",
            "set the size with --block-size",
        ),
        (
            vec![own.clone(), json!({"at": 1, "prompt": {"bytes": 10}})],
            json!({"warning": "estimated_tokens", "rows": 1}),
            "1 prompts have bytes and no tokens; a token is taken for four bytes",
            "capture with a tokenizer, or where the server reports its usage",
        ),
        (vec![own], json!({"warning": "empty"}), "there are no requests", "check that this is the file you mean"),
    ] {
        let path = written(&folder, "t.jsonl", &lines);
        let info: Value = serde_json::from_slice(&trace(&["info", &path, "--json"]).stdout).unwrap();
        assert_eq!(info["warnings"], json!([warning]));
        let text = String::from_utf8(trace(&["info", &path]).stdout).unwrap();
        let doubt = text.split("warning: ").nth(1).unwrap();
        let (first, second) = doubt.split_once("\n  advice: ").unwrap();
        assert!(first.contains(sentence) && second.starts_with(advice), "{doubt}");
    }
    // Computed with the matching block size: 64 of 164 tokens, and not all of the first of two blocks of 512.
    let path = written(&folder, "t.jsonl", &[of_512, in_ours(0, 64, 1), in_ours(1, 100, 2)]);
    let info: Value = serde_json::from_slice(&trace(&["info", &path, "--json"]).stdout).unwrap();
    assert_eq!((&info["reuse"][0]["token_share"], &info["fitting_block_size"]), (&json!(64.0 / 164.0), &json!(64)));
    let text = String::from_utf8(trace(&["info", &path]).stdout).unwrap();
    assert!(text.contains("prefixes       blocks of 64 tokens"), "{text}");
    // The remedies help.
    let unsorted = written(&folder, "t.jsonl", &[row(5, 10, 1), row(3, 10, 1)]);
    let merged = folder.path().join("merged.jsonl").to_str().unwrap().to_owned();
    assert!(trace(&["merge", &unsorted, "--output", &merged]).status.success());
    let small = written(&folder, "small.jsonl", &[row(0, 64, 1), row(1, 100, 2)]);
    for args in [&["info", &merged, "--json"][..], &["info", &small, "--json", "--block-size", "64"]] {
        let info: Value = serde_json::from_slice(&trace(args).stdout).unwrap();
        assert_eq!(info["warnings"], json!([]), "{args:?}");
    }
}

#[test]
fn a_capture_is_looked_at_in_the_order_of_arrivals_and_not_warned_of_for_its_order_of_ends() {
    let folder = TempDir::new().unwrap();
    let blocks = json!({"size": 4, "unit": "tokens", "last": "kept", "ids": "chained", "scope": "trace"});
    let row = |at: u64, id: u64| json!({"at": at, "prompt": {"tokens": 4, "blocks": [id]}, "output_tokens": 1});
    // In the order of arrivals each block comes twice in a row, and a cache of one has it.
    let arrivals = [row(1, 7), row(2, 7), row(3, 8), row(4, 8)];
    let ends = [2, 0, 3, 1].map(|at: usize| arrivals[at].clone());
    let about = |source: &str, rows: &[Value], cache: &[&str]| -> Value {
        let header = json!({"streamgauge_trace": 1, "source": source, "blocks": blocks});
        let path = written(&folder, "t.jsonl", &[&[header], rows].concat());
        serde_json::from_slice(&trace(&[&["info", &path, "--json"], cache].concat()).stdout).unwrap()
    };
    let info = |source: &str, rows: &[Value]| about(source, rows, &["--cache-blocks", "1"]);
    let capture = info("streamgauge 0.1.0", &ends);
    assert_eq!(capture, info("streamgauge 0.1.0", &arrivals));
    assert_eq!(about("streamgauge 0.1.0", &ends, &[])["warnings"], json!([]));
    assert_eq!((&capture["warnings"], &capture["reuse"][1]["hit_blocks"]), (&json!([]), &json!(2)));
    let public = info("mooncake", &ends);
    assert_eq!(public["warnings"], json!([{"warning": "unsorted", "rows": 2}]));
    assert_eq!(public["reuse"][1]["hit_blocks"], 0, "it follows the rows, as the warning says");
}

#[test]
fn header_fields_that_a_format_cannot_hold_are_reported() {
    let folder = TempDir::new().unwrap();
    let row = json!({"at": SECOND, "prompt": {"tokens": 9}, "output_tokens": 3, "session": "s", "turn": 1, "think": 5});
    let blocks = json!({"size": 16, "unit": "tokens", "last": "kept", "ids": "chained", "scope": "trace", "key": "k"});
    let header =
        |turns| json!({"streamgauge_trace": 1, "source": "t", "started_unix_ns": 7, "blocks": blocks, "turns": turns});
    let notes_of = |turns, to| {
        let path = written(&folder, "t.jsonl", &[header(turns), row.clone()]);
        let out = folder.path().join("out").to_str().unwrap().to_owned();
        stderr(&trace(&["convert", &path, "--to", to, "--output", &out]))
    };
    let (start, key) = ("header.started_unix_ns (1)", "header.blocks.key (1)");
    let added = "later turns of this trace hold only what was added, and";
    for (to, clock, delta) in [
        ("streamgauge", true, true),
        ("parquet", true, true),
        ("mooncake", false, true),
        ("multi_turn", false, true),
        ("azure", true, false),
        ("dynamo", true, false),
        ("bailian", false, false),
        ("burstgpt", false, false),
        ("ragpulse", false, false),
        ("timed_trace", false, false),
        ("weka", false, false),
    ] {
        let (whole, later) = (notes_of("full", to), notes_of("delta", to));
        assert_eq!(whole.contains(start), !clock, "{whole}");
        assert_eq!(whole.contains(key), !matches!(to, "streamgauge" | "parquet"), "{whole}");
        assert_eq!((whole.contains(added), later.contains(added)), (false, !delta), "{later}");
    }
    assert!(notes_of("full", "mooncake").contains("think (1)"), "a session is left out, and its pauses");
    assert!(!notes_of("delta", "mooncake").contains("think"), "the pause stands in `delay`");
}

#[test]
fn rows_out_of_order_are_reported_with_the_verb_that_sorts_them() {
    let folder = TempDir::new().unwrap();
    let row = |at: u64| json!({"at": at, "prompt": {"tokens": 9}, "output_tokens": 2});
    let header = json!({"streamgauge_trace": 1, "source": "t"});
    let path = written(&folder, "t.jsonl", &[header, row(5), row(3), row(4), row(1)]);
    let merged = folder.path().join("merged.jsonl").to_str().unwrap().to_owned();
    let is_noted = |args: &[&str]| {
        stderr(&trace(args)).contains("2 rows come earlier than the row above them, as in what was read")
    };
    assert!(is_noted(&["convert", &path, "--to", "mooncake"]));
    assert!(!is_noted(&["convert", &path, "--to", "streamgauge"]), "our own is read in any order");
    assert!(!is_noted(&["merge", &path, "--output", &merged]) && !is_noted(&["convert", &merged, "--to", "mooncake"]));
}

#[test]
fn a_missing_token_count_is_reported_where_a_format_needs_one() {
    let folder = TempDir::new().unwrap();
    let header = json!({"streamgauge_trace": 1, "source": "t"});
    let rows = [
        header,
        json!({"at": 0, "prompt": {"tokens": 9}}),
        json!({"at": 0, "prompt": {"tokens": 9}, "output_tokens": 2}),
    ];
    let path = written(&folder, "t.jsonl", &rows);
    let note = "note: 1 requests have no output length, and were written as answers of no token";
    for (to, wants) in [
        ("azure", true),
        ("bailian", true),
        ("burstgpt", true),
        ("ragpulse", true),
        ("weka", true),
        ("mooncake", false),
        ("dynamo", true),
        ("parquet", false),
    ] {
        let out = folder.path().join("out").to_str().unwrap().to_owned();
        let notes = stderr(&trace(&["convert", &path, "--to", to, "--output", &out]));
        assert_eq!(notes.contains(note), wants, "{to}: {notes}");
    }
}

#[test]
fn a_recording_omits_unknown_cache_and_concurrency_fields() {
    let folder = TempDir::new().unwrap();
    let row = json!({"at": 0, "prompt": {"tokens": 9}, "output_tokens": 1, "timing": {"first_token": 5}});
    let mut known = row.clone();
    (known["prompt"]["cached"], known["in_flight"]) = (json!(0), json!(0));
    let path = written(&folder, "t.jsonl", &[json!({"streamgauge_trace": 1, "source": "t"}), row, known]);
    let done = trace(&["convert", &path, "--to", "vllm-vcr"]);
    let text = String::from_utf8(done.stdout).unwrap();
    let recordings: Vec<Value> = text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |row: &Value| (row.get("cached_tokens").cloned(), row.get("concurrency").cloned());
    assert_eq!(recordings.iter().map(of).collect::<Vec<_>>(), [(None, None), (Some(json!(0)), Some(json!(1)))]);
}

#[test]
fn unknown_streaming_is_reported_where_a_format_needs_it() {
    let folder = TempDir::new().unwrap();
    let header = json!({"streamgauge_trace": 1, "source": "t"});
    let row = |rest: Value| {
        let mut row = json!({"at": 0, "prompt": {"tokens": 9}, "output_tokens": 2});
        row.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        row
    };
    let known = [json!({"stream": true}), json!({"stream": false}), json!({"timing": {"first_token": 5}})].map(row);
    let notes_of = |rows: &[Value]| {
        let path = written(&folder, "t.jsonl", &[std::slice::from_ref(&header), rows].concat());
        stderr(&trace(&["convert", &path, "--to", "weka"]))
    };
    let note = "note: 1 requests do not state whether they were streamed, and were written as not streamed\n";
    assert!(notes_of(&[&known[..], &[row(json!({}))]].concat()).contains(note));
    assert!(!notes_of(&known).contains("whether they were streamed"));
}

#[test]
fn times_truncated_to_azures_resolution_are_reported() {
    let folder = TempDir::new().unwrap();
    for (times, cut) in [([0, 100, 2_300], None), ([0, 101, 2_399], Some("note: 2 times were cut to 100 ns"))] {
        let rows = times.map(|at| json!({"at": at, "prompt": {"tokens": 9}, "output_tokens": 2}));
        let path =
            written(&folder, "t.jsonl", &[&[json!({"streamgauge_trace": 1, "source": "t"})], &rows[..]].concat());
        let notes = stderr(&trace(&["convert", &path, "--to", "azure"]));
        assert_eq!(notes.lines().find(|line| line.contains("cut")).map(|line| &line[..32]), cut, "{notes}");
    }
}

#[test]
fn a_failure_is_no_loss_where_a_format_writes_it_as_zero_tokens() {
    let folder = TempDir::new().unwrap();
    let notes_of = |outcome: &str, output: u64| {
        let row = json!({"at": 0, "prompt": {"tokens": 9}, "output_tokens": output, "outcome": outcome});
        let path = written(&folder, "t.jsonl", &[json!({"streamgauge_trace": 1, "source": "t"}), row]);
        let notes = stderr(&trace(&["convert", &path, "--to", "burstgpt"]));
        (notes.contains("has no place for: outcome (1)"), notes.contains("1 answers of no token are read as failures"))
    };
    assert_eq!(notes_of("failed", 0), (false, false));
    assert_eq!(notes_of("failed", 3), (true, false), "it is read as an answer");
    assert_eq!(notes_of("success", 3), (true, false));
    assert_eq!(notes_of("refused", 0), (true, true), "it is read as a failure");
}

#[test]
fn a_column_without_a_name_is_reported_by_its_position() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.csv");
    fs::write(&path, ",TIMESTAMP,ContextTokens,GeneratedTokens\n0,2023-11-16 18:15:46.6805900,374,44\n").unwrap();
    let notes = stderr(&trace(&["info", path.to_str().unwrap()]));
    assert!(notes.ends_with("note: not converted: column 1, which has no name (1)\n"), "{notes}");
}

#[test]
fn our_own_rows_are_read_after_a_byte_order_mark_and_a_bad_one_is_named_by_its_column() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.jsonl");
    let header = "{\"streamgauge_trace\":1,\"source\":\"t\"}\r\n";
    for (text, expected) in [
        (format!("\u{feff}{header}{{\"at\":1}}\r\n"), Ok(1)),
        (format!("\u{feff}\r\n\n{header}{{\"at\":1}}\r\n"), Ok(1)),
        (
            format!("{header}{{\"at\":1}}\n{{\"model\":\"m\",\"at\":\"SECRET\"}}\n"),
            Err(
                ":3: not a row of a trace: it makes no sense from column 26 on; take the line out, or write the trace again",
            ),
        ),
        (
            "{\"streamgauge_trace\":1,\"source\":[\"SECRET\"]}\n".to_owned(),
            Err(
                ":1: not a row of a trace: its header makes no sense from column 32 on; take the line out, or write the trace again",
            ),
        ),
    ] {
        fs::write(&path, text).unwrap();
        let done = trace(&["info", path.to_str().unwrap(), "--json"]);
        let result = match done.status.success() {
            true => Ok(serde_json::from_slice::<Value>(&done.stdout).unwrap()["requests"].as_u64().unwrap()),
            false => Err(stderr(&done).lines().last().unwrap().replace(path.to_str().unwrap(), "FILE")),
        };
        assert_eq!(result, expected.map_err(|what| format!("error: FILE{what}")));
    }
}

#[test]
fn a_row_of_our_own_without_its_time_is_named_by_line_and_field_and_not_taken_to_come_at_0() {
    let folder = TempDir::new().unwrap();
    let header = json!({"streamgauge_trace": 1, "source": "t"});
    let path = written(&folder, "t.jsonl", &[header.clone(), json!({"at": 0}), json!({"output_tokens": 3})]);
    let done = trace(&["info", &path]);
    let expected =
        format!("error: {path}:3: not a row of a trace: at is missing; take the line out, or write the trace again");
    assert_eq!((done.status.code(), stderr(&done).lines().last()), (Some(1), Some(&expected[..])));
    let path = written(&folder, "t.jsonl", &[header, json!({"at": 0}), json!({"output_tokens": 3, "at": 0})]);
    assert_eq!(rows(&trace(&["convert", &path])).len(), 2);
}

#[test]
fn unknown_fields_of_native_rows_are_reported_once_and_the_rows_are_read() {
    let folder = TempDir::new().unwrap();
    let header = json!({"streamgauge_trace": 1, "source": "t"});
    let part = json!({"kind": "image", "size": [1, 2], "bytes": null, "dpi": 300});
    let all = json!({"at": 1, "speed": 2, "session": null, "prompt": {"tokens": 9, "blocks": [], "parts": [part]},
        "params": {"top_p": 0.5}, "timing": {}, "output_tokens": 3});
    let rows = [header, all, json!({"at": 2, "output": 3}), json!({"at": 3, "output": 3, "prompt": {"tokens": 9}})];
    let path = written(&folder, "t.jsonl", &rows);
    for verb in [&["info", &path][..], &["convert", &path, "--to", "azure"]] {
        let notes = stderr(&trace(verb));
        let lost: Vec<&str> = notes.lines().filter(|line| line.contains("not converted")).collect();
        let first = ["output (2)", "params.top_p (1)", "prompt.parts.dpi (1)", "speed (1)"];
        let first = first.map(|field| field.replace(" (", ", as far as the first rows have it ("));
        assert_eq!(lost, [format!("note: not converted: {}", first.join(", "))]);
    }
    assert!(!stderr(&trace(&["info", &small(&folder)])).contains("not converted"));
}

#[test]
fn a_model_without_a_name_has_none_after_a_format_that_needs_one() {
    let folder = TempDir::new().unwrap();
    let path = written(&folder, "t.jsonl", &[json!({"timestamp": 0, "input_length": 9, "output_length": 2})]);
    let weka = folder.path().join("weka.jsonl").to_str().unwrap().to_owned();
    assert!(trace(&["convert", &path, "--to", "weka", "--output", &weka]).status.success());
    let back = rows(&trace(&["convert", &weka, "--to", "streamgauge"]));
    assert_eq!(back.iter().map(|row| row.model.as_deref()).collect::<Vec<_>>(), [None]);
}

#[test]
fn offsets_of_copies_are_rejected_without_copies() {
    let folder = TempDir::new().unwrap();
    let path = small(&folder);
    let scaled = |args: &[&str]| trace(&[&["scale", &path, "--osl", "2x"], args].concat());
    let alone = scaled(&["--offset", "1s"]);
    assert_eq!(alone.status.code(), Some(2));
    assert!(stderr(&alone).contains("--rate <TIMES>"), "{}", stderr(&alone));
    assert!(scaled(&[]).status.success() && scaled(&["--offset", "1s", "--rate", "2x"]).status.success());
}

#[test]
fn copies_of_a_short_trace_report_their_rate() {
    let folder = TempDir::new().unwrap();
    let path = small(&folder);
    let twice = |offset: &str| trace(&["scale", &path, "--rate", "2x", "--offset", offset]);
    let at: Vec<u64> = rows(&twice("10s")).iter().map(|row| row.at / SECOND).collect();
    assert_eq!(at, [0, 1, 3, 5, 6, 8]);
    let notes = stderr(&twice("10s"));
    // Twice as many in eight seconds as there were in three.
    assert!(notes.contains("the last copy begins 5.00s after the first, and together they span 8.00s"), "{notes}");
    assert!(notes.contains("the rate is 0.75x and not 2x"), "{notes}");
    assert!(!stderr(&twice("100ms")).contains("last copy"));
}

#[test]
fn a_cut_keeps_the_models_that_are_named_and_counts_time_from_its_own_beginning() {
    let folder = TempDir::new().unwrap();
    let path = small(&folder);
    let times = |args: &[&str]| {
        let rows = rows(&trace(&[&["cut", &path], args].concat()));
        rows.iter().map(|row| (row.at, row.model.clone().unwrap())).collect::<Vec<_>>()
    };
    let row = |at: u64, model: &str| (at, model.to_owned());
    assert_eq!(times(&["--models", "llama-*"]), [row(0, "llama-a"), row(3 * SECOND, "llama-a")]);
    assert_eq!(times(&["--models", "*-b,none", "--from", "500ms"]), [row(SECOND / 2, "qwen-b")]);
    assert_eq!(times(&["--models", "llama"]), []);
    assert_eq!(
        times(&["--from", "1s", "--to", "3s"]),
        [row(0, "qwen-b")],
        "the first moment belongs to it, the last does not"
    );
    let backwards = trace(&["cut", &path, "--from", "3s", "--to", "1s"]);
    assert_eq!(backwards.status.code(), Some(1));
    assert_eq!(
        stderr(&backwards),
        "error: nothing is from 3.00s on and before 1.00s; --to has to be later than --from\n"
    );
    let header = trace(&["cut", &path, "--from", "1s"]).stdout;
    let header: Value = serde_json::from_slice(header.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(header["started_unix_ns"], 1_000 + SECOND, "the wall clock of its beginning");
}

#[test]
fn a_slice_warns_of_turns_that_depend_on_omitted_ones() {
    let folder = TempDir::new().unwrap();
    let turn = |at: u64| json!({"timestamp": at, "text": "some words", "output_length": 2});
    let talk = |id, turns: [u64; 3]| json!({"session_id": id, "turns": turns.map(turn)});
    let path = written(&folder, "t.jsonl", &[talk("a", [0, 1_000, 4_000]), talk("b", [2_000, 3_000, 5_000])]);
    let cut = |from: &str| trace(&["cut", &path, "--from", from, "--output-format", "streamgauge"]);
    assert_eq!(rows(&cut("2s")).len(), 4);
    let lost = "not converted: the history before the cut of turns that hold only what was added (1)";
    assert!(stderr(&cut("2s")).contains(lost), "the last turn of a: {}", stderr(&cut("2s")));
    assert!(!stderr(&cut("0s")).contains("before the cut"));
}

#[test]
fn merged_traces_meet_by_the_wall_clock_or_from_the_start() {
    let folder = TempDir::new().unwrap();
    let of = |name: &str, started: u64| {
        let header = json!({"streamgauge_trace": 1, "source": "t", "started_unix_ns": started});
        written(&folder, name, &[header, json!({"at": 5, "model": name}), json!({"at": 90, "model": name})])
    };
    let (late, early) = (of("late", 1_050), of("early", 1_000));
    let merged = |more: &[&str]| {
        let rows = rows(&trace(&[&["merge", &late, &early], more].concat()));
        rows.iter().map(|row| (row.at, row.model.clone().unwrap())).collect::<Vec<_>>()
    };
    let row = |at: u64, model: &str| (at, model.to_owned());
    assert_eq!(merged(&[]), [row(5, "early"), row(55, "late"), row(90, "early"), row(140, "late")]);
    assert_eq!(merged(&["--from-start"]), [row(5, "late"), row(5, "early"), row(90, "late"), row(90, "early")]);
}

#[test]
fn a_trace_to_give_away_has_other_ids_each_time_and_times_and_lengths_in_steps() {
    let folder = TempDir::new().unwrap();
    let path = small(&folder);
    let text = fs::read_to_string(&path).unwrap();
    let path = written(
        &folder,
        "odd.jsonl",
        &text
            .lines()
            .map(|line| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                if line.get("at").is_some() {
                    line["at"] = json!(line["at"].as_u64().unwrap() + 123_456_789);
                    line["timing"] = json!({"first_token": 7_654_321, "ended": 98_765_432, "gaps": "AAAA"});
                    line["transfer"] = json!({"sent": 1_234, "received": 5_678});
                    line["reasoning_tokens"] = json!(3);
                }
                line
            })
            .collect::<Vec<_>>(),
    );
    let away = || {
        let done = trace(&["anonymize", &path, "--round-time", "10ms", "--round-length", "16"]);
        (String::from_utf8(done.stdout.clone()).unwrap(), rows(&done))
    };
    let ((text, first), (_, second)) = (away(), away());
    for name in ["llama", "qwen", "10.0.0.1", "\"k\"", "\"s\"", "started_unix_ns", "gaps", "transfer"] {
        assert!(!text.contains(name), "{name} in {text}");
    }
    assert_eq!(first.iter().map(|row| row.at).collect::<Vec<_>>(), [120, 1_120, 3_120].map(|ms| ms * 1_000_000));
    for row in &first {
        assert_eq!((row.timing.first_token, row.timing.ended), (Some(0), Some(90_000_000)));
    }
    // As long as the number of ids, which are of four tokens.
    let prompts = first.iter().map(|row| (row.prompt.tokens.unwrap(), row.prompt.blocks.len()));
    assert_eq!(prompts.collect::<Vec<_>>(), [(8, 2), (8, 2), (12, 3)]);
    assert_eq!(first.iter().map(|row| row.output_tokens.unwrap()).collect::<Vec<_>>(), [16, 32, 32]);
    assert!(first.iter().all(|row| row.reasoning_tokens == Some(16)));
    let blocks = |rows: &[TraceEntry], row: usize| rows[row].prompt.blocks.clone();
    assert!(blocks(&first, 2).starts_with(&blocks(&first, 0)) && blocks(&first, 1)[0] == blocks(&first, 0)[0]);
    assert_ne!(blocks(&first, 0), blocks(&second, 0), "the key is of the run");
    let models: Vec<_> = first.iter().map(|row| row.model.as_deref().unwrap()).collect();
    assert_eq!(models, ["model-1", "model-2", "model-1"]);
    assert!(first[0].session == first[2].session && first[0].session != second[0].session);
}

#[test]
fn a_rounded_length_is_not_given_away_by_the_limit_that_it_ended_at_nor_an_image_by_its_bytes() {
    let folder = TempDir::new().unwrap();
    let part = json!({"kind": "image", "bytes": 123_457, "size": [1023, 767]});
    let row = json!({"at": 0, "prompt": {"tokens": 9, "parts": [part]}, "params": {"max_tokens": 777, "min_tokens": 13},
        "output_tokens": 777, "finish": "length"});
    let path = written(&folder, "t.jsonl", &[json!({"streamgauge_trace": 1, "source": "t"}), row]);
    let row = rows(&trace(&["anonymize", &path, "--round-length", "100"])).remove(0);
    assert_eq!((row.output_tokens, row.params.max_tokens, row.params.min_tokens), (Some(800), Some(800), Some(100)));
    assert_eq!((row.prompt.parts[0].bytes, row.prompt.parts[0].size), (Some(123_500), Some((1023, 767))));
}

/// Two batch jobs and two chats, a minute apart.
fn classes(folder: &TempDir) -> String {
    let row = |minute: u64, tier: &str, session: &str| {
        json!({"at": minute * 60 * SECOND, "prompt": {"tokens": 8}, "output_tokens": 4, "class": {"tier": tier},
            "session": session, "model": "m"})
    };
    let header = json!({"streamgauge_trace": 1, "source": "by hand", "started_unix_ns": 7_200 * SECOND});
    let rows = [header, row(0, "chat", "a"), row(1, "batch-1", "b"), row(2, "chat", "c"), row(3, "batch-2", "d")];
    written(folder, "classes.jsonl", &rows)
}

fn minutes(output: &Output) -> Vec<(u64, String)> {
    let minute = |row: &TraceEntry| (row.at / 60 / SECOND, row.session.clone().unwrap());
    rows(output).iter().map(minute).collect()
}

fn at(list: &[(u64, &str)]) -> Vec<(u64, String)> {
    list.iter().map(|(minute, session)| (*minute, (*session).to_owned())).collect()
}

#[test]
fn a_class_moves_to_a_later_or_an_earlier_time_and_the_others_stay() {
    let folder = TempDir::new().unwrap();
    let path = classes(&folder);
    let started = |output: &Output| {
        let header: Value = serde_json::from_slice(output.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
        header["started_unix_ns"].as_u64().unwrap() / SECOND
    };
    let later = trace(&["shift", &path, "--by", "1h", "--class", "tier=batch-*"]);
    assert_eq!(minutes(&later), at(&[(0, "a"), (2, "c"), (61, "b"), (63, "d")]));
    assert_eq!(started(&later), 7_200);
    // Two minutes before 1 is before the start, so time 0 is two minutes earlier: the wall clock of the others stays.
    let earlier = trace(&["shift", &path, "--by", "-2m", "--class", "tier=batch-*"]);
    assert_eq!(minutes(&earlier), at(&[(1, "b"), (2, "a"), (3, "d"), (4, "c")]));
    assert_eq!(started(&earlier), 7_080);
    let all = trace(&["shift", &path, "--by", "90s"]);
    assert_eq!(minutes(&all), at(&[(1, "a"), (2, "b"), (3, "c"), (4, "d")]));
    let wrong = trace(&["shift", &path, "--by", "soon"]);
    assert_eq!(wrong.status.code(), Some(2));
    let piped = trace(&["shift", "-", "--by", "1h"]);
    assert!(stderr(&piped).contains("stdin can be read once"), "{}", stderr(&piped));
}

#[test]
fn the_rate_of_one_class_scales_and_the_others_stay() {
    let folder = TempDir::new().unwrap();
    let path = classes(&folder);
    let scaled = |args: &[&str]| minutes(&trace(&[&["scale", &path, "--offset", "60s"], args].concat()));
    let twice = scaled(&["--rate", "2x", "--class", "tier=batch-*"]);
    assert_eq!(twice, at(&[(0, "a"), (1, "b"), (1, "b#1"), (2, "c"), (3, "d"), (3, "d#1")]));
    let twice = rows(&trace(&["scale", &path, "--rate", "2x", "--offset", "60s", "--class", "tier=batch-*"]));
    assert_eq!(twice[2].at, 90 * SECOND, "a copy begins at its share of the offset");
    assert_eq!(scaled(&["--rate", "0.000001x", "--class", "tier=batch-*"]), at(&[(0, "a"), (2, "c")]));
    let cut = minutes(&trace(&["cut", &path, "--class", "tier=batch-2"]));
    assert_eq!(cut, at(&[(3, "d")]));
}
