//! Maps each server's metric names to common figures. Pure.
//!
//! The names come from the servers' sources: vLLM's `v1/metrics/loggers.py` and `perf.py` (and the older names of its V0 engine),
//! SGLang's `observability/metrics_collector.py`, TGI's `backend.rs` and `queue.rs`, llama.cpp's `server-task.cpp`,
//! LMDeploy's `metrics/loggers.py`, Dynamo's `prometheus_names.rs`, the counters of NVIDIA's `dcgm-exporter`, and `nvidia_gpu_exporter`,
//! which reads `nvidia-smi`. Those of trtllm-serve (at `/prometheus/metrics`), of Triton and of its TensorRT-LLM backend
//! are from documents about them; no such server has been scraped. Dynamo's workers pass on the metrics of their engines.

use std::collections::BTreeMap;

use super::exposition::{Sample, samples};
use super::{SeriesAggregation, ServerMetric};

/// One source of a figure.
struct MetricMapping {
    figure: ServerMetric,
    /// Metrics whose values are summed; the first one must exist.
    names: &'static [&'static str],
    /// Label and value of the series, where one name holds several figures.
    label: Option<(&'static str, &'static str)>,
    /// Where a sample has the value.
    value: ValueSource,
    /// Factor for the value.
    scale: f64,
}

/// Where a sample has the value of a figure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueSource {
    /// Its value.
    Sample,
    /// A number in this label, of metrics that state a configuration.
    Label(&'static str),
    /// The number of names in this label, separated by commas.
    Names(&'static str),
}

const fn metric(figure: ServerMetric, names: &'static [&'static str]) -> MetricMapping {
    scaled_metric(figure, names, 1.0)
}

const fn scaled_metric(figure: ServerMetric, names: &'static [&'static str], scale: f64) -> MetricMapping {
    MetricMapping { figure, names, label: None, value: ValueSource::Sample, scale }
}

const fn labelled_metric(
    figure: ServerMetric,
    names: &'static [&'static str],
    label: (&'static str, &'static str),
) -> MetricMapping {
    MetricMapping { label: Some(label), ..metric(figure, names) }
}

const fn valued_metric(figure: ServerMetric, names: &'static [&'static str], value: ValueSource) -> MetricMapping {
    MetricMapping { value, ..metric(figure, names) }
}

use ServerMetric::{
    DecodeRequests, DecodeSeconds, ExternalHits, ExternalQueries, FirstTokenRequests, FirstTokenSeconds, Flops,
    GenerationTokens, GpuMemory, GpuMemoryActivity, GpuPower, GpuUtilization, KvCapacity, KvUsage, LoraRunning,
    LoraSlots, LoraWaiting, NvlinkReceived, NvlinkSent, PcieReceived, PcieSent, Preemptions, PrefillRequests,
    PrefillSeconds, PrefixHits, PrefixQueries, PromptTokens, QueueRequests, QueueSeconds, ReadBytes, Running, Waiting,
    WaitingDeferred, WaitingForCapacity, WriteBytes,
};

/// The first source present on a page determines the figure: a server that renames a metric exports both names for a
/// while.
const METRIC_MAPPINGS: &[MetricMapping] = &[
    metric(Waiting, &["vllm:num_requests_waiting"]),
    metric(Running, &["vllm:num_requests_running"]),
    metric(KvUsage, &["vllm:kv_cache_usage_perc"]),
    metric(KvUsage, &["vllm:gpu_cache_usage_perc"]),
    metric(PrefixHits, &["vllm:prefix_cache_hits_total"]),
    metric(PrefixHits, &["vllm:gpu_prefix_cache_hits_total"]),
    metric(PrefixQueries, &["vllm:prefix_cache_queries_total"]),
    metric(PrefixQueries, &["vllm:gpu_prefix_cache_queries_total"]),
    metric(Preemptions, &["vllm:num_preemptions_total"]),
    metric(PromptTokens, &["vllm:prompt_tokens_total"]),
    metric(GenerationTokens, &["vllm:generation_tokens_total"]),
    metric(QueueSeconds, &["vllm:request_queue_time_seconds_sum"]),
    metric(QueueRequests, &["vllm:request_queue_time_seconds_count"]),
    metric(PrefillSeconds, &["vllm:request_prefill_time_seconds_sum"]),
    metric(PrefillRequests, &["vllm:request_prefill_time_seconds_count"]),
    metric(FirstTokenSeconds, &["vllm:time_to_first_token_seconds_sum"]),
    metric(FirstTokenRequests, &["vllm:time_to_first_token_seconds_count"]),
    metric(ReadBytes, &["vllm:estimated_read_bytes_per_gpu_total"]),
    metric(WriteBytes, &["vllm:estimated_write_bytes_per_gpu_total"]),
    metric(Flops, &["vllm:estimated_flops_per_gpu_total"]),
    labelled_metric(WaitingForCapacity, &["vllm:num_requests_waiting_by_reason"], ("reason", "capacity")),
    labelled_metric(WaitingDeferred, &["vllm:num_requests_waiting_by_reason"], ("reason", "deferred")),
    metric(ExternalHits, &["vllm:external_prefix_cache_hits_total"]),
    metric(ExternalQueries, &["vllm:external_prefix_cache_queries_total"]),
    metric(DecodeSeconds, &["vllm:request_decode_time_seconds_sum"]),
    metric(DecodeRequests, &["vllm:request_decode_time_seconds_count"]),
    valued_metric(KvCapacity, &["vllm:cache_config_info"], ValueSource::Label("kv_cache_size_tokens")),
    valued_metric(LoraSlots, &["vllm:lora_requests_info"], ValueSource::Label("max_lora")),
    valued_metric(LoraRunning, &["vllm:lora_requests_info"], ValueSource::Names("running_lora_adapters")),
    valued_metric(LoraWaiting, &["vllm:lora_requests_info"], ValueSource::Names("waiting_lora_adapters")),
    metric(Waiting, &["sglang:num_queue_reqs"]),
    metric(Running, &["sglang:num_running_reqs"]),
    metric(KvUsage, &["sglang:token_usage"]),
    metric(PrefixHits, &["sglang:cached_tokens_total"]),
    metric(PrefixQueries, &["sglang:prompt_tokens_total"]),
    metric(Preemptions, &["sglang:num_retracted_requests_total"]),
    metric(PromptTokens, &["sglang:prompt_tokens_total"]),
    metric(GenerationTokens, &["sglang:generation_tokens_total"]),
    metric(QueueSeconds, &["sglang:queue_time_seconds_sum"]),
    metric(QueueRequests, &["sglang:queue_time_seconds_count"]),
    metric(FirstTokenSeconds, &["sglang:time_to_first_token_seconds_sum"]),
    metric(FirstTokenRequests, &["sglang:time_to_first_token_seconds_count"]),
    metric(Waiting, &["tgi_queue_size"]),
    metric(Running, &["tgi_batch_current_size"]),
    metric(PromptTokens, &["tgi_request_input_length_sum"]),
    metric(GenerationTokens, &["tgi_request_generated_tokens_sum"]),
    metric(QueueSeconds, &["tgi_request_queue_duration_sum"]),
    metric(QueueRequests, &["tgi_request_queue_duration_count"]),
    metric(Waiting, &["llamacpp:requests_deferred"]),
    metric(Running, &["llamacpp:requests_processing"]),
    metric(KvUsage, &["llamacpp:kv_cache_usage_ratio"]),
    metric(PrefixHits, &["llamacpp:prompt_tokens_cached_total"]),
    // Its prompt counter excludes cached tokens.
    metric(PrefixQueries, &["llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"]),
    metric(PromptTokens, &["llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"]),
    metric(GenerationTokens, &["llamacpp:tokens_predicted_total"]),
    metric(Waiting, &["trtllm_num_requests_waiting"]),
    metric(Running, &["trtllm_num_requests_running"]),
    metric(KvUsage, &["trtllm_kv_cache_utilization"]),
    metric(PrefixHits, &["trtllm_prompt_cached_tokens_total"]),
    metric(PrefixQueries, &["trtllm_prompt_tokens_total"]),
    metric(PromptTokens, &["trtllm_prompt_tokens_total"]),
    metric(GenerationTokens, &["trtllm_generation_tokens_total"]),
    metric(QueueSeconds, &["trtllm_request_queue_time_seconds_sum"]),
    metric(QueueRequests, &["trtllm_request_queue_time_seconds_count"]),
    metric(PrefillSeconds, &["trtllm_request_prefill_time_seconds_sum"]),
    metric(PrefillRequests, &["trtllm_request_prefill_time_seconds_count"]),
    metric(FirstTokenSeconds, &["trtllm_time_to_first_token_seconds_sum"]),
    metric(FirstTokenRequests, &["trtllm_time_to_first_token_seconds_count"]),
    labelled_metric(Waiting, &["nv_trt_llm_request_metrics"], ("request_type", "waiting")),
    labelled_metric(Running, &["nv_trt_llm_request_metrics"], ("request_type", "scheduled")),
    labelled_metric(KvUsage, &["nv_trt_llm_kv_cache_block_metrics"], ("kv_cache_block_type", "fraction")),
    metric(Waiting, &["nv_inference_pending_request_count"]),
    scaled_metric(QueueSeconds, &["nv_inference_queue_duration_us"], 1e-6),
    metric(QueueRequests, &["nv_inference_request_success"]),
    metric(Waiting, &["lmdeploy:num_requests_waiting"]),
    metric(Running, &["lmdeploy:num_requests_running"]),
    metric(KvUsage, &["lmdeploy:gpu_cache_usage_perc"]),
    metric(PromptTokens, &["lmdeploy:prompt_tokens_total"]),
    metric(GenerationTokens, &["lmdeploy:generation_tokens_total"]),
    metric(QueueSeconds, &["lmdeploy:request_queue_time_seconds_sum"]),
    metric(QueueRequests, &["lmdeploy:request_queue_time_seconds_count"]),
    metric(PrefillSeconds, &["lmdeploy:request_prefill_time_seconds_sum"]),
    metric(PrefillRequests, &["lmdeploy:request_prefill_time_seconds_count"]),
    metric(FirstTokenSeconds, &["lmdeploy:time_to_first_token_seconds_sum"]),
    metric(FirstTokenRequests, &["lmdeploy:time_to_first_token_seconds_count"]),
    metric(Waiting, &["dynamo_frontend_queued_requests"]),
    metric(Running, &["dynamo_frontend_inflight_requests"]),
    metric(PrefixHits, &["dynamo_frontend_cached_tokens_sum"]),
    metric(PrefixQueries, &["dynamo_frontend_input_sequence_tokens_sum"]),
    metric(PromptTokens, &["dynamo_frontend_input_sequence_tokens_sum"]),
    metric(GenerationTokens, &["dynamo_frontend_output_sequence_tokens_sum"]),
    metric(FirstTokenSeconds, &["dynamo_frontend_time_to_first_token_seconds_sum"]),
    metric(FirstTokenRequests, &["dynamo_frontend_time_to_first_token_seconds_count"]),
    scaled_metric(GpuUtilization, &["DCGM_FI_DEV_GPU_UTIL"], 0.01),
    scaled_metric(GpuMemory, &["DCGM_FI_DEV_FB_USED"], 1_048_576.0),
    metric(GpuPower, &["DCGM_FI_DEV_POWER_USAGE"]),
    metric(GpuMemoryActivity, &["DCGM_FI_PROF_DRAM_ACTIVE"]),
    metric(PcieSent, &["DCGM_FI_PROF_PCIE_TX_BYTES"]),
    metric(PcieReceived, &["DCGM_FI_PROF_PCIE_RX_BYTES"]),
    metric(NvlinkSent, &["DCGM_FI_PROF_NVLINK_TX_BYTES"]),
    metric(NvlinkReceived, &["DCGM_FI_PROF_NVLINK_RX_BYTES"]),
    metric(GpuUtilization, &["nvidia_smi_utilization_gpu_ratio"]),
    metric(GpuMemory, &["nvidia_smi_memory_used_bytes"]),
    metric(GpuPower, &["nvidia_smi_power_draw_watts"]),
    metric(GpuUtilization, &["nv_gpu_utilization"]),
    metric(GpuMemory, &["nv_gpu_memory_used_bytes"]),
    metric(GpuPower, &["nv_gpu_power_usage"]),
];

/// SGLang exports its queues in total and per priority under one name; series without this label are the totals.
const PRIORITY_LABEL: &str = "priority";

/// Reads the figures of a page; empty if the page is no known server's.
pub fn figures(page: &str) -> BTreeMap<ServerMetric, f64> {
    let mut found = [const { None::<SeriesAggregate> }; METRIC_MAPPINGS.len()];
    let mut more = [0.0; METRIC_MAPPINGS.len()];
    for sample in samples(page).filter(|sample| sample.value.is_finite() && sample.value >= 0.0) {
        for (at, place) in METRIC_MAPPINGS.iter().enumerate() {
            let Some(which) = place.names.iter().position(|name| *name == sample.name) else { continue };
            if place.label.is_some_and(|(name, value)| sample.label(name) != Some(value)) {
                continue;
            }
            if sample.label(PRIORITY_LABEL).is_some_and(|priority| !priority.is_empty()) {
                continue;
            }
            let Some(value) = place.value.of(&sample).map(|value| value * place.scale) else { continue };
            match which {
                0 => found[at].get_or_insert_default().add(value, sample.value),
                _ => more[at] += value,
            }
        }
    }
    let mut figures = BTreeMap::new();
    for ((place, found), more) in METRIC_MAPPINGS.iter().zip(found).zip(more) {
        let Some(found) = found else { continue };
        let value = found.aggregate(place.figure.aggregation()) + more;
        // A sum that overflows is not a real figure.
        if value.is_finite() {
            figures.entry(place.figure).or_insert(value);
        }
    }
    figures
}

impl ValueSource {
    /// The value of a sample, 0 or more.
    fn of(self, sample: &Sample<'_>) -> Option<f64> {
        match self {
            Self::Sample => Some(sample.value),
            Self::Label(name) => {
                sample.label(name)?.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
            }
            Self::Names(name) => {
                Some(sample.label(name)?.split(',').filter(|name| !name.trim().is_empty()).count() as f64)
            }
        }
    }
}

/// The aggregated series of one name.
#[derive(Clone, Copy, Debug, Default)]
struct SeriesAggregate {
    sum: f64,
    max: Option<f64>,
    /// The largest value of a sample, and the value of that series.
    latest: (f64, f64),
    count: f64,
}

impl SeriesAggregate {
    fn add(&mut self, value: f64, sampled: f64) {
        if sampled >= self.latest.0 {
            self.latest = (sampled, value);
        }
        self.sum += value;
        self.max = Some(self.max.map_or(value, |max| max.max(value)));
        self.count += 1.0;
    }

    fn aggregate(self, how: SeriesAggregation) -> f64 {
        match how {
            SeriesAggregation::Sum => self.sum,
            SeriesAggregation::Max => self.max.unwrap_or(self.sum),
            SeriesAggregation::Latest => self.latest.1,
            SeriesAggregation::Mean => self.sum / self.count.max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> BTreeMap<ServerMetric, f64> {
        let path = format!("{}/tests/data/server_metrics/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        figures(&std::fs::read_to_string(path).unwrap())
    }

    #[test]
    fn the_pages_of_real_servers_come_to_one_vocabulary() {
        let vllm = [
            (Waiting, 0.0),
            (Running, 0.0),
            (KvUsage, 0.0),
            (PrefixHits, 0.0),
            (PrefixQueries, 42.0),
            (Preemptions, 0.0),
            (PromptTokens, 42.0),
            (GenerationTokens, 240.0),
            (QueueSeconds, 8.202_900_016_840_431e-5),
            (QueueRequests, 2.0),
            (PrefillSeconds, 0.044_733_624_999_935_27),
            (PrefillRequests, 2.0),
            (FirstTokenSeconds, 0.150_460_481_643_676_76),
            (FirstTokenRequests, 2.0),
            (ReadBytes, 0.0),
            (WriteBytes, 0.0),
            (Flops, 0.0),
            (WaitingForCapacity, 0.0),
            (WaitingDeferred, 0.0),
            (ExternalHits, 0.0),
            (ExternalQueries, 0.0),
            (DecodeSeconds, 1.867_372_925_999_916_3),
            (DecodeRequests, 2.0),
            (KvCapacity, 262_144.0),
        ];
        assert_eq!(of("vllm"), vllm.into());
        let llama = [
            (Waiting, 0.0),
            (Running, 0.0),
            (PrefixHits, 0.0),
            (PrefixQueries, 21.0),
            (PromptTokens, 21.0),
            (GenerationTokens, 120.0),
        ];
        assert_eq!(of("llama-server"), llama.into());
    }

    #[test]
    fn engines_are_added_up_and_the_fullest_cache_counts() {
        let page = "vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n\
                    vllm:gpu_cache_usage_perc{engine=\"0\"} 0.9\nvllm:num_requests_waiting NaN\nvllm:num_requests_running -1\n";
        assert_eq!(figures(page), [(Running, 7.0), (KvUsage, 0.75)].into());
    }

    #[test]
    fn vllm_says_why_requests_wait_and_which_adapters_have_any() {
        let page = "vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 5\n\
                    vllm:num_requests_waiting_by_reason{engine=\"0\",reason=\"deferred\"} 2\n\
                    vllm:num_requests_waiting_by_reason{engine=\"1\",reason=\"deferred\"} 1\n\
                    vllm:num_requests_waiting_by_reason{engine=\"1\",reason=\"another\"} 9\n\
                    vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"1000\"} 1\n\
                    vllm:cache_config_info{engine=\"1\",kv_cache_size_tokens=\"2000\"} 1\n\
                    vllm:cache_config_info{engine=\"2\",kv_cache_size_tokens=\"None\"} 1\n\
                    vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"c\"} 1.75e9\n\
                    vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a\",waiting_lora_adapters=\"\"} 1.76e9\n\
                    vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 1.74e9\n";
        let expected = [
            (WaitingForCapacity, 5.0),
            (WaitingDeferred, 3.0),
            (KvCapacity, 3_000.0),
            (LoraSlots, 4.0),
            // Of the series that vLLM set last.
            (LoraRunning, 1.0),
            (LoraWaiting, 0.0),
        ];
        assert_eq!(figures(page), expected.into());
    }

    #[test]
    fn sglang_counts_a_request_once_whatever_its_priority() {
        let page = "sglang:num_queue_reqs{model_name=\"m\",priority=\"\"} 5\n\
                    sglang:num_queue_reqs{model_name=\"m\",priority=\"1\"} 2\n\
                    sglang:num_queue_reqs{model_name=\"m\",priority=\"2\"} 3\n\
                    sglang:cached_tokens_total{cache_source=\"device\"} 30\n\
                    sglang:cached_tokens_total{cache_source=\"host\"} 20\nsglang:prompt_tokens_total 200\n\
                    sglang:num_retracted_requests_total 1\nsglang:token_usage 0.5\n\
                    sglang:queue_time_seconds_sum 6\nsglang:queue_time_seconds_count 3\n";
        let expected = [
            (Waiting, 5.0),
            (KvUsage, 0.5),
            (PrefixHits, 50.0),
            (PrefixQueries, 200.0),
            (Preemptions, 1.0),
            (PromptTokens, 200.0),
            (QueueSeconds, 6.0),
            (QueueRequests, 3.0),
        ];
        assert_eq!(figures(page), expected.into());
    }

    #[test]
    fn tgi_and_llama_cpp_count_tokens_in_their_own_ways() {
        let tgi = "tgi_queue_size 7\ntgi_batch_current_size 4\ntgi_request_input_length_sum 900\n\
                   tgi_request_input_length_count 3\ntgi_request_generated_tokens_sum 8123\n";
        let expected = [(Waiting, 7.0), (Running, 4.0), (PromptTokens, 900.0), (GenerationTokens, 8_123.0)];
        assert_eq!(figures(tgi), expected.into());
        let llama = "llamacpp:prompt_tokens_total 60\nllamacpp:prompt_tokens_cached_total 40\n\
                     llamacpp:kv_cache_usage_ratio 0.625\nllamacpp:requests_deferred 2\n";
        let expected =
            [(Waiting, 2.0), (KvUsage, 0.625), (PrefixHits, 40.0), (PrefixQueries, 100.0), (PromptTokens, 100.0)];
        assert_eq!(figures(llama), expected.into());
    }

    #[test]
    fn tensorrt_llm_tells_the_same_by_itself_and_within_triton() {
        let serve = "trtllm_num_requests_waiting{model_name=\"m\"} 3\ntrtllm_num_requests_running 8\n\
                     trtllm_kv_cache_utilization 0.62\ntrtllm_prompt_tokens_total 400\n\
                     trtllm_prompt_cached_tokens_total 100\ntrtllm_generation_tokens_total 90\n\
                     trtllm_request_queue_time_seconds_sum 6\ntrtllm_request_queue_time_seconds_count 3\n\
                     trtllm_time_to_first_token_seconds_sum 9\ntrtllm_time_to_first_token_seconds_count 3\n";
        let expected = [
            (Waiting, 3.0),
            (Running, 8.0),
            (KvUsage, 0.62),
            (PrefixHits, 100.0),
            (PrefixQueries, 400.0),
            (PromptTokens, 400.0),
            (GenerationTokens, 90.0),
            (QueueSeconds, 6.0),
            (QueueRequests, 3.0),
            (FirstTokenSeconds, 9.0),
            (FirstTokenRequests, 3.0),
        ];
        assert_eq!(figures(serve), expected.into());
        let triton = "nv_trt_llm_request_metrics{model=\"m\",request_type=\"active\",version=\"1\"} 11\n\
                      nv_trt_llm_request_metrics{model=\"m\",request_type=\"waiting\",version=\"1\"} 3\n\
                      nv_trt_llm_request_metrics{model=\"m\",request_type=\"scheduled\",version=\"1\"} 8\n\
                      nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\"} 62\n\
                      nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} 0.62\n\
                      nv_inference_pending_request_count{model=\"m\"} 99\n\
                      nv_inference_queue_duration_us{model=\"m\"} 6000000\nnv_inference_request_success 3\n\
                      nv_gpu_utilization{gpu_uuid=\"a\"} 0.5\n";
        let expected = [
            (Waiting, 3.0),
            (Running, 8.0),
            (KvUsage, 0.62),
            (QueueSeconds, 6.0),
            (QueueRequests, 3.0),
            (GpuUtilization, 0.5),
        ];
        assert_eq!(figures(triton), expected.into(), "the backend's queue counts before Triton's");
    }

    #[test]
    fn lmdeploy_and_the_frontend_of_dynamo_come_to_the_same_vocabulary() {
        let lmdeploy = "lmdeploy:num_requests_waiting{engine=\"0\"} 1\nlmdeploy:num_requests_waiting{engine=\"1\"} 2\n\
                        lmdeploy:num_requests_running 4\nlmdeploy:gpu_cache_usage_perc 0.5\n\
                        lmdeploy:request_prefill_time_seconds_sum 2.5\nlmdeploy:request_prefill_time_seconds_count 5\n";
        let expected = [(Waiting, 3.0), (Running, 4.0), (KvUsage, 0.5), (PrefillSeconds, 2.5), (PrefillRequests, 5.0)];
        assert_eq!(figures(lmdeploy), expected.into());
        let dynamo = "dynamo_frontend_queued_requests{model=\"m\"} 2\ndynamo_frontend_inflight_requests 7\n\
                      dynamo_frontend_cached_tokens_sum 350\n\
                      dynamo_frontend_input_sequence_tokens_sum 700\ndynamo_frontend_output_sequence_tokens_sum 70\n";
        let expected = [
            (Waiting, 2.0),
            (Running, 7.0),
            (PrefixHits, 350.0),
            (PrefixQueries, 700.0),
            (PromptTokens, 700.0),
            (GenerationTokens, 70.0),
        ];
        assert_eq!(figures(dynamo), expected.into());
    }

    #[test]
    fn gpus_have_one_unit_each_whoever_tells_of_them() {
        let dcgm = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 80\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 40\n\
                    DCGM_FI_DEV_FB_USED{gpu=\"0\"} 1024\nDCGM_FI_DEV_FB_USED{gpu=\"1\"} 512\n\
                    DCGM_FI_DEV_POWER_USAGE{gpu=\"0\"} 300.5\n";
        let active = "DCGM_FI_PROF_DRAM_ACTIVE{gpu=\"0\"} 0.5\nDCGM_FI_PROF_DRAM_ACTIVE{gpu=\"1\"} 0.25\n";
        assert_eq!(figures(active), [(GpuMemoryActivity, 0.375)].into());
        let links = "DCGM_FI_PROF_PCIE_TX_BYTES{gpu=\"0\"} 3e9\nDCGM_FI_PROF_PCIE_TX_BYTES{gpu=\"1\"} 1e9\n\
                     DCGM_FI_PROF_PCIE_RX_BYTES{gpu=\"0\"} 5e8\nDCGM_FI_PROF_NVLINK_TX_BYTES{gpu=\"0\"} 2e10\n\
                     DCGM_FI_PROF_NVLINK_RX_BYTES{gpu=\"0\"} 1e10\n";
        let expected = [(PcieSent, 4e9), (PcieReceived, 5e8), (NvlinkSent, 2e10), (NvlinkReceived, 1e10)];
        assert_eq!(figures(links), expected.into());
        let gpus = [(GpuUtilization, 0.6), (GpuMemory, 1_536.0 * 1_048_576.0), (GpuPower, 300.5)];
        let rounded = |figures: BTreeMap<ServerMetric, f64>| -> BTreeMap<ServerMetric, f64> {
            figures.into_iter().map(|(figure, value)| (figure, (value * 1e6).round() / 1e6)).collect()
        };
        assert_eq!(rounded(figures(dcgm)), gpus.into());
        let smi = "nvidia_smi_utilization_gpu_ratio{uuid=\"a\"} 0.6\nnvidia_smi_memory_used_bytes 1610612736\n\
                   nvidia_smi_power_draw_watts 300.5\n";
        assert_eq!(rounded(figures(smi)), gpus.into());
    }

    #[test]
    fn a_page_of_somebody_else_has_nothing() {
        assert!(figures("up 1\nprocess_open_fds 12\n").is_empty());
        assert!(figures("tgi_queue_size 1e308\ntgi_queue_size 1e308\n").is_empty());
        assert!(figures("<!doctype html><title>Not found</title>").is_empty());
    }
}
