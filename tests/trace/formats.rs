//! Trace formats: known figures of public traces, and what conversions keep, lose and report.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use streamgauge::measure::record::{Ending, Outcome};
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::trace::blocks::{expected_ids, prompt_tokens};
use streamgauge::trace::conversion_loss::ConversionLosses;
use streamgauge::trace::format::{self, FORMATS, ReadOptions};
use streamgauge::trace::info::{self, TraceInfo, TraceWarning};
use streamgauge::trace::input::{InputSource, InputStream};
use streamgauge::trace::scale_lengths::{self, LengthScale};
use streamgauge::trace::{Trace, scale};
use streamgauge::trace_file::gaps::pack;
use streamgauge::trace_file::header::{BlockIds, BlockScope, LastBlock, TraceHeader, TurnContent};
use streamgauge::trace_file::row::{Timing, TraceEntry};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces").join(name)
}

fn open(path: &Path) -> (&'static str, Trace) {
    let source = InputSource::open(path).unwrap();
    let format = format::detect(&source).unwrap_or_else(|what| panic!("{}: {what}", path.display()));
    (format.name, (format.read.unwrap())(source, &ReadOptions::default()).unwrap())
}

fn rows(path: &Path) -> (TraceHeader, Vec<TraceEntry>) {
    let (_, trace) = open(path);
    (trace.header.clone(), trace.entries.collect::<Result<_, _>>().unwrap())
}

fn about(name: &str, cache: Option<usize>) -> TraceInfo {
    info::info(&mut open(&data(name)).1, cache).unwrap()
}

fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected} ± {tolerance}");
}

// ----------------------------------------------------------------------------------------- what is known of public files

#[test]
fn mooncakes_files_have_the_sums_and_hits_that_are_known() {
    for (name, requests, input, output, hit, total) in [
        ("mooncake/conversation_first60s.jsonl", 162, 2_209_273, 58_039, 203, 4_400),
        ("mooncake/conversation_first300s.jsonl", 918, 12_446_054, 323_860, 5_034, 24_752),
        ("mooncake/synthetic_first60s.jsonl", 208, 2_715_078, 40_674, 323, 5_437),
    ] {
        let info = about(name, None);
        let (isl, osl) = (info.input.unwrap(), info.output.unwrap());
        assert_eq!((info.requests, isl.sum, osl.sum), (requests, input, output), "{name}");
        assert_eq!((info.reuse[0].hit_blocks, info.reuse[0].asked_blocks), (hit, total), "{name}");
    }
    let arxiv = about("mooncake/arxiv_head20.jsonl", None);
    assert_eq!((arxiv.requests, arxiv.input.unwrap().sum), (20, 256_262));
    assert_eq!((arxiv.reuse[0].hit_blocks, arxiv.reuse[0].asked_blocks), (65, 514));
}

#[test]
fn the_whole_conversation_hour_has_the_figures_that_are_known() {
    let info = about("mooncake/conversation_full.jsonl.zst", Some(10_000));
    let (isl, osl) = (info.input.unwrap(), info.output.unwrap());
    assert_eq!((info.requests, info.span_s.round()), (12_031, 3_537.0));
    assert_eq!((isl.p50, isl.p90, isl.p99.floor(), isl.max), (6_909.0, 27_367.0, 85_400.0, 126_195));
    assert_eq!((osl.p50, osl.p99.floor(), osl.max), (350.0, 1_118.0, 2_000));
    near(isl.mean, 12_035.0, 0.5);
    near(osl.mean, 343.0, 0.5);
    let [endless, bounded] = info.reuse[..] else { panic!("{:?}", info.reuse) };
    near(endless.token_share, 0.374, 0.0005);
    near(endless.request_share, 0.409, 0.0005);
    assert!(bounded.token_share < endless.token_share && bounded.token_share > 0.0);
    let burstiness = info.burstiness.unwrap();
    near(burstiness.gap_cv, 3.03, 0.01);
    near(burstiness.zero_gaps, 0.902, 0.001);
    near(burstiness.dispersion_1s.unwrap(), 7.9, 0.06);
    near(burstiness.peak_1s.unwrap(), 8.2, 0.06);
    near(burstiness.dispersion_10s.unwrap(), 2.1, 0.06);
    near(burstiness.peak_10s.unwrap(), 1.97, 0.01);
    assert!(
        matches!(info.warnings[..], [TraceWarning::BatchGrid { step_ns: 3_000_000_000, .. }]),
        "the grid, and no impossible length: {:?}",
        info.warnings
    );
}

/// Cache hits that caches would have had of these rows.
fn reuse(header: &TraceHeader, rows: &[TraceEntry]) -> info::PrefixCacheStats {
    let mut pass = info::InfoCollector::new(header, None);
    rows.iter().for_each(|row| pass.add(row));
    pass.finish().reuse.remove(0)
}

#[test]
fn the_ids_of_the_conversation_hour_are_chains_that_are_numbered_as_they_appear() {
    let (header, rows) = rows(&data("mooncake/conversation_full.jsonl.zst"));
    let mut parents = std::collections::HashMap::new();
    for row in &rows {
        assert_eq!(row.prompt.blocks.len() as u64, row.prompt.tokens.unwrap().div_ceil(512));
        let chain = std::iter::once(None).chain(row.prompt.blocks.iter().copied().map(Some));
        for (place, (id, parent)) in row.prompt.blocks.iter().zip(chain).enumerate() {
            let new = parents.len() as u64;
            assert_eq!(*parents.entry(*id).or_insert((parent, place)), (parent, place), "one parent and one place");
            assert!(*id <= new, "in order of first appearance, without a gap");
        }
    }
    assert_eq!((rows.len(), parents.len()), (12_031, 288_500 - 105_710));
    assert!(rows.iter().all(|row| row.prompt.blocks[0] == 0), "all begin alike");
    // How much of the reuse is that of a warm cache, and how much the block that all have.
    for (minutes, share) in [(1, 0.047), (5, 0.207), (15, 0.309), (30, 0.347), (59, 0.374)] {
        let until = rows.partition_point(|row| row.at < minutes * 60_000_000_000);
        near(reuse(&header, &rows[..until]).token_share, share, 0.0006);
    }
    // Of blocks, without the one that all begin with: the first request alone has not had it from another.
    let all = reuse(&header, &rows);
    let (hit, total) = (all.hit_blocks - (12_031 - 1), all.asked_blocks - 12_031);
    near(hit as f64 / total as f64, 0.339, 0.0005);
}

#[test]
fn the_conversation_hour_comes_in_batches() {
    let times: Vec<u64> = rows(&data("mooncake/conversation_full.jsonl.zst")).1.iter().map(|row| row.at).collect();
    let ticks: Vec<usize> = times.chunk_by(|a, b| b - a < 1_000_000_000).map(<[u64]>::len).collect();
    let distinct = times.chunk_by(|a, b| a == b).count();
    assert_eq!((distinct, ticks.iter().max()), (1_180, Some(&28)));
    near(times.len() as f64 / ticks.len() as f64, 10.2, 0.05);
    let first = |name: &str| rows(&data(name)).1;
    let minute = first("mooncake/conversation_first60s.jsonl");
    assert_eq!(minute.chunk_by(|a, b| a.at == b.at).map(<[TraceEntry]>::len).max(), Some(16));
    assert_eq!(first("mooncake/conversation_first300s.jsonl").last().unwrap().at, 297_000_000_000);
    let control = about("mooncake/synthetic_first60s.jsonl", None);
    assert!(control.warnings.is_empty(), "a Poisson process is no grid: {:?}", control.warnings);
    near(control.burstiness.unwrap().gap_cv, 1.01, 0.005);
}

#[test]
fn azures_file_is_read_to_the_hundred_nanoseconds() {
    let (header, rows) = rows(&data("azure/conv2023_first300s.csv"));
    assert_eq!(header.started_unix_ns, Some(1_700_158_546_680_590_000));
    assert_eq!((rows.len(), rows[0].at, rows[1].at), (1_445, 0, 4_314_579_000));
    assert_eq!(rows.iter().filter_map(|row| row.prompt.tokens).sum::<u64>(), 1_527_768);
    assert_eq!(rows.iter().filter_map(|row| row.output_tokens).sum::<u64>(), 367_070);
    let smallest = rows.windows(2).map(|pair| pair[1].at - pair[0].at).min();
    assert_eq!(smallest, Some(6_000), "no two at once");
}

#[test]
fn agent_sessions_are_read_with_their_times_and_ids_of_the_session() {
    let (header, rows) = rows(&data("kv-cache-tester"));
    let blocks = header.blocks.unwrap();
    assert_eq!((blocks.size, blocks.last, blocks.scope), (64, LastBlock::Dropped, BlockScope::Session));
    let of = |session: &str| rows.iter().filter(|row| row.session.as_deref() == Some(session)).collect::<Vec<_>>();
    let sizes = ["trace_0026", "trace_0057", "trace_0187", "trace_0504"].map(|session| of(session).len());
    assert_eq!((rows.len(), sizes), (17, [3, 8, 3, 3]));
    assert!(rows.iter().all(|row| row.prompt.blocks.len() as u64 == row.prompt.tokens.unwrap() / 64));
    let mixed = of("trace_0504");
    assert_eq!(mixed.iter().map(|row| row.stream).collect::<Vec<_>>(), [Some(false), Some(false), Some(true)]);
    assert_eq!((mixed[2].at, mixed[2].think), (3_075_000_000_000, Some(3_058_000_000_000)));
    assert_eq!(mixed[2].timing.first_token, Some(1_750_000_000));
    let info = about("kv-cache-tester", None);
    assert!(info.warnings.iter().all(|warning| !matches!(warning, TraceWarning::ImpossibleLengths { .. })));
    assert_eq!(info.sessions.unwrap().count, 4);
}

#[test]
fn subagents_are_sessions_of_their_own() {
    let session = r#"{"id":"a","block_size":64,"hash_id_scope":"local","requests":[
        {"t":0.0,"type":"s","model":"m","in":130,"out":5,"hash_ids":[1,2],"stop":"tool_use"},
        {"t":4.0,"type":"subagent","agent_id":"x","requests":[{"t":1.0,"type":"n","in":64,"out":1,"hash_ids":[1]}]},
        {"t":9.0,"type":"s","in":200,"out":0,"hash_ids":[1,2,3]}]}"#;
    let rows = of_text(session).1;
    let seen: Vec<_> = rows.iter().map(|row| (row.at / 1_000_000_000, row.session.as_deref().unwrap())).collect();
    assert_eq!(seen, [(0, "a"), (5, "a/x"), (9, "a")]);
    assert_eq!(rows[2].turn, Some(1));
}

#[test]
fn bailians_ids_are_no_prefixes_and_its_turns_follow_their_parents() {
    let (header, rows) = rows(&data("bailian/handmade_schema.jsonl"));
    assert_eq!(header.blocks.unwrap().ids, BlockIds::Single);
    let turns: Vec<_> = rows.iter().map(|row| (row.session.as_deref().unwrap(), row.turn.unwrap())).collect();
    assert_eq!(turns, [("55", 0), ("55", 1), ("160", 0)]);
    // The id that the third shares with the others stands at the same place behind another block: no hit.
    let info = about("bailian/handmade_schema.jsonl", None);
    assert_eq!((info.reuse[0].hit_blocks, info.reuse[0].asked_blocks), (2, 11));
}

#[test]
fn turns_of_burstgpt_are_numbered_as_they_come_in_their_session() {
    let text = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
        5,a,2.5,ChatGPT,472,18,490,Conversation log\n6,b,,ChatGPT,9,9,18,Conversation log\n\
        9,a,,ChatGPT,900,18,918,Conversation log\n9,,,ChatGPT,900,18,918,API log\n";
    let turns: Vec<_> = of_text(text).1.into_iter().map(|row| (row.session, row.turn)).collect();
    let of = |session: &str, turn| (Some(session.to_owned()), Some(turn));
    assert_eq!(turns, [of("a", 0), of("b", 0), of("a", 1), (None, None)]);
}

#[test]
fn burstgpt_is_read_by_the_names_of_its_columns() {
    let (_, rows) = rows(&data("burstgpt/format_v1_3rows.csv"));
    let seen: Vec<_> = rows.iter().map(|row| (row.at / 1_000_000_000, row.prompt.tokens, row.output_tokens)).collect();
    assert_eq!(seen, [(5, Some(472), Some(18)), (45, Some(1_087), Some(230)), (118, Some(417), Some(276))]);
    assert_eq!(rows[2].model.as_deref(), Some("GPT-4"));
    assert!(self::rows(&data("burstgpt/format_v3_header_only.csv")).1.is_empty());
    let v3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
        1.5,7,2.25,GPT-4,10,0,10,API log\n";
    let row = of_text(v3).1.remove(0);
    assert_eq!((row.at, row.session.as_deref(), row.timing.ended), (1_500_000_000, Some("7"), Some(2_250_000_000)));
    assert_eq!(row.outcome.map(|outcome| outcome.name()), Some("failed"));
}

#[test]
fn a_name_with_a_comma_is_one_cell_there_and_back() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
        1.5,\"a, b\",,\"gpt \"\"4\"\", large\",10,3,13,\n";
    std::fs::write(file.path(), text).unwrap();
    let names = |row: &TraceEntry| (row.session.clone().unwrap(), row.model.clone().unwrap(), row.prompt.tokens);
    let expected = ("a, b".to_owned(), "gpt \"4\", large".to_owned(), Some(10));
    assert_eq!(names(&rows(file.path()).1[0]), expected);
    assert_eq!(names(&through(file.path(), "burstgpt").2[0]), expected);
}

// ------------------------------------------------------------------------------------------------------- other formats

fn of_text(text: &str) -> (TraceHeader, Vec<TraceEntry>, Vec<(String, u64)>) {
    let bytes = std::io::Cursor::new(text.to_owned().into_bytes());
    let source = InputSource::Stream(InputStream::new("text", Box::new(bytes)).unwrap());
    let format = format::detect(&source).unwrap_or_else(|what| panic!("{what}: {text}"));
    let trace = (format.read.unwrap())(source, &ReadOptions::default()).unwrap();
    let rows = trace.entries.collect::<Result<_, _>>().unwrap();
    (trace.header, rows, trace.losses.list())
}

#[test]
fn texts_leave_nothing_but_their_lengths() {
    for text in [
        r#"{"text": "SECRET é", "timestamp": 1500, "session_id": "s", "output_length": 7, "extra": {"a": "SECRET"}}"#,
        r#"{"session_id": "s", "turns": [{"text": "SECRET é", "timestamp": 1500, "output_length": 7}]}"#,
        r#"{"text_input": "SECRET é", "timestamp": 1500, "session_id": "s", "output_length": 7}"#,
        r#"{"payload": {"prompt": "SECRET é"}, "timestamp": 1500, "session_id": "s", "output_length": 7}"#,
    ] {
        let (header, rows, _) = of_text(text);
        assert_eq!((rows[0].prompt.bytes, rows[0].at, rows[0].output_tokens), (Some(9), 1_500_000_000, Some(7)));
        let written = serde_json::to_string(&(header, rows)).unwrap();
        assert!(!written.contains("SECRET"), "{written}");
    }
}

#[test]
fn a_recording_of_vllm_vcr_keeps_its_gaps_and_the_losses_are_reported() {
    let text = concat!(
        r#"{"meta":{"model":"m","block_size":16,"gpu":"x"}}"#,
        "\n",
        r#"{"prompt_tokens":33,"cached_tokens":16,"output_tokens":4,"ttft_ms":50.5,"itl_ms":[10,20.25],"#,
        r#""itl_tokens":[1,2],"concurrency":3,"arrival_ms":1000,"block_hashes":[18446744073709551615,2],"#,
        r#""finish_reason":"length","output_token_ids":[1,2,3,4]}"#
    );
    let (header, rows, lost) = of_text(text);
    assert_eq!(header.blocks.unwrap().last, LastBlock::Dropped);
    let row = &rows[0];
    assert_eq!((row.at, row.timing.first_token), (1_000_000_000, Some(50_500_000)));
    assert_eq!((row.timing.first_tokens, row.timing.ended), (Some(1), Some(80_750_000)));
    assert_eq!((row.in_flight, row.prompt.blocks[0]), (Some(2), u64::MAX));
    assert!(lost.contains(&("output_token_ids".to_owned(), 1)), "{lost:?}");
}

#[test]
fn a_dynamo_trace_is_its_ends_of_requests_wrapped_or_not() {
    let event = r#"{"schema":"dynamo.request.trace.v1","event_type":"request_end","event_time_unix_ms":1700000001000,
        "agent_context":{"session_id":"s"},"request":{"request_id":"r","model":"m","output_tokens":4,"cached_tokens":64,
        "request_received_ms":1700000000000,"ttft_ms":20.5,"total_time_ms":1000,
        "replay":{"trace_block_size":64,"input_length":70,"input_sequence_hashes":[101,102]}}}"#
        .replace('\n', "");
    let tool = r#"{"schema":"dynamo.request.trace.v1","event_type":"tool_end","tool":{}}"#;
    for text in [format!("{event}\n{tool}\n"), format!("{{\"timestamp\":1,\"event\":{event}}}\n")] {
        let (header, rows, _) = of_text(&text);
        assert_eq!((header.started_unix_ns, header.blocks.unwrap().size), (Some(1_700_000_000_000_000_000), 64));
        assert_eq!(
            (rows.len(), rows[0].prompt.tokens, rows[0].prompt.blocks.as_slice()),
            (1, Some(70), &[101, 102][..])
        );
        assert_eq!((rows[0].session.as_deref(), rows[0].timing.first_token), (Some("s"), Some(20_500_000)));
    }
}

#[test]
fn a_day_is_generated_from_servegens_clients_and_is_the_same_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file("chunk-0-trace.csv", "0,1.5,8.6,Weibull,0.5,0.4\n600,0.0,0,,,\n1200,0.5,1,,,\n1800,0,0,,,\n");
    let windows = r#"{"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{7: 1.0}"}}"#;
    file("chunk-0-dataset.json", windows);
    let (header, rows) = rows(folder.path());
    assert!(header.source.contains("seed 0"), "{}", header.source);
    // 600 s at 1.5 and 600 s at 0.5.
    assert!((1_000..1_450).contains(&rows.len()), "{}", rows.len());
    assert!(rows.iter().all(|row| row.output_tokens == Some(7) && [Some(100), Some(200)].contains(&row.prompt.tokens)));
    assert!(rows.iter().all(|row| row.at < 600_000_000_000 || row.at >= 1_200_000_000_000));
    assert!(rows.windows(2).all(|pair| pair[0].at <= pair[1].at));
    assert_eq!(rows, self::rows(folder.path()).1);
}

#[test]
fn multimodal_clients_of_servegen_have_texts_and_images_and_a_folder_without_lengths_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    file("chunk-0-trace.csv", "0,1.5,8.6,Weibull,0.5,0.4\n600,0,0,,,\n");
    let windows = r#"{"0": {"text_tokens": "{136: 0.5, 372: 0.5}", "output_tokens": "{19: 1.0}",
        "image_count": "{0: 0.5, 2: 0.5}", "image_tokens": "{1196: 1.0}",
        "audio_count": "{0: 1.0}", "audio_tokens": "{0: 1.0}"}}"#;
    file("chunk-0-dataset.json", windows);
    let (_, rows) = rows(folder.path());
    let with = rows.iter().filter(|row| row.prompt.parts.len() == 2).count();
    assert!(rows.len() > 600 && with * 3 > rows.len() && with * 3 < rows.len() * 2, "{with} of {}", rows.len());
    for row in &rows {
        let images = row.prompt.parts.len() as u64;
        let text = row.prompt.tokens.unwrap() - images * 1_196;
        assert!([136, 372].contains(&text) && [0, 2].contains(&images), "{text} and {images}");
        assert_eq!(row.prompt.bytes, (images > 0).then_some(text * 4));
    }
    file("chunk-0-dataset.json", r#"{"0": {"tokens": "{136: 0.5}"}}"#);
    let path = folder.path().to_str().unwrap();
    let done = trace(&["convert", path, "--to", "mooncake"]);
    assert_eq!(done.status.code(), Some(1));
    let expected = "no client has lengths: input_tokens or text_tokens, and output_tokens; check that this is";
    assert!(stderr(&done).contains(expected), "{}", stderr(&done));
}

#[test]
fn clients_of_servegen_that_seldom_ask_do_not_ask_more_often_than_their_rate() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: String, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    // Six requests in a window, in bursts.
    let windows = |n: u64| format!("{},0.01,3.4,Weibull,0.3753,0.3967\n", n * 600);
    let windows: String = (0..144).map(windows).collect();
    for client in 0..50 {
        file(format!("chunk-{client}-trace.csv"), &windows);
        let lengths = r#"{"0": {"input_tokens": "{100: 1.0}", "output_tokens": "{7: 1.0}"}}"#;
        file(format!("chunk-{client}-dataset.json"), lengths);
    }
    let rows = rows(folder.path()).1.len();
    assert!((40_600..45_800).contains(&rows), "{rows} instead of 43,200");
}

#[test]
fn chunks_of_ragpulse_become_blocks_if_their_tables_are_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let row = |passage: u64| {
        format!(
            r#"{{"timestamp": "82", "input_length": 60, "output_length": 19, "hash_ids": {{"sys_prompt": [8302],
            "passages_ids": [{passage}], "history": [], "web_search": [], "user_input": []}}, "session_id": "x"}}"#
        )
        .replace('\n', "")
    };
    let trace = folder.path().join("0_trace.jsonl");
    std::fs::write(&trace, format!("{}\n{}\n\n", row(1), row(2))).unwrap();
    assert!(rows(&trace).1.iter().all(|row| row.prompt.blocks.is_empty()));
    std::fs::write(folder.path().join("1_sys_prompt.jsonl"), r#"{"sys_prompt_id": 8302, "token_length": 32}"#).unwrap();
    let passages = "{\"passages_id\": 1, \"token_length\": 20}\n{\"passages_id\": 2, \"token_length\": 20}\n";
    std::fs::write(folder.path().join("2_passages.jsonl"), passages).unwrap();
    let (_, rows) = rows(&trace);
    let (a, b) = (&rows[0].prompt.blocks, &rows[1].prompt.blocks);
    assert_eq!((rows[0].at, a.len(), b.len()), (82_000_000_000, 3, 3));
    assert_eq!(a.iter().zip(b).take_while(|(a, b)| a == b).count(), 2);
}

#[test]
fn vllms_timed_trace_is_distinguished_from_mooncake_by_fractions_and_blocks() {
    let row = r#"{"timestamp": 1.5, "input_length": 40, "output_length": 3, "hash_ids": [1, 2, 3]}"#;
    let (header, rows, _) = of_text(row);
    assert_eq!((header.source.as_str(), header.blocks.unwrap().size, rows[0].at), ("timed_trace", 16, 1_500_000_000));
}

#[test]
fn a_system_prompt_comes_with_the_first_turn_and_is_no_request_of_its_own() {
    let text = r#"{"session_id": "a", "turns": [{"role": "system", "text": "12345678"}, {"text": "abcd", "timestamp": 5}, {"text": "ef"}]}
        {"session_id": "b", "turns": [{"role": "system", "text": "12345678"}]}"#;
    let (header, rows, losses) = of_text(text);
    assert_eq!((header.turns, rows.len()), (TurnContent::Delta, 3));
    assert_eq!(rows.iter().map(|row| row.prompt.bytes.unwrap()).collect::<Vec<_>>(), [12, 2, 8]);
    assert_eq!(losses, [("rows without a time, taken to come at 0".to_owned(), 1)], "a role is understood");
}

#[test]
fn turns_that_only_know_their_pause_come_after_it() {
    let text = "{\"session_id\": \"a\", \"timestamp\": 1000, \"input_length\": 10, \"output_length\": 5}\n\
        {\"session_id\": \"a\", \"delay\": 500, \"input_length\": 3, \"output_length\": 5}\n";
    let (header, rows, _) = of_text(text);
    assert_eq!(format!("{:?}", header.turns), "Delta");
    assert_eq!((rows[1].at, rows[1].turn, rows[1].think), (1_500_000_000, Some(1), Some(500_000_000)));
}

#[test]
fn later_rows_of_a_session_hold_what_was_added_as_aiperf_takes_them() {
    let turns = |later: &str| {
        let first = r#"{"session_id": "a", "timestamp": 5, "output_length": 5, "#;
        of_text(&format!("{first}{later}}}\n{first}{later}}}\n")).0.turns
    };
    for (row, expected) in [
        (r#""input_length": 3"#, TurnContent::Delta),
        (r#""text_input": "abc""#, TurnContent::Delta),
        (r#""input_length": 3, "context_mode": "message_array_with_responses""#, TurnContent::Full),
        (r#""messages": [{"role": "user"}], "delay": 9"#, TurnContent::Full),
        (r#""messages": [{"role": "user"}], "message_mode": "delta""#, TurnContent::Delta),
    ] {
        assert_eq!(turns(row), expected, "{row}");
    }
    let alone = r#"{"timestamp": 5, "input_length": 3, "output_length": 5, "delay": 9}"#;
    assert_eq!(of_text(alone).0.turns, TurnContent::Full);
}

#[test]
fn a_turn_is_written_with_its_pause_or_its_time_and_the_first_of_a_session_with_its_time() {
    let turn = |session: &str, turn: u32, think: Option<u64>| {
        let mut entry = TraceEntry { at: 5_000_000, turn: Some(turn), think, ..TraceEntry::default() };
        (entry.session, entry.prompt.tokens) = (Some(session.to_owned()), Some(10));
        entry
    };
    let rows = [turn("a", 0, None), turn("a", 1, Some(7_000_000)), turn("a", 2, None), turn("b", 4, Some(1_000_000))];
    let header = TraceHeader { turns: TurnContent::Delta, ..TraceHeader::new("test") };
    let (rows, _) = lines("mooncake", header, rows.into());
    let times: Vec<_> = rows.iter().map(|row| (row["timestamp"].as_u64(), row["delay"].as_u64())).collect();
    assert_eq!(times, [(Some(5), None), (None, Some(7)), (Some(5), None), (Some(5), None)]);
    let text: Vec<String> = rows.iter().map(Value::to_string).collect();
    let (header, rows, _) = of_text(&text.join("\n"));
    assert_eq!((header.turns, rows[1].at, rows[1].think), (TurnContent::Delta, 12_000_000, Some(7_000_000)));
}

// ------------------------------------------------------------------------------------------------- there and back again

/// Writes a file's trace in a format and reads that again.
fn through(path: &Path, name: &str) -> (Trace, TraceHeader, Vec<TraceEntry>) {
    let mut trace = open(path).1;
    let format = format::by_name(name).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    format::convert(&mut trace, format, Box::new(std::fs::File::create(file.path()).unwrap())).unwrap();
    let source = InputSource::open(file.path()).unwrap();
    // It has no tables of its chunks' lengths: all are Mooncake's.
    let block_size = (name == "ragpulse").then_some(512);
    let back = (format.read.unwrap())(source, &ReadOptions { block_size, ..ReadOptions::default() }).unwrap();
    (trace, back.header.clone(), back.entries.collect::<Result<_, _>>().unwrap())
}

#[test]
fn what_a_format_can_write_it_reads_again_with_times_lengths_and_prefixes() {
    let path = data("mooncake/conversation_first60s.jsonl");
    let (header, rows) = rows(&path);
    let hits = |header: &TraceHeader, rows: &[TraceEntry]| {
        let mut pass = info::InfoCollector::new(header, None);
        rows.iter().for_each(|row| pass.add(row));
        pass.finish().reuse.first().map(|cache| cache.hit_blocks)
    };
    let mut tried = 0;
    for format in FORMATS.iter().filter(|f| f.read.is_some() && f.write.is_some() && f.name != "vllm-vcr") {
        let (_, header_back, back) = through(&path, format.name);
        let lengths = |rows: &[TraceEntry]| -> Vec<_> {
            rows.iter().map(|row| (prompt_tokens(row), row.output_tokens)).collect()
        };
        assert_eq!(lengths(&back), lengths(&rows), "{}", format.name);
        if format.name != "weka" {
            let times = |rows: &[TraceEntry]| rows.iter().map(|row| row.at).collect::<Vec<_>>();
            assert_eq!(times(&back), times(&rows), "{}", format.name);
        }
        match format.name {
            "azure" | "burstgpt" | "single_turn" | "multi_turn" => assert_eq!(hits(&header_back, &back), None),
            "weka" => assert_eq!(hits(&header_back, &back), Some(0), "ids are those of a session, and each row is one"),
            "bailian" | "ragpulse" => assert!(hits(&header_back, &back).unwrap() >= 203 * 32 - 203),
            name => assert_eq!(hits(&header_back, &back), hits(&header, &rows), "{name}"),
        }
        tried += 1;
    }
    assert!(tried >= 11, "{tried} formats are written");
}

#[test]
fn written_files_are_detected_as_their_format() {
    for format in FORMATS.iter().filter(|format| format.read.is_some() && format.write.is_some()) {
        let file = tempfile::NamedTempFile::new().unwrap();
        // A recording needs answers, a format of blocks needs distinct ones, and every row has a model.
        let mut trace = open(&data("mooncake/conversation_first60s.jsonl")).1;
        trace.entries = Box::new(trace.entries.take(9).map(|row| {
            let mut row = row?;
            row.timing.first_token = Some(1);
            row.timing.gaps = Some(pack(&vec![TokenEvent::new(Gap::from_millis(1), Some(1)); 499]));
            (row.output_tokens, row.model) = (Some(500), Some("m".to_owned()));
            Ok(row)
        }));
        format::convert(&mut trace, format, Box::new(std::fs::File::create(file.path()).unwrap())).unwrap();
        let guessed = format::detect(&InputSource::open(file.path()).unwrap()).ok().map(|format| format.name);
        assert_eq!(guessed, Some(format.name));
    }
}

#[test]
fn sessions_of_weka_have_the_fields_that_its_readers_know_and_ids_of_their_own() {
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let row = |session: Option<&str>, stream, first_token| {
        let mut row = TraceEntry { session: session.map(str::to_owned), stream, ..TraceEntry::default() };
        (row.prompt.tokens, row.model, row.timing.first_token) = (Some(64), Some("m".to_owned()), first_token);
        Ok(row)
    };
    let rows = [
        row(Some("a"), Some(true), Some(1)),
        row(Some("a"), Some(false), Some(1)),
        row(None, None, Some(1)),
        row(None, None, None),
        row(None, None, None),
    ];
    let mut trace = Trace {
        header: TraceHeader::new("t"),
        entries: Box::new(rows.into_iter()),
        losses: ConversionLosses::default(),
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let out = Box::new(std::fs::File::create(file.path()).unwrap());
    format::convert(&mut trace, format::by_name("weka").unwrap(), out).unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    let sessions: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<&str> = sessions.iter().map(|session| session["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["request-1", "request-2", "request-3", "a"]);
    // AIPerf refuses others, a session without models, and every other scope.
    for session in &sessions {
        assert_eq!(keys(session), ["block_size", "hash_id_scope", "id", "models", "requests"]);
        assert_eq!((&session["hash_id_scope"], &session["models"]), (&"local".into(), &serde_json::json!(["m"])));
    }
    // Only what was streamed may have a TTFT.
    let requests: Vec<&Value> = sessions.iter().flat_map(|session| session["requests"].as_array().unwrap()).collect();
    let kinds: Vec<_> = requests.iter().map(|row| (row["type"].as_str().unwrap(), row.get("ttft").is_some())).collect();
    assert_eq!(kinds, [("s", true), ("n", false), ("n", false), ("s", true), ("n", false)]);
}

/// A format's lines for these rows, and its notes.
fn lines(format: &str, header: TraceHeader, rows: Vec<TraceEntry>) -> (Vec<Value>, Vec<String>) {
    let rows: Vec<_> = rows.into_iter().map(Ok).collect();
    let mut trace = Trace { header, entries: Box::new(rows.into_iter()), losses: ConversionLosses::default() };
    let file = tempfile::NamedTempFile::new().unwrap();
    let out = Box::new(std::fs::File::create(file.path()).unwrap());
    let converted = format::convert(&mut trace, format::by_name(format).unwrap(), out).unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), converted.notes)
}

#[test]
fn a_session_is_one_document_of_weka_also_where_others_stand_between_its_rows() {
    let row = |session: &str, at: u64, tokens| {
        let mut row = TraceEntry { at: at * 1_000_000_000, session: Some(session.to_owned()), ..TraceEntry::default() };
        (row.prompt.tokens, row.stream) = (Some(tokens), Some(true));
        row
    };
    // In the order of ends: the second request of a was answered last.
    let rows = vec![row("a", 1, 10), row("b", 2, 20), row("a", 7, 12), row("b", 4, 22), row("a", 5, 11)];
    let (documents, notes) = lines("weka", TraceHeader::new("t"), rows);
    let sessions: Vec<(&str, Vec<_>)> = documents
        .iter()
        .map(|document| {
            let requests = document["requests"].as_array().unwrap().iter();
            let requests = requests.map(|row| (row["t"].as_u64().unwrap(), row["in"].as_u64().unwrap()));
            (document["id"].as_str().unwrap(), requests.collect())
        })
        .collect();
    assert_eq!(sessions, [("a", vec![(0, 10), (4, 11), (6, 12)]), ("b", vec![(0, 20), (2, 22)])]);
    assert!(!notes.iter().any(|note| note.contains("an earlier line")), "{notes:?}");
}

#[test]
fn every_request_for_dynamo_has_a_length_an_id_for_each_block_and_a_session_if_one_has() {
    let header = || {
        let of = r#"{"streamgauge_trace":1,"source":"t","blocks":{"size":16,"unit":"tokens","last":"dropped","ids":"chained","scope":"trace"}}"#;
        TraceHeader::read(of.as_bytes()).unwrap()
    };
    let row = |session: Option<&str>, tokens, blocks: &[u64]| {
        let mut row = TraceEntry { session: session.map(str::to_owned), ..TraceEntry::default() };
        (row.prompt.tokens, row.prompt.blocks) = (Some(tokens), blocks.to_vec());
        row
    };
    // One shorter than a block, and one without blocks or an answer.
    let rows = || vec![row(Some("a"), 33, &[5, 6]), row(None, 9, &[]), row(None, 2_000, &[])];
    let (requests, notes) = lines("dynamo", header(), rows());
    for row in &requests {
        let replay = &row["request"]["replay"];
        let ids = replay["input_sequence_hashes"].as_array().unwrap().len() as u64;
        assert_eq!(ids, replay["input_length"].as_u64().unwrap().div_ceil(16));
        assert_eq!(row["request"]["output_tokens"], 0);
    }
    let sessions: Vec<_> = requests.iter().map(|row| row["agent_context"]["session_id"].as_str().unwrap()).collect();
    assert_eq!(sessions, ["a", "request-2", "request-3"]);
    assert!(notes.iter().any(|note| note.starts_with("2 requests without a session have one of their own")));
    let (requests, notes) = lines("dynamo", header(), rows().into_iter().rev().collect());
    assert!(requests.iter().all(|row| row.get("agent_context").is_none()));
    assert!(notes.iter().any(|note| note.starts_with("1 requests have lost their session")), "{notes:?}");
    let alone = |row| lines("dynamo", TraceHeader::new("t"), vec![row]).1;
    assert!(alone(row(None, 9, &[])).contains(&"Dynamo replays no request without the ids of its blocks".to_owned()));
}

#[test]
fn a_request_without_a_token_gets_its_max_tokens_or_is_omitted() {
    let row = |output: Option<u64>, max_tokens: Option<u64>, outcome: Option<Outcome>| {
        let mut row = TraceEntry { output_tokens: output, outcome, ..TraceEntry::default() };
        (row.prompt.tokens, row.params.max_tokens) = (Some(5), max_tokens);
        row
    };
    let cancelled = Some(Outcome::Cancelled);
    let rows = || {
        vec![
            row(Some(3), Some(9), None),
            row(None, Some(70), cancelled),
            row(Some(0), Some(80), None),
            row(None, None, cancelled),
            row(Some(0), None, None),
            // Its end is unknown.
            row(None, None, None),
        ]
    };
    let by_limit = "2 requests ended before a token: what they were allowed (max_tokens) is their output length";
    for (format, expected) in [
        ("mooncake", vec![Some(3), Some(70), Some(80), None]),
        ("single_turn", vec![Some(3), Some(70), Some(80), None]),
        ("multi_turn", vec![Some(3), Some(70), Some(80), None]),
        ("timed_trace", vec![Some(3), Some(70), Some(80)]),
    ] {
        let (written, notes) = lines(format, TraceHeader::new("t"), rows());
        let turn = |line: &Value| line.get("turns").map_or_else(|| line.clone(), |turns| turns[0].clone());
        let lengths: Vec<_> = written.iter().map(|line| turn(line)["output_length"].as_u64()).collect();
        assert_eq!(lengths, expected, "{format}");
        assert!(notes.contains(&by_limit.to_owned()), "{format}: {notes:?}");
        let open = notes.contains(&"1 requests have no output length: AIPerf lets the model decide".to_owned());
        assert_eq!(open, format != "timed_trace", "{format}: {notes:?}");
    }
    // Bailian's rows have to have one.
    let (rows, notes) =
        lines("bailian", TraceHeader::new("t"), vec![row(Some(0), None, None), row(Some(3), None, None)]);
    assert_eq!(rows[0]["output_length"], 0);
    assert!(
        notes.contains(&"1 answers are of no token: AIPerf asks for one at least, and refuses the file".to_owned())
    );
}

#[test]
fn prompts_leave_room_for_the_chat_template_of_their_sender() {
    let of = r#"{"streamgauge_trace":1,"source":"t","blocks":{"size":16,"unit":"tokens","last":"kept","ids":"chained","scope":"trace"}}"#;
    let row = |session: Option<&str>, tokens, blocks: &[u64]| {
        let mut row =
            TraceEntry { session: session.map(str::to_owned), output_tokens: Some(4), ..TraceEntry::default() };
        (row.prompt.tokens, row.prompt.blocks) = (Some(tokens), blocks.to_vec());
        row
    };
    let rows = || vec![row(Some("a"), 50, &[1, 2, 3, 4]), row(None, 5, &[9]), row(Some("a"), 80, &[1, 2, 3, 5, 6])];
    let written = |format: &str, overhead| {
        let rows: Vec<_> = rows().into_iter().map(Ok).collect();
        let header = TraceHeader::read(of.as_bytes()).unwrap();
        let mut trace = Trace { header, entries: Box::new(rows.into_iter()), losses: ConversionLosses::default() };
        let file = tempfile::NamedTempFile::new().unwrap();
        let out = Box::new(std::fs::File::create(file.path()).unwrap());
        format::convert_with_overhead(&mut trace, format::by_name(format).unwrap(), out, overhead)?;
        let text = std::fs::read_to_string(file.path()).unwrap();
        anyhow::Ok(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>())
    };
    let mooncake = written("mooncake", 9).unwrap();
    assert_eq!(mooncake.iter().map(|row| row["input_length"].as_u64().unwrap()).collect::<Vec<_>>(), [41, 1, 71]);
    let ids = |at: usize| mooncake[at]["hash_ids"].as_array().unwrap().clone();
    assert_eq!(
        (ids(0).len(), ids(2).len(), &ids(0)[..2], &ids(2)[..3]),
        (3, 5, &ids(2)[..2], &[1, 2, 3].map(Value::from)[..])
    );
    assert_ne!(ids(0)[2], 3, "the third block of 16 tokens has nine, and is another");
    let words = |rows: &[Value], of: fn(&Value) -> &Value| -> Vec<usize> {
        rows.iter().map(|row| of(row).as_str().unwrap().len() / 4).collect()
    };
    assert_eq!(words(&written("single_turn", 9).unwrap(), |row| &row["text"]), [41, 1, 71]);
    // 80 - 50 - 4, and the template of one message more.
    assert_eq!(words(&written("multi_turn", 9).unwrap(), |row| &row["turns"][0]["text"]), [41, 1, 17]);
    let refused = written("timed_trace", 9).unwrap_err().to_string();
    assert!(refused.starts_with("--prompt-overhead is for mooncake"), "{refused}");
}

#[test]
fn a_request_without_a_parent_is_of_bailian_too() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let row = r#"{"chat_id":1,"timestamp":2.5,"input_length":40,"output_length":9,"hash_ids":[1,2,3]}"#;
    std::io::Write::write_all(&mut file, row.as_bytes()).unwrap();
    assert_eq!(format::detect(&InputSource::open(file.path()).unwrap()).unwrap().name, "bailian");
}

#[test]
fn bailian_to_bailian_keeps_the_ids_of_single_blocks_also_where_they_are_no_prefix() {
    let path = data("bailian/handmade_schema.jsonl");
    let ids = |rows: &[TraceEntry]| rows.iter().map(|row| row.prompt.blocks.clone()).collect::<Vec<_>>();
    let back = ids(&through(&path, "bailian").2);
    assert_eq!(back, ids(&rows(&path).1));
    assert_eq!((back[0][1], back[2][1]), (1_090, 1_090), "one block in two places");
}

#[test]
fn mooncake_to_mooncake_changes_no_row() {
    let path = data("mooncake/synthetic_first60s.jsonl");
    let (_, header, back) = through(&path, "mooncake");
    assert_eq!((header, back), rows(&path));
}

#[test]
fn scaled_traffic_keeps_its_reuse() {
    let path = data("mooncake/conversation_full.jsonl.zst");
    let scaled = |factor: f64| {
        let scale = scale::RateScale { factor, offset: 1_500_000_000, seed: 7 };
        let mut trace = scale::scale_rate(scale, || Ok::<_, ()>(open(&path).1)).unwrap();
        info::info(&mut trace, None).unwrap()
    };
    let (half, twice) = (scaled(0.5), scaled(2.0));
    assert_eq!(twice.requests, 24_062);
    near(twice.reuse[0].token_share, 0.374, 0.001);
    assert!((5_400..6_600).contains(&half.requests), "{}", half.requests);
    near(half.reuse[0].token_share, 0.374, 0.05);
}

#[test]
fn scaled_lengths_keep_every_block_and_what_prompts_share() {
    let path = data("mooncake/conversation_first300s.jsonl");
    let (header, whole) = rows(&path);
    let by = |input| scale_lengths::scale_lengths(open(&path).1, LengthScale { input, output: 0.1 });
    let mut scaled = by(1.0 / 128.0).unwrap();
    let blocks = scaled.header.blocks.clone().unwrap();
    assert_eq!((header.blocks.unwrap().size, blocks.size), (512, 4));
    for was in whole {
        let row = scaled.entries.next().unwrap().unwrap();
        let tokens = |entry: &TraceEntry| entry.prompt.tokens.unwrap();
        assert_eq!((row.at, &row.prompt.blocks), (was.at, &was.prompt.blocks));
        assert_eq!(tokens(&row), tokens(&was).div_ceil(128));
        assert_eq!(expected_ids(&blocks, tokens(&row)), was.prompt.blocks.len() as u64);
        let output = was.output_tokens.unwrap();
        assert_eq!(row.output_tokens.unwrap(), ((output as f64 / 10.0).round() as u64).max(1));
    }
    assert!(scaled.entries.next().is_none());
    let refused = by(0.01).err().unwrap();
    assert_eq!(
        refused,
        "blocks of 512 tokens would be 5.12 tokens long; 0.009765625x makes them 5, and keeps what prompts share"
    );
}

#[test]
fn a_scaled_reply_forgets_when_its_tokens_came_but_not_when_its_client_left() {
    let timing = Timing { sent: Some(1), first_token: Some(2), ended: Some(3), ..Timing::default() };
    let done = TraceEntry { output_tokens: Some(10), timing, ..TraceEntry::default() };
    let aborted = TraceEntry { ending: Some(Ending::DownstreamGone), abort_tokens: Some(4), ..done.clone() };
    let trace = Trace {
        header: TraceHeader::new("test"),
        entries: Box::new([Ok(done), Ok(aborted)].into_iter()),
        losses: ConversionLosses::default(),
    };
    let scaled = scale_lengths::scale_lengths(trace, LengthScale { input: 1.0, output: 0.5 }).unwrap();
    let rows: Vec<TraceEntry> = scaled.entries.map(Result::unwrap).collect();
    let ended = |row: &TraceEntry| (row.timing.sent, row.timing.ended);
    assert_eq!(rows.iter().map(ended).collect::<Vec<_>>(), [(None, None), (Some(1), Some(3))]);
    assert!(rows.iter().all(|row| row.timing.first_token.is_none() && row.output_tokens == Some(5)));
    assert_eq!(rows[1].abort_tokens, Some(2));
}

// ------------------------------------------------------------------------------------------------------- the command line

fn trace(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.arg("trace").args(args).env_clear().current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

const FIRST60: &str = "tests/data/traces/mooncake/conversation_first60s.jsonl";

#[test]
fn lengths_are_scaled_by_factors_that_leave_blocks_whole() {
    let done = trace(&["scale", FIRST60, "--isl", "0.0078125x", "--osl", "0.0625x"]);
    assert!(stderr(&done).contains("note: blocks are of 4 tokens"), "{}", stderr(&done));
    let first: Value = serde_json::from_slice(done.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    // 6,758 and 500 in the trace.
    assert_eq!((&first["input_length"], &first["output_length"]), (&53.into(), &31.into()));
    let refused = trace(&["scale", FIRST60, "--isl", "0.01x"]);
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("0.009765625x makes them 5"), "{}", stderr(&refused));
}

#[test]
fn a_detected_format_is_reported_and_losses_are_counted() {
    let done = trace(&["convert", FIRST60, "--to", "azure"]);
    let stderr = stderr(&done);
    assert!(
        stderr.contains("is taken as mooncake (rows with `input_length` or a prompt of AIPerf's); times in milliseconds; blocks of 512 tokens"),
        "{stderr}"
    );
    assert!(stderr.contains("azure has no place for: prompt.blocks (162)"), "{stderr}");
    assert!(stderr.contains("162 requests written as azure"), "{stderr}");
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(text.lines().nth(1), Some("1970-01-01 00:00:00.0000000,6758,500"));
    assert_eq!(text.matches("\r\n").count(), 163);
}

#[test]
fn pipes_are_read_and_written_and_cuts_begin_where_they_begin() {
    let cut = trace(&["cut", FIRST60, "--from", "30s", "--to", "45s"]);
    let mut info = Command::new(env!("CARGO_BIN_EXE_streamgauge"))
        .args(["trace", "info", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    info.stdin.take().unwrap().write_all(&cut.stdout).unwrap();
    let info: Value = serde_json::from_slice(&info.wait_with_output().unwrap().stdout).unwrap();
    let expected = rows(&data("mooncake/conversation_first60s.jsonl")).1;
    let count = expected.iter().filter(|row| (30_000_000_000..45_000_000_000).contains(&row.at)).count();
    assert_eq!(info["requests"], count);
    assert!(info["span_s"].as_f64().unwrap() < 15.0);
}

#[test]
fn an_unwritable_format_says_why_and_names_others() {
    let done = trace(&["convert", FIRST60, "--to", "servegen"]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        stderr(&done).lines().last().unwrap(),
        "error: servegen cannot be written: it holds no requests, only the rates and distributions from which some are \
         drawn: what came back would be others, without prefixes and sessions; write mooncake or streamgauge"
    );
}

#[test]
fn what_can_be_read_once_is_not_laid_over_itself() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (path, name) in [("-", "stdin"), (pipe.to_str().unwrap(), pipe.to_str().unwrap())] {
        let done = trace(&["scale", path, "--rate", "1.5x"]);
        let expected =
            format!("error: {name} can be read once, and 1.5x of a trace reads it 2 times; write it to a file first\n");
        assert_eq!((done.status.code(), stderr(&done)), (Some(1), expected));
    }
}

#[test]
fn stdin_is_one_trace_by_its_name() {
    for verb in ["merge", "diff"] {
        let done = trace(&[verb, "-", "-"]);
        let expected = "error: stdin can be read once, and is named 2 times; write it to a file first\n";
        assert_eq!((done.status.success(), stderr(&done)), (false, expected.to_owned()), "{verb}");
    }
    assert_eq!(stderr(&trace(&["info", "-"])), "error: stdin: there is nothing in it\n");
}

#[test]
fn a_bad_row_is_named_with_its_file_line_and_field_and_never_with_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let good = "{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 1}\n";
    for (row, expected) in [
        ("{\"timestamp\": 1, \"input_length\": \"SECRET\"}", "t.jsonl:2: input_length: expected a whole number"),
        ("{\"timestamp\": -1, \"input_length\": 5}", "t.jsonl:2: timestamp: expected a time from zero on"),
        ("{\"timestamp\": 1}", "t.jsonl:2: input_length: is missing"),
        ("SECRET", "t.jsonl:2: no JSON from column 1 on; is the file damaged there, or cut short?"),
        (
            "{\"timestamp\": 1, \"input_l",
            "t.jsonl:2: no JSON from column 25 on; is the file damaged there, or cut short?",
        ),
    ] {
        std::fs::write(folder.path().join("t.jsonl"), format!("{good}{row}\n")).unwrap();
        let path = folder.path().join("t.jsonl");
        let done = trace(&["info", path.to_str().unwrap()]);
        assert_eq!(done.status.code(), Some(1));
        assert!(stderr(&done).contains(expected), "{}", stderr(&done));
        assert!(!stderr(&done).contains("SECRET"));
    }
}

#[test]
fn what_is_no_whole_trace_is_named_once_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(data("mooncake/conversation_full.jsonl.zst")).unwrap();
    let newer = b"{\"streamgauge_trace\": 99, \"source\": \"t\"}\n";
    for (bytes, expected) in [
        (&whole[..200], "cannot be read: incomplete frame; is the file damaged, or cut short?"),
        (&newer[..], "is a trace of version 99, and this Streamgauge reads them up to 1: use a newer one"),
        (b"\n\n", "there is nothing in it"),
        (
            b"[1]\n",
            "no known format of traces; `streamgauge trace convert --help` lists them; it takes one by `--from`, \
             and any CSV or JSON Lines by `--columns`",
        ),
    ] {
        let path = folder.path().join("t");
        std::fs::write(&path, bytes).unwrap();
        let done = trace(&["info", path.to_str().unwrap()]);
        assert_eq!((done.status.code(), stderr(&done)), (Some(1), format!("error: {}: {expected}\n", path.display())));
    }
    let expected = format!(
        "error: {}: a folder with neither a capture nor sessions in it; name one file\n",
        folder.path().display()
    );
    assert_eq!(stderr(&trace(&["info", folder.path().to_str().unwrap()])), expected);
}

#[test]
fn the_rows_before_a_torn_end_tell_the_format_and_the_end_is_named_by_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl.zst");
    let whole = std::fs::read(data("mooncake/conversation_full.jsonl.zst")).unwrap();
    std::fs::write(&path, &whole[..20_000]).unwrap();
    let text = stderr(&trace(&["info", path.to_str().unwrap()]));
    let mut lines = text.lines();
    assert!(lines.next().unwrap().contains("is taken as mooncake"), "{text}");
    let (line, reason) = lines.next().unwrap().rsplit_once(": cannot be read: ").unwrap();
    assert_eq!(reason, "incomplete frame; is the file damaged, or cut short?");
    let line = line.strip_prefix(&format!("error: {}:", path.display())).and_then(|line| line.parse::<u64>().ok());
    assert!(line > Some(1), "{text}");
}

#[test]
fn a_first_row_of_any_length_reveals_the_format_and_keeps_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let ids: Vec<u64> = (0..40_000).map(|id| u64::MAX - 2 * id).collect();
    let row = serde_json::json!({"timestamp": 0, "input_length": 640_000, "output_length": 1, "hash_ids": ids});
    std::fs::write(&path, format!("{row}\n{row}\n")).unwrap();
    assert!(row.to_string().len() > 800_000);
    let done = trace(&["info", path.to_str().unwrap(), "--json"]);
    let info: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", stderr(&done)));
    assert_eq!((&info["reuse"][0]["asked_blocks"], &info["reuse"][0]["hit_blocks"]), (&80_000.into(), &40_000.into()));
}

#[test]
fn ids_that_only_later_rows_have_are_reported_and_not_dropped_silently() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.jsonl");
    let row = |ids: &str| format!("{{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 1{ids}}}\n");
    std::fs::write(&path, row("").repeat(10_000) + &row(", \"hash_ids\": [1, 2]").repeat(3)).unwrap();
    let done = trace(&["info", path.to_str().unwrap()]);
    let expected = "note: not converted: hash_ids, of which the first rows have none (3)\n";
    assert!(stderr(&done).ends_with(expected), "{}", stderr(&done));
}

#[test]
fn a_trace_is_not_written_over_while_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["t.jsonl", "link.jsonl"].map(|name| folder.path().join(name));
    std::fs::copy(data("mooncake/conversation_first300s.jsonl"), &path).unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    let before = std::fs::read(&path).unwrap();
    let [path, other] = [&path, &other].map(|path| path.to_str().unwrap());
    for verb in [
        &["convert", path][..],
        &["cut", path, "--to", "100s"],
        &["scale", path, "--rate", "0.5x"],
        &["merge", FIRST60, path],
        &["anonymize", path],
        &["spread", path],
    ] {
        for output in [path, other] {
            let done = trace(&[verb, &["--output", output]].concat());
            let expected = format!(
                "error: {output} is being read, and writing it would empty it first; name another file with --output"
            );
            assert_eq!((done.status.code(), stderr(&done).lines().last()), (Some(1), Some(&expected[..])), "{verb:?}");
            assert!(std::fs::read(path).unwrap() == before, "{verb:?}");
        }
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_named_with_the_reason_once() {
    let done = trace(&["convert", FIRST60, "--to", "mooncake", "--output", "/dev/full"]);
    let expected = "error: /dev/full: cannot write the trace: No space left on device (os error 28)";
    assert_eq!((done.status.code(), stderr(&done).lines().last()), (Some(1), Some(expected)));
}

#[test]
fn omitted_sessions_are_reported_if_there_are_any() {
    let left_out =
        |path: &str| stderr(&trace(&["convert", path, "--to", "mooncake"])).contains("sessions are left out");
    assert_eq!([FIRST60, "tests/data/traces/kv-cache-tester"].map(left_out), [false, true]);
}

#[test]
fn an_anonymous_trace_has_the_structure_and_no_name() {
    let done = trace(&["anonymize", "tests/data/traces/kv-cache-tester", "--output-format", "streamgauge"]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(!text.contains("claude") && !text.contains("trace_0"), "names");
    let (header, rows, _) = of_text(&text);
    let mut pass = info::InfoCollector::new(&header, None);
    rows.iter().for_each(|row| pass.add(row));
    assert_eq!(pass.finish().reuse[0].hit_blocks, about("kv-cache-tester", None).reuse[0].hit_blocks);
    assert_ne!(rows[0].prompt.blocks[0], 1);
}

#[test]
fn a_spread_trace_has_no_grid_and_the_same_batches_in_time() {
    let full = "tests/data/traces/mooncake/conversation_first300s.jsonl";
    let done = trace(&["spread", full]);
    assert!(stderr(&done).contains("batches of 3.00s are spread"), "{}", stderr(&done));
    let (header, rows, _) = of_text(&String::from_utf8(done.stdout).unwrap());
    let mut pass = info::InfoCollector::new(&header, None);
    rows.iter().for_each(|row| pass.add(row));
    let info = pass.finish();
    assert!(info.warnings.is_empty(), "{:?}", info.warnings);
    let burstiness = info.burstiness.unwrap();
    assert!(burstiness.gap_cv < 1.5 && burstiness.zero_gaps < 0.01, "{burstiness:?}");
    assert_eq!(info.reuse[0].hit_blocks, 5_034);
}

#[test]
fn the_chart_is_plain_on_request_and_fits_the_screen() {
    let text = |args: &[&str]| String::from_utf8(trace(&[&["info", FIRST60], args].concat()).stdout).unwrap();
    let (drawn, plain) = (text(&[]), text(&["--plain"]));
    assert!(drawn.contains('█') && !drawn.contains('\u{1b}'));
    let ascii = plain.split("requests per second over time").nth(1).unwrap().split("warning:").next().unwrap();
    assert!(ascii.is_ascii(), "{ascii}");
    assert!(drawn.contains("warning: arrivals come in batches every 3.00s"), "{drawn}");
}

#[test]
fn the_schema_knows_every_row_and_is_the_one_that_is_kept() {
    let schema: Value = serde_json::from_slice(&trace(&["schema"]).stdout).unwrap();
    let file = std::fs::read_to_string(data("streamgauge.schema.json")).unwrap();
    assert_eq!(schema, serde_json::from_str::<Value>(&file).unwrap(), "keep the output of `streamgauge trace schema`");
}

#[test]
fn a_file_is_packed_as_it_is_called_and_read_again_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["streamgauge", "mooncake", "azure"] {
        let plain = trace(&["convert", FIRST60, "--to", format]).stdout;
        for name in ["t.jsonl.zst", "t.gz", "t.jsonl"] {
            let path = folder.path().join(name);
            let path = path.to_str().unwrap();
            let done = trace(&["convert", FIRST60, "--to", format, "--output", path]);
            assert!(done.status.success(), "{}", stderr(&done));
            let size = std::fs::metadata(path).unwrap().len();
            assert_eq!(size < plain.len() as u64 / 2, !name.ends_with("jsonl"), "{format} in {name}: {size} bytes");
            let again = trace(&["convert", path, "--to", format]);
            assert!(again.stdout == plain, "{format} through {name}: {}", stderr(&again));
        }
    }
}

#[test]
fn two_traces_are_compared_in_text_and_json_and_a_difference_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, rows: [(u64, u64, u64); 3]| {
        let path = folder.path().join(name).to_str().unwrap().to_owned();
        let row = |(at, input, output)| {
            format!(
                "{{\"timestamp\": {at}, \"input_length\": {input}, \"output_length\": {output}, \"hash_ids\": [1]}}\n"
            )
        };
        std::fs::write(&path, rows.map(row).concat()).unwrap();
        path
    };
    let a = file("a.jsonl", [(0, 100, 5), (1_000, 200, 5), (2_000, 300, 5)]);
    let b = file("b.jsonl", [(500, 100, 5), (1_506, 200, 5), (2_503, 300, 2)]);
    let done = trace(&["diff", &a, &b]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0));
    for line in [
        "requests                          3       3",
        "3 rows joined in order of time, within 1.00ms by length",
        "arrival error  mean 3.00ms, p50 3.00ms, p90 5.40ms, p99 5.94ms, max 6.00ms",
        "input tokens   100.0 % exact of 3, off by +0.00 on average, by 0.00 either way; KS distance 0.0000",
        "output tokens  66.7 % exact of 3, off by -1.00 on average, by 1.00 either way; KS distance 0.3333",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
    }
    let json: Value = serde_json::from_slice(&trace(&["diff", &a, &b, "--json"]).stdout).unwrap();
    assert_eq!(
        (&json["joined"], &json["a"]["requests"], &json["input"]["exact_share"]),
        (&3.into(), &3.into(), &1.0.into())
    );
    assert_eq!(json["b"]["reuse"][0]["hit_blocks"], 2);
    let most = folder.path().join("most.jsonl");
    let row = serde_json::json!({"at": 1, "prompt": {"tokens": u64::MAX, "cached": u64::MAX}});
    std::fs::write(&most, format!("{{\"streamgauge_trace\":1,\"source\":\"t\"}}\n{row}\n{row}\n")).unwrap();
    let most = most.to_str().unwrap();
    assert_eq!(trace(&["diff", most, most]).status.code(), Some(0), "lengths beyond all sums");
    let missing = trace(&["diff", &a, "nowhere.jsonl"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("error: nowhere.jsonl: cannot be read"), "{}", stderr(&missing));
}
