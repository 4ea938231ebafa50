//! Scripted streams with fixed time stamps: exact times, every ending.

use std::sync::Arc;

use streamgauge::measure::dialect::{self, Routes};
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{
    CountSource, Ending, FinishReason, Outcome, RequestRecord, StampSource, TokenCount, UnreadReason,
};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::slo::{RequestVerdict, Slos};
use streamgauge::measure::time::{Gap, Stamp};
use streamgauge::measure::timeline::{GapMethod, TokenEvent};

fn at(millis: u64) -> Stamp {
    Stamp::from_nanos(millis * 1_000_000)
}

fn ms(millis: u64) -> Option<Gap> {
    Some(Gap::from_millis(millis))
}

fn chat(request: &str) -> Box<StreamObserver> {
    let shape = RequestShape { dialect: dialect::for_path("/v1/chat/completions"), ..RequestShape::default() };
    let mut observer = StreamObserver::begin(shape, b"", None, at(100));
    observer.request(request.as_bytes());
    observer.sent(at(102), ms(1));
    observer
}

fn streamed(mut observer: Box<StreamObserver>, status: u16) -> Box<StreamObserver> {
    let head = ResponseHead { status, content_type: b"text/event-stream; charset=utf-8", content_encoding: b"" };
    observer.head(at(105), head, StampSource::Kernel);
    observer
}

fn delta(delta: &str, finish: &str) -> String {
    format!("data: {{\"id\":\"c1\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n")
}

fn content(text: &str) -> String {
    delta(&format!("{{\"content\":\"{text}\"}}"), "null")
}

const ROLE: &str = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";

#[test]
fn a_request_was_sent_before_it_was_answered_whenever_its_writer_looked_at_the_clock() {
    let mut observer = chat("{}");
    observer.sent(at(190), ms(1));
    let mut observer = streamed(observer, 200);
    whole_stream(&mut observer);
    assert_eq!(observer.end(at(220), Ending::Complete).times.sent, Some(at(105)));
}

/// A stream with a reasoning token at 150 ms, text at 160, 170 and 200, finish at 210 and usage.
fn whole_stream(observer: &mut StreamObserver) {
    observer.bytes(at(110), b": keep-alive\n\n");
    observer.bytes(at(140), ROLE.as_bytes());
    observer.bytes(at(150), delta("{\"reasoning\":\"hm\"}", "null").as_bytes());
    observer.bytes(at(160), content("a").as_bytes());
    observer.bytes(at(170), content("b").as_bytes());
    observer.bytes(at(200), content("c").as_bytes());
    observer.bytes(at(210), delta("{}", "\"stop\"").as_bytes());
    observer.bytes(
        at(211),
        b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":6,\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\ndata: [DONE]\n\n",
    );
}

fn finished() -> RequestRecord {
    let mut observer = streamed(chat("{\"model\":\"m\",\"stream\":true}"), 200);
    whole_stream(&mut observer);
    observer.end(at(212), Ending::Complete)
}

#[test]
fn every_time_is_taken_from_the_event_that_defines_it() {
    let record = finished();
    assert_eq!(record.times.first_byte, Some(at(110)), "a comment is a byte");
    assert_eq!(record.ttft(), ms(50), "reasoning is text; a role is not");
    assert_eq!(record.ttft_upstream(), ms(48));
    assert_eq!(record.ttft_evidence(), ms(50));
    assert_eq!(record.ttfo(), ms(60));
    assert_eq!(record.times.last_token, Some(at(200)));
    assert_eq!(record.duration(), Gap::from_millis(112));
    // (200 − 150) / (6 tokens − 1 of the first event)
    assert_eq!(record.tpot(), ms(10));
    let gaps: Vec<_> = record.gaps.iter().map(|event| event.latency()).collect();
    let chunk = |millis| (Gap::from_millis(millis), GapMethod::Chunk);
    assert_eq!(gaps, [chunk(10), chunk(10), chunk(30)]);
    assert_eq!((record.longest_gap, record.gap_count), (ms(30), 3));
}

#[test]
fn counts_come_with_their_source_and_the_finish_with_its_reason() {
    let record = finished();
    assert_eq!(record.output_tokens, Some(TokenCount { tokens: 6, source: CountSource::Usage }));
    assert_eq!((record.usage.input, record.usage.cached, record.usage.reasoning), (Some(7), None, Some(2)));
    assert_eq!((record.events, record.comments, record.token_events, record.evidence_events), (8, 1, 4, 4));
    assert_eq!(record.choices[0].finish, Some((FinishReason::Stop, "stop".into())));
    assert_eq!((record.outcome, record.response_id.as_deref()), (Outcome::Success, Some("c1")));
    assert_eq!((record.shape.model.as_deref(), record.shape.stream), (Some("m"), Some(true)));
    assert_eq!(record.stamps, StampSource::Kernel);
}

#[test]
fn the_engines_own_prefill_is_kept_where_it_reports_one() {
    let prefill = |path: &str, last: &str| {
        let shape = RequestShape { dialect: dialect::for_path(path), ..RequestShape::default() };
        let mut observer = streamed(StreamObserver::begin(shape, b"", None, at(100)), 200);
        observer.bytes(at(150), format!("data: {last}\n\n").as_bytes());
        observer.end(at(212), Ending::Complete).engine_prefill
    };
    let vllm = |metrics: &str| prefill("/v1/chat/completions", &format!(r#"{{"choices":[],"metrics":{metrics}}}"#));
    assert_eq!(vllm(r#"{"queue_time_ms":9,"time_to_first_token_ms":12.5}"#), Some(Gap::from_nanos(12_500_000)));
    // llama.cpp, by OpenAI's dialect and by its own.
    let timings = r#""timings":{"prompt_n":9,"prompt_ms":41.25,"predicted_ms":90}"#;
    let llamacpp = Some(Gap::from_nanos(41_250_000));
    assert_eq!(prefill("/v1/completions", &format!(r#"{{"choices":[],{timings}}}"#)), llamacpp);
    assert_eq!(prefill("/completion", &format!(r#"{{"content":"","stop":true,{timings}}}"#)), llamacpp);
    for wrong in ["0", "-1", "4e6", "1e999", "null", "\"12\"", "[1]"] {
        assert_eq!(vllm(&format!(r#"{{"time_to_first_token_ms":{wrong}}}"#)), None, "{wrong}");
    }
    assert_eq!((vllm("null"), finished().engine_prefill), (None, None));
}

#[test]
fn events_of_one_read_share_its_stamp_and_a_gap_of_zero_is_legal() {
    let mut observer = streamed(chat("{}"), 200);
    observer.bytes(at(150), format!("{}{}{}", content("a"), content("b"), content("c")).as_bytes());
    let record = observer.end(at(151), Ending::UpstreamFailed);
    assert_eq!(record.gaps[..], [TokenEvent::new(Gap::ZERO, None); 2]);
    assert_eq!(record.tpot(), Some(Gap::ZERO));
}

#[test]
fn an_event_is_stamped_by_the_read_that_completed_it() {
    let mut observer = streamed(chat("{}"), 200);
    let event = content("a");
    let (first, second) = event.split_at(event.len() - 1);
    observer.bytes(at(150), first.as_bytes());
    observer.bytes(at(170), second.as_bytes());
    assert_eq!(observer.end(at(171), Ending::UpstreamFailed).ttft(), ms(70));
}

#[test]
fn a_reply_without_text_has_no_ttft_and_one_token_has_no_gap() {
    let mut observer = streamed(chat("{}"), 200);
    observer.bytes(at(140), ROLE.as_bytes());
    observer.bytes(at(150), delta("{}", "\"stop\"").as_bytes());
    let record = observer.end(at(160), Ending::Complete);
    assert_eq!((record.ttft(), record.tpot(), record.output_tokens), (None, None, None));
    assert_eq!(record.outcome, Outcome::Success);

    let mut observer = streamed(chat("{}"), 200);
    observer.bytes(at(140), content("only").as_bytes());
    let record = observer.end(at(160), Ending::DownstreamGone);
    assert_eq!((record.ttft(), record.tpot(), record.gap_count), (ms(40), None, 0));
    assert_eq!(record.output_tokens, Some(TokenCount { tokens: 1, source: CountSource::Chunks }));
}

#[test]
fn gaps_are_shared_out_over_the_tokens_that_ids_or_a_counter_tell() {
    let with_ids = |text: &str, ids: &str| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"token_ids\":{ids}}}]}}\n\n")
    };
    let mut observer = streamed(chat("{}"), 200);
    observer.bytes(at(150), with_ids("a", "[1,2]").as_bytes());
    observer.bytes(at(180), with_ids("b", "[3,4,5]").as_bytes());
    observer.bytes(at(190), with_ids("c", "[6]").as_bytes());
    let record = observer.end(at(191), Ending::UpstreamFailed);
    let latencies: Vec<_> = record.gaps.iter().map(|event| event.latency()).collect();
    assert_eq!(latencies, [(Gap::from_millis(10), GapMethod::Split), (Gap::from_millis(10), GapMethod::Exact)]);
    assert_eq!(record.output_tokens, Some(TokenCount { tokens: 6, source: CountSource::Ids }));
    assert_eq!(record.first_event_tokens, Some(2));
    // 40 ms / (6 − 2)
    assert_eq!(record.tpot(), ms(10));

    let counted = |text: &str, total: u64| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":{total}}}}}\n\n"
        )
    };
    let mut observer = streamed(chat("{\"stream_options\":{\"continuous_usage_stats\":true}}"), 200);
    observer.bytes(at(150), counted("a", 2).as_bytes());
    observer.bytes(at(180), counted("b", 5).as_bytes());
    let record = observer.end(at(181), Ending::UpstreamFailed);
    assert_eq!(record.output_tokens, Some(TokenCount { tokens: 5, source: CountSource::ContinuousUsage }));
    assert_eq!(record.gaps[0].latency(), (Gap::from_millis(10), GapMethod::Split));
    assert_eq!((record.usage.input, record.outcome), (Some(3), Outcome::Truncated));
}

#[test]
fn choices_are_merged_and_distinguished() {
    let choice = |index: u32, text: &str, finish: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":{index},\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let mut observer = streamed(chat("{\"n\":2}"), 200);
    observer.bytes(at(150), choice(0, "a", "null").as_bytes());
    observer.bytes(at(155), choice(1, "b", "null").as_bytes());
    observer.bytes(at(160), choice(0, "c", "\"stop\"").as_bytes());
    let record = observer.end(at(161), Ending::Complete);
    assert_eq!(record.outcome, Outcome::Truncated, "the second choice is not finished");
    assert_eq!(record.gap_count, 2);
    let spans: Vec<_> = record.choices.iter().map(|c| (c.index, c.first, c.last, c.token_events)).collect();
    assert_eq!(spans, [(0, Some(at(150)), Some(at(160)), 2), (1, Some(at(155)), Some(at(155)), 1)]);
}

#[test]
fn every_ending_has_its_outcome() {
    let ended = |body: &str, status: u16, ending: Ending| {
        let mut observer = streamed(chat("{}"), status);
        observer.bytes(at(150), body.as_bytes());
        observer.end(at(160), ending)
    };
    let token = content("a");
    let fault = "data: {\"error\":{\"message\":\"secret words\",\"type\":\"InternalServerError\",\"code\":500}}\n\ndata: [DONE]\n\n";
    assert_eq!(ended(&token, 200, Ending::Complete).outcome, Outcome::Truncated);
    assert_eq!(ended(&token, 200, Ending::UpstreamFailed).outcome, Outcome::Truncated);
    assert_eq!(ended(&token, 200, Ending::DownstreamGone).outcome, Outcome::Cancelled);
    assert_eq!(ended(&token, 200, Ending::TimedOut).outcome, Outcome::Failed);
    assert_eq!(ended("data: [DONE]\n\n", 200, Ending::DownstreamGone).outcome, Outcome::Success);
    assert_eq!(ended(&delta("{}", "\"stop\""), 200, Ending::DownstreamGone).outcome, Outcome::Success);
    assert_eq!(ended(&delta("{}", "\"stop\""), 200, Ending::UpstreamFailed).outcome, Outcome::Truncated);
    let record = ended(&format!("{token}{fault}"), 200, Ending::Complete);
    assert_eq!(record.outcome, Outcome::Failed, "[DONE] after an error does not make it good");
    assert_eq!(
        record.fault.as_ref().map(|fault| (fault.event, fault.kind.as_deref())),
        Some((1, Some("InternalServerError")))
    );
    assert!(!format!("{record:?}").contains("secret"), "an error's message is text");
    assert_eq!(chat("{}").end(at(160), Ending::DownstreamGone).outcome, Outcome::Cancelled);
    assert_eq!(chat("{}").end(at(160), Ending::UpstreamFailed).outcome, Outcome::Failed);
}

#[test]
fn a_last_event_without_its_blank_line_counts_if_the_body_ended_cleanly_and_it_is_whole() {
    let end = |ending| {
        let mut observer = streamed(chat("{}"), 200);
        observer.bytes(at(150), content("a").trim_end().as_bytes());
        observer.end(at(160), ending).token_events
    };
    assert_eq!((end(Ending::Complete), end(Ending::UpstreamFailed)), (1, 0));
}

fn document(body: &str, status: u16, ending: Ending) -> RequestRecord {
    let mut observer = chat("{\"stream\":false}");
    observer.head(
        at(105),
        ResponseHead { status, content_type: b"application/json", content_encoding: b"" },
        StampSource::Read,
    );
    for piece in body.as_bytes().chunks(7) {
        observer.bytes(at(300), piece);
    }
    observer.end(at(301), ending)
}

#[test]
fn a_reply_in_one_document_gives_usage_finish_and_duration_but_no_ttft() {
    let body = r#"{"id":"x","model":"real-m","choices":[{"index":0,"message":{"content":"secret"},"finish_reason":"length"}],
        "usage":{"prompt_tokens":4,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}"#;
    let record = document(body, 200, Ending::Complete);
    assert_eq!((record.ttft(), record.tpot(), record.streamed), (None, None, false));
    assert_eq!(record.output_tokens, Some(TokenCount { tokens: 3, source: CountSource::Usage }));
    assert_eq!((record.usage.input, record.usage.cached), (Some(4), Some(2)));
    assert_eq!(record.choices[0].finish, Some((FinishReason::Length, "length".into())));
    assert_eq!((record.outcome, record.duration()), (Outcome::Success, Gap::from_millis(201)));
    assert_eq!(record.response_model.as_deref(), Some("real-m"));
}

#[test]
fn tokens_written_to_a_cache_are_kept_and_are_part_of_the_input_in_every_api() {
    let anthropic =
        r#"{"input_tokens":5,"cache_read_input_tokens":3,"cache_creation_input_tokens":20,"output_tokens":9}"#;
    let converse = r#"{"inputTokens":5,"cacheReadInputTokens":3,"cacheWriteInputTokens":20,"outputTokens":9}"#;
    let openai = r#"{"prompt_tokens":28,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3,"created_cache_tokens":20}}"#;
    let (sse, json) = ("text/event-stream", "application/json");
    for (path, content_type, body) in [
        ("/v1/messages", json, format!(r#"{{"id":"m","usage":{anthropic}}}"#)),
        ("/v1/messages", sse, format!("data: {{\"type\":\"message_delta\",\"usage\":{anthropic}}}\n\n")),
        ("/model/m/invoke", json, format!(r#"{{"usage":{anthropic}}}"#)),
        ("/model/m/converse", json, format!(r#"{{"usage":{converse}}}"#)),
        ("/v1/chat/completions", json, format!(r#"{{"id":"c","usage":{openai}}}"#)),
        ("/v1/chat/completions", sse, format!("data: {{\"choices\":[],\"usage\":{openai}}}\n\n")),
    ] {
        let shape = RequestShape { dialect: dialect::for_path(path), ..RequestShape::default() };
        let mut observer = StreamObserver::begin(shape, b"", None, at(100));
        let head = ResponseHead { status: 200, content_type: content_type.as_bytes(), content_encoding: b"" };
        observer.head(at(105), head, StampSource::Kernel);
        observer.bytes(at(110), body.as_bytes());
        let usage = observer.end(at(120), Ending::Complete).usage;
        let counts = (usage.input, usage.cached, usage.cache_write, usage.output);
        assert_eq!(counts, (Some(28), Some(3), Some(20), Some(9)), "{path} {content_type}");
    }
}

#[test]
fn errors_in_one_document_are_refusals_or_failures_by_their_status() {
    let body = r#"{"error":{"message":"secret","type":"NotFoundError","code":404}}"#;
    let record = document(body, 404, Ending::Complete);
    assert_eq!((record.outcome, record.fault.unwrap().kind.as_deref()), (Outcome::Refused, Some("NotFoundError")));
    assert_eq!(document("{}", 500, Ending::Complete).outcome, Outcome::Failed);
    assert_eq!(document("", 204, Ending::Complete).outcome, Outcome::Success);
    assert_eq!(document("{\"a\":", 200, Ending::Complete).quality.unread, Some(UnreadReason::Malformed));
}

#[test]
fn nonsense_in_a_known_dialect_lowers_quality_and_stops_nothing() {
    let mut observer = streamed(chat("{}"), 200);
    observer.bytes(at(140), b"data: not json\n\ndata: {\"choices\":7}\n\ndata: \xff\xfe\n\n");
    observer.bytes(at(150), content("a").as_bytes());
    let record = observer.end(at(160), Ending::UpstreamFailed);
    assert_eq!((record.quality.malformed_events, record.ttft()), (3, ms(50)));
}

#[test]
fn an_unknown_coding_is_reported_and_the_reply_still_counts() {
    let mut observer = chat("{}");
    let head = ResponseHead { status: 200, content_type: b"text/event-stream", content_encoding: b"snappy" };
    observer.head(at(105), head, StampSource::Read);
    observer.bytes(at(150), b"\x01\x02\x03");
    let record = observer.end(at(160), Ending::Complete);
    assert_eq!((record.quality.unread, record.outcome), (Some(UnreadReason::Coding), Outcome::Success));
    assert_eq!(record.response_bytes, 3);
}

#[test]
fn plain_http_is_measured_by_its_first_byte_its_duration_and_its_bytes_alone() {
    let shape = RequestShape::of("POST", "/files/of-somebody", &Routes::default());
    assert_eq!((shape.dialect, shape.route()), (None, ""));
    let mut observer = StreamObserver::begin(shape, b"", None, at(100));
    observer.request(b"four");
    observer.sent(at(101), ms(1));
    observer.head(
        at(105),
        ResponseHead { status: 200, content_type: b"text/plain", content_encoding: b"" },
        StampSource::Read,
    );
    observer.bytes(at(150), b"first ");
    observer.bytes(at(160), b"and last");
    let record = observer.end(at(170), Ending::Complete);
    assert_eq!((record.times.head, record.times.first_byte), (Some(at(105)), Some(at(150))));
    assert_eq!((record.duration(), record.request_bytes, record.response_bytes), (Gap::from_millis(70), 4, 14));
    assert_eq!((record.ttft(), record.output_tokens, record.outcome), (None, None, Outcome::Success));
}

fn judged(slo: &str, drive: impl FnOnce(&mut StreamObserver), ending: Ending) -> RequestVerdict {
    let slos = Arc::new(Slos::new(vec![slo.parse().unwrap()]).unwrap());
    let mut observer = streamed(chat("{\"model\":\"llama-3\"}").with_slos(slos, Gap::from_millis(1_000)), 200);
    drive(&mut observer);
    let record = observer.end(at(212), ending);
    let verdict = record.slos.verdicts(&record).next().map(|(_, verdict)| verdict);
    verdict.unwrap()
}

#[test]
fn a_request_is_good_when_every_objective_holds() {
    let whole = |slo| judged(slo, whole_stream, Ending::Complete);
    assert_eq!(
        whole("a: ttft<=50ms ttfo<=60ms tpot<=10ms e2e<=112ms itl.max<=30ms itl.p50<=10ms"),
        RequestVerdict::Met
    );
    assert_eq!(whole("a: ttft<=49ms e2e<=111ms"), RequestVerdict::Missed(vec!["ttft", "e2e"]));
    assert_eq!(whole("a: itl.p99<=29ms itl.max<=29ms"), RequestVerdict::Missed(vec!["itl"]), "named once");
    // Two of three gaps are within 10 ms: the 66th percentile is, the 67th is not.
    assert_eq!(whole("a: itl.p66<=10ms"), RequestVerdict::Met);
    assert_eq!(whole("a: itl.p67<=10ms"), RequestVerdict::Missed(vec!["itl"]));
}

#[test]
fn failures_miss_unless_the_slo_excludes_them() {
    let cancelled = |slo| judged(slo, |_| (), Ending::DownstreamGone);
    assert_eq!(cancelled("a: ttft<=1s"), RequestVerdict::Missed(vec!["error"]));
    assert_eq!(cancelled("a: ttft<=1s exclude=cancelled"), RequestVerdict::Excluded);
    let truncated = |slo| judged(slo, |_| (), Ending::UpstreamFailed);
    assert_eq!(truncated("a: ttft<=1s exclude=cancelled"), RequestVerdict::Missed(vec!["error"]));
    assert_eq!(truncated("a: ttft<=1s exclude=failed"), RequestVerdict::Excluded);
}

#[test]
fn a_stream_without_a_token_has_no_time_to_the_first_to_be_judged() {
    let empty = |slo| judged(slo, |observer| observer.bytes(at(150), b"data: [DONE]\n\n"), Ending::Complete);
    for slo in ["a: ttft<=1s", "a: itl.p99<=1s", "a: tpot<=1s e2e<=1s"] {
        assert_eq!(empty(slo), RequestVerdict::Excluded, "{slo}");
    }
    assert_eq!((empty("a: e2e<=1s"), empty("a: e2e<=1ms")), (RequestVerdict::Met, RequestVerdict::Missed(vec!["e2e"])));
}

#[test]
fn an_slo_is_for_the_models_and_routes_it_names() {
    let verdicts = |slo: &str| {
        let slos = Arc::new(Slos::new(vec![slo.parse().unwrap()]).unwrap());
        let mut observer = streamed(chat("{\"model\":\"llama-3\"}").with_slos(slos, Gap::from_millis(1_000)), 200);
        whole_stream(&mut observer);
        let record = observer.end(at(212), Ending::Complete);
        record.slos.verdicts(&record).count()
    };
    assert_eq!(verdicts("a[model=llama-*]: e2e<=1s"), 1);
    assert_eq!(verdicts("a[model=qwen-*]: e2e<=1s"), 0);
    assert_eq!(verdicts("a[route=/v1/chat/*]: e2e<=1s"), 1);
}

#[test]
fn a_ttft_objective_excludes_what_was_not_streamed() {
    let slos = Arc::new(Slos::new(vec!["a: ttft<=1s".parse().unwrap(), "b: e2e<=1s".parse().unwrap()]).unwrap());
    let mut observer = chat("{}").with_slos(slos, Gap::from_millis(1_000));
    observer.head(
        at(105),
        ResponseHead { status: 200, content_type: b"application/json", content_encoding: b"" },
        StampSource::Read,
    );
    observer.bytes(at(150), b"{}");
    let record = observer.end(at(160), Ending::Complete);
    let verdicts: Vec<_> =
        record.slos.verdicts(&record).map(|(slo, verdict)| (slo.name().to_owned(), verdict)).collect();
    assert_eq!(verdicts, [("a".to_owned(), RequestVerdict::Excluded), ("b".to_owned(), RequestVerdict::Met)]);
}

#[test]
fn a_long_stream_reports_progress_every_second_and_the_record_holds_the_rest() {
    let mut observer = streamed(chat("{}"), 200);
    let mut reports = Vec::new();
    for token in 0..250 {
        let now = at(200 + token * 10);
        observer.bytes(now, content("a").as_bytes());
        observer.forwarded(Gap::from_nanos(5_000));
        if let Some(progress) = observer.progress(now) {
            reports.push((now, progress.gaps.len(), progress.tokens.tokens, progress.chunk_overheads.len()));
        }
    }
    let record = observer.end(at(2_700), Ending::UpstreamFailed);
    assert_eq!(reports, [(at(1_110), 91, 92, 92), (at(2_110), 100, 100, 100)]);
    assert_eq!((record.gaps.len(), record.tokens_reported, record.chunk_overheads.len()), (58, 192, 58));
    assert_eq!((record.gap_count, record.output_tokens.unwrap().tokens), (249, 250));
}

/// 2^64 − 1 in two choices' running counters, and in the final report, streamed and not.
#[test]
fn an_impossible_token_count_is_discarded() {
    let body = r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    let usage = r#""usage":{"prompt_tokens":4294967295,"completion_tokens":18446744073709551615}"#;
    let mut observer = streamed(chat(body), 200);
    for choice in [0, 1, 0] {
        let event = format!("{{\"choices\":[{{\"index\":{choice},\"delta\":{{\"content\":\"a\"}}}}],{usage}}}");
        observer.bytes(at(150), format!("data: {event}\n\n").as_bytes());
    }
    observer.bytes(at(160), format!("data: {{\"choices\":[],{usage}}}\n\n").as_bytes());
    let record = observer.end(at(170), Ending::Complete);
    assert_eq!(record.output_tokens, Some(TokenCount { tokens: 3, source: CountSource::Chunks }));
    assert_eq!((record.usage.input, record.usage.output), (Some(u32::MAX.into()), None));

    let mut observer = chat("{}");
    let head = ResponseHead { status: 200, content_type: b"application/json", content_encoding: b"" };
    observer.head(at(105), head, StampSource::Read);
    observer.bytes(at(150), format!("{{{usage}}}").as_bytes());
    let record = observer.end(at(151), Ending::Complete);
    assert_eq!((record.usage.input, record.usage.output), (Some(u32::MAX.into()), None));
}
