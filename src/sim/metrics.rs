//! The `/metrics` page with vLLM's names. Every help text states that the numbers are simulated.

use std::fmt::Display;

use super::events::quoted;
use crate::engine::EngineFinish;
use crate::engine::stats::{E2E_BOUNDS, EngineHistogram, EngineStats, ITL_BOUNDS, TTFT_BOUNDS};

/// The page in the Prometheus text format.
pub(super) fn page(stats: &EngineStats, model: &str) -> String {
    // JSON and Prometheus escape quotes, backslashes and line ends the same way.
    let mut page = MetricsPage {
        text: String::with_capacity(16 << 10),
        labels: format!("engine=\"0\",model_name={}", quoted(model)),
    };
    page.gauge("num_requests_running", "Number of requests in model execution batches.", stats.running);
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting);
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", stats.kv_usage);
    page.counter("prefix_cache_queries", "Prefix cache queries, in number of queried tokens.", stats.cache_queries);
    page.counter("prefix_cache_hits", "Prefix cache hits, in number of cached tokens.", stats.cache_hits);
    page.counter("num_preemptions", "Cumulative number of preemptions.", stats.preemptions);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", stats.prompt_tokens);
    page.counter("generation_tokens", "Number of generation tokens processed.", stats.generation_tokens);
    page.head("request_success_total", "Count of processed requests, by how they ended.", "counter");
    for reason in EngineFinish::ALL {
        let label = format!(",finished_reason=\"{}\"", reason.as_str());
        page.sample("request_success_total", &label, stats.finished(reason));
    }
    page.head("admission_rejections_total", "Number of requests that the full queue turned away.", "counter");
    page.sample("admission_rejections_total", ",reason=\"max_num_queued_reqs\"", stats.refused);
    page.histogram("time_to_first_token_seconds", "Time to first token in seconds.", &TTFT_BOUNDS, &stats.ttft);
    page.histogram("inter_token_latency_seconds", "Inter-token latency in seconds.", &ITL_BOUNDS, &stats.itl);
    page.histogram("e2e_request_latency_seconds", "End-to-end latency in seconds.", &E2E_BOUNDS, &stats.e2e);
    page.histogram("request_queue_time_seconds", "Time in the waiting queue in seconds.", &E2E_BOUNDS, &stats.queue);
    page.histogram("request_prefill_time_seconds", "Time in the PREFILL phase.", &E2E_BOUNDS, &stats.prefill);
    page.text
}

struct MetricsPage {
    text: String,
    labels: String,
}

impl MetricsPage {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.text += &format!(
            "# HELP vllm:{name} {help} Simulated by streamgauge sim: a cost model's number, not a measurement.\n\
             # TYPE vllm:{name} {kind}\n"
        );
    }

    fn sample(&mut self, name: &str, more_labels: &str, value: impl Display) {
        self.text += &format!("vllm:{name}{{{}{more_labels}}} {value}\n", self.labels);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let name = format!("{name}_total");
        self.head(&name, help, "counter");
        self.sample(&name, "", value);
    }

    fn histogram<const N: usize>(&mut self, name: &str, help: &str, bounds: &[f64; N], histogram: &EngineHistogram<N>) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in bounds.iter().zip(histogram.counts) {
            below += count;
            // Debug formatting keeps the `.0` of whole numbers, as vLLM's client library does.
            self.sample(&bucket, &format!(",le=\"{bound:?}\""), below);
        }
        self.sample(&bucket, ",le=\"+Inf\"", histogram.count);
        self.sample(&format!("{name}_sum"), "", histogram.sum.as_secs());
        self.sample(&format!("{name}_count"), "", histogram.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Gap;

    #[test]
    fn the_page_has_vllms_names_and_values_and_says_that_they_are_simulated() {
        let mut stats = EngineStats::default();
        (stats.running, stats.kv_usage, stats.cache_hits) = (3, 0.25, 32);
        stats.finish(EngineFinish::Length);
        stats.itl.observe(&ITL_BOUNDS, Gap::from_millis(20));
        stats.itl.observe(&ITL_BOUNDS, Gap::from_millis(500_000));
        let page = page(&stats, "ti\"ny");
        for line in [
            r#"vllm:num_requests_running{engine="0",model_name="ti\"ny"} 3"#,
            r#"vllm:kv_cache_usage_perc{engine="0",model_name="ti\"ny"} 0.25"#,
            r#"vllm:prefix_cache_hits_total{engine="0",model_name="ti\"ny"} 32"#,
            r#"vllm:request_success_total{engine="0",model_name="ti\"ny",finished_reason="length"} 1"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",model_name="ti\"ny",le="0.01"} 0"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",model_name="ti\"ny",le="0.025"} 1"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",model_name="ti\"ny",le="1.0"} 1"#,
            r#"vllm:inter_token_latency_seconds_bucket{engine="0",model_name="ti\"ny",le="+Inf"} 2"#,
            r#"vllm:inter_token_latency_seconds_sum{engine="0",model_name="ti\"ny"} 500.02"#,
            r#"vllm:inter_token_latency_seconds_count{engine="0",model_name="ti\"ny"} 2"#,
            "# TYPE vllm:inter_token_latency_seconds histogram",
        ] {
            assert!(page.lines().any(|seen| seen == line), "{line}\n{page}");
        }
        assert!(page.lines().filter(|line| line.starts_with("# HELP")).all(|line| line.contains("Simulated")));
    }
}
