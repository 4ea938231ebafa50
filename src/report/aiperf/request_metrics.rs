//! AIPerf's metrics of single requests. Pure.

use super::super::definitions::Definitions;
use super::super::request_view::RequestView;
use crate::measure::record::CountSource;
use crate::measure::time::{Gap, Stamp};

/// Tag, header, unit.
pub(super) type MetricSpec = (&'static str, &'static str, &'static str);

/// Metrics in the file of requests.
pub(super) const REQUEST_METRICS: [MetricSpec; 35] = [
    ("decode_duration", "Decode Duration", "ms"),
    ("e2e_output_token_throughput", "E2E Output Token Throughput", "tokens/sec/user"),
    ("error_isl", "Error Input Sequence Length", "tokens"),
    ("http_req_blocked", "HTTP Blocked", "ms"),
    ("http_req_chunks_received", "HTTP Chunks Received", "count"),
    ("http_req_chunks_sent", "HTTP Chunks Sent", "count"),
    ("http_req_connecting", "HTTP Connecting", "ms"),
    ("http_req_connection_overhead", "HTTP Connection Overhead", "ms"),
    ("http_req_connection_reused", "HTTP Connection Reused", "ratio"),
    ("http_req_data_received", "HTTP Data Received", "KB"),
    ("http_req_data_sent", "HTTP Data Sent", "KB"),
    ("http_req_dns_lookup", "HTTP DNS Lookup", "ms"),
    ("http_req_duration", "HTTP Duration (excl. conn)", "ms"),
    ("http_req_receiving", "HTTP Receiving", "ms"),
    ("http_req_sending", "HTTP Sending", "ms"),
    ("http_req_total", "HTTP Total Time", "ms"),
    ("http_req_waiting", "HTTP Waiting (TTFB)", "ms"),
    ("input_sequence_length", "Input Sequence Length", "tokens"),
    ("inter_chunk_latency", "Inter Chunk Latency", "ms"),
    ("inter_token_latency", "Inter Token Latency", "ms"),
    ("osl_mismatch_diff_pct", "OSL Mismatch Diff %", "%"),
    ("output_sequence_length", "Output Sequence Length", "tokens"),
    ("output_token_count", "Output Token Count", "tokens"),
    ("output_token_throughput_per_user", "Output Token Throughput Per User", "tokens/sec/user"),
    ("prefill_throughput_per_user", "Prefill Throughput Per User", "tokens/sec/user"),
    ("reasoning_token_count", "Reasoning Token Count", "tokens"),
    ("request_latency", "Request Latency", "ms"),
    ("time_to_first_output_token", "Time to First Output Token", "ms"),
    ("time_to_first_token", "Time to First Token", "ms"),
    ("time_to_second_token", "Time to Second Token", "ms"),
    ("usage_completion_tokens", "Usage Completion Tokens", "tokens"),
    ("usage_prompt_cache_read_tokens", "Usage Prompt Cache Read Tokens", "tokens"),
    ("usage_prompt_tokens", "Usage Prompt Tokens", "tokens"),
    ("usage_reasoning_tokens", "Usage Reasoning Tokens", "tokens"),
    ("usage_total_tokens", "Usage Total Tokens", "tokens"),
];

/// Metrics of requests that only the summary of a whole phase contains.
pub(super) const PHASE_METRICS: [MetricSpec; 2] = [
    ("credit_to_start_latency", "Credit-to-Start Latency", "ms"),
    ("effective_latency", "Effective Latency (CO-aware)", "ms"),
];

/// Metrics whose sum is in the summary: tag of the sum, tag of the metric, header.
pub(super) const SUM_METRICS: [(&str, &str, &str); 10] = [
    ("total_error_isl", "error_isl", "Total Error Input Sequence Length"),
    ("total_isl", "input_sequence_length", "Total Input Sequence Length"),
    ("total_osl", "output_sequence_length", "Total Output Sequence Length"),
    ("total_output_tokens", "output_token_count", "Total Output Tokens"),
    ("total_reasoning_tokens", "reasoning_token_count", "Total Reasoning Tokens"),
    ("total_usage_completion_tokens", "usage_completion_tokens", "Total Usage Completion Tokens"),
    ("total_usage_prompt_cache_read_tokens", "usage_prompt_cache_read_tokens", "Total Usage Prompt Cache Read Tokens"),
    ("total_usage_prompt_tokens", "usage_prompt_tokens", "Total Usage Prompt Tokens"),
    ("total_usage_reasoning_tokens", "usage_reasoning_tokens", "Total Usage Reasoning Tokens"),
    ("total_usage_total_tokens", "usage_total_tokens", "Total Usage Total Tokens"),
];

/// Metrics that the summary repeats with failures as infinite values.
pub(super) const ERROR_ADJUSTED_METRICS: [&str; 4] =
    ["decode_duration", "inter_token_latency", "request_latency", "time_to_first_token"];

/// The only metric with several values per request.
pub(super) const LIST_METRIC: &str = "inter_chunk_latency";

const BYTES_PER_KILOBYTE: f64 = 1024.0;

/// Tags with their values.
type MetricValues = Vec<(&'static str, Vec<f64>)>;

/// Returns `true` if AIPerf writes the metric as an integer.
pub(super) fn is_integer(tag: &str, unit: &str) -> bool {
    ["tokens", "count"].contains(&unit) || tag == "http_req_connection_reused"
}

/// Computes a request's metrics; unknown ones are omitted.
pub(super) fn request_metrics(request: &RequestView) -> MetricValues {
    if !request.succeeded() {
        return request.input.map(|input| ("error_isl", vec![input as f64])).into_iter().collect();
    }
    let mut numbers = http_metrics(request);
    let mut put = |tag: &'static str, value: Option<f64>| numbers.extend(value.map(|value| (tag, vec![value])));
    let times = Definitions::Aiperf.times(request, request.sent);
    let millis = Gap::as_millis;
    let tokens = Definitions::Aiperf.tokens(request).map(|tokens| tokens as f64);
    let input = request.input.map(|tokens| tokens as f64);
    let rate = |count: Option<f64>, time: Option<Gap>| {
        let seconds = time.map(Gap::as_secs).filter(|seconds| *seconds > 0.0);
        Some(count? / seconds?)
    };
    put("request_latency", times.e2e.map(millis));
    put("time_to_first_token", times.ttft.map(millis));
    put("time_to_first_output_token", times.ttfo.map(millis));
    put("time_to_second_token", request.events.first().map(|event| millis(event.gap())));
    put("inter_token_latency", times.mean_itl.map(millis));
    put("output_token_throughput_per_user", rate(Some(1.0), times.mean_itl));
    put("decode_duration", times.e2e.zip(times.ttft).map(|(whole, first)| millis(whole) - millis(first)));
    put("e2e_output_token_throughput", rate(tokens, times.e2e));
    put("prefill_throughput_per_user", rate(input, times.ttft));
    put("output_sequence_length", tokens);
    put("input_sequence_length", input);
    let reasoning = request.reasoning.map(|tokens| tokens as f64);
    put("reasoning_token_count", reasoning);
    // If reasoning occurred without a token count, the rest of the output is unknown too.
    let known = reasoning.or((request.output == request.first).then_some(0.0));
    let rest = tokens.zip(known).map(|(all, reasoning)| (all - reasoning).max(0.0));
    put("output_token_count", rest.filter(|rest| *rest > 0.0));
    let used = tokens.filter(|_| request.tokens.is_some_and(|count| count.source == CountSource::Usage));
    let asked_of = input.filter(|_| request.input_source == Some(CountSource::Usage));
    put("usage_completion_tokens", used);
    put("usage_prompt_tokens", asked_of);
    put("usage_total_tokens", used.zip(asked_of).map(|(output, input)| output + input));
    put("usage_reasoning_tokens", reasoning);
    put("usage_prompt_cache_read_tokens", request.cached.map(|tokens| tokens as f64));
    let limit = request.max_tokens.filter(|limit| *limit > 0).map(|limit| limit as f64);
    put("osl_mismatch_diff_pct", limit.zip(tokens).map(|(limit, tokens)| (tokens - limit) / limit * 100.0));
    if !request.events.is_empty() {
        numbers.push((LIST_METRIC, request.events.iter().map(|event| millis(event.gap())).collect()));
    }
    numbers
}

/// Computes the HTTP transfer metrics.
fn http_metrics(request: &RequestView) -> MetricValues {
    let transfer = &request.transfer;
    let millis = |from: Option<Stamp>, to: Option<Stamp>| Some(to?.since(from?).as_millis());
    let first = transfer.first_byte.map(|after| request.sent.after(Gap::from_nanos(after)));
    let sending = millis(Some(request.sent), request.written);
    let waiting = millis(request.written, first);
    let receiving = match transfer.reads {
        Some(1) => Some(0.0),
        _ => millis(first, request.ended),
    };
    let mut numbers = Vec::new();
    let mut put = |tag: &'static str, value: Option<f64>| numbers.extend(value.map(|value| (tag, vec![value])));
    put("http_req_sending", sending);
    put("http_req_waiting", waiting);
    put("http_req_receiving", receiving);
    put("http_req_duration", millis(Some(request.sent), request.ended));
    put("http_req_data_sent", transfer.sent.map(|bytes| bytes as f64 / BYTES_PER_KILOBYTE));
    put("http_req_data_received", transfer.received.map(|bytes| bytes as f64 / BYTES_PER_KILOBYTE));
    put("http_req_chunks_received", transfer.reads.map(f64::from));
    if let Some(connecting) = transfer.connecting {
        let took = Gap::from_nanos(connecting).as_millis();
        // The sender writes a body in one piece and waits only for new connections. DNS lookup is part of connecting.
        put("http_req_chunks_sent", Some(1.0));
        put("http_req_blocked", Some(0.0));
        put("http_req_dns_lookup", Some(0.0));
        put("http_req_connecting", Some(took));
        put("http_req_connection_overhead", Some(took));
        put("http_req_connection_reused", Some(f64::from(u8::from(connecting == 0))));
        let parts = [sending, waiting, receiving].into_iter().flatten();
        put("http_req_total", Some(took + parts.sum::<f64>()));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::record::Outcome;
    use crate::trace_file::row::{PromptShape, Timing, TraceEntry, TransferStats};

    /// 10 tokens in one event after 4 ms; the response ends at 6 ms.
    fn row() -> TraceEntry {
        TraceEntry {
            stream: Some(true),
            outcome: Some(Outcome::Success),
            output_tokens: Some(10),
            output_source: Some(CountSource::Usage),
            prompt: PromptShape {
                tokens: Some(7),
                cached: Some(4),
                source: Some(CountSource::Usage),
                ..PromptShape::default()
            },
            timing: Timing {
                sent: Some(1_000_000),
                first_token: Some(4_000_000),
                first_output: Some(4_000_000),
                ended: Some(6_000_000),
                ..Timing::default()
            },
            ..TraceEntry::default()
        }
    }

    fn of(row: TraceEntry, tag: &str) -> Option<f64> {
        let numbers = request_metrics(&RequestView::from_row(row, 0, None).unwrap());
        numbers.iter().find(|(of, _)| *of == tag).map(|(_, values)| values[0])
    }

    #[test]
    fn reasoning_is_no_output_and_how_much_is_left_may_be_unknown() {
        let reported = || TraceEntry { reasoning_tokens: Some(4), ..row() };
        let mut seen = row();
        seen.timing.first_output = Some(5_000_000);
        let nothing_else = TraceEntry { reasoning_tokens: Some(10), ..row() };
        let rest = "output_token_count";
        assert_eq!(
            [of(row(), rest), of(reported(), rest), of(seen, rest), of(nothing_else, rest)],
            [Some(10.0), Some(6.0), None, None]
        );
        assert_eq!(
            (of(reported(), "reasoning_token_count"), of(reported(), "usage_reasoning_tokens")),
            (Some(4.0), Some(4.0))
        );
        assert_eq!((of(reported(), "output_sequence_length"), of(row(), "reasoning_token_count")), (Some(10.0), None));
    }

    #[test]
    fn usage_is_what_a_server_said_and_no_other_count() {
        let tags = ["usage_prompt_tokens", "usage_completion_tokens", "usage_total_tokens"];
        assert_eq!(tags.map(|tag| of(row(), tag)), [Some(7.0), Some(10.0), Some(17.0)]);
        assert_eq!(of(row(), "usage_prompt_cache_read_tokens"), Some(4.0));
        let counted = || TraceEntry { output_source: Some(CountSource::Ids), ..row() };
        assert_eq!(tags.map(|tag| of(counted(), tag)), [Some(7.0), None, None]);
        let mut of_prompt = row();
        of_prompt.prompt.source = Some(CountSource::Tokenizer);
        assert_eq!(tags.map(|tag| of(of_prompt.clone(), tag)), [None, Some(10.0), None]);
    }

    #[test]
    fn the_parts_of_an_exchange_are_where_their_times_are_known() {
        let transfer = TransferStats {
            connecting: Some(2_000_000),
            first_byte: Some(3_000_000),
            sent: Some(512),
            received: Some(2_048),
            reads: Some(2),
            ..TransferStats::default()
        };
        let with =
            |reads| TraceEntry { transfer: Some(Box::new(TransferStats { reads, ..transfer.clone() })), ..row() };
        let parts = ["connecting", "connection_reused", "sending", "waiting", "receiving", "duration", "total"];
        let part_values = |row: TraceEntry| parts.map(|part| of(row.clone(), &format!("http_req_{part}")));
        assert_eq!(part_values(with(Some(2))), [2.0, 0.0, 1.0, 2.0, 3.0, 6.0, 8.0].map(Some));
        // Bytes that arrived in one read took no time.
        assert_eq!(part_values(with(Some(1))), [2.0, 0.0, 1.0, 2.0, 0.0, 6.0, 5.0].map(Some));
        assert_eq!(
            (of(with(None), "http_req_data_sent"), of(with(None), "http_req_data_received")),
            (Some(0.5), Some(2.0))
        );
        assert_eq!(part_values(row()), [None, None, Some(1.0), None, None, Some(6.0), None], "an older record");
    }
}
