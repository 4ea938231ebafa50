// Names of the figures of each inference server. Where a server renamed a metric, the newer name comes first and the older
// one fills in. Sources: vLLM v1/metrics/loggers.py and its V0 engine; SGLang observability/metrics_collector.py; TGI
// router/src; llama.cpp tools/server; TensorRT-LLM tensorrt_llm/metrics/collector.py (trtllm-serve, /prometheus/metrics);
// Triton's core and the TensorRT-LLM backend's custom_metrics_reporter.cc. A server without the figure is left out.
local config = import 'config.libsonnet';
local label = config.labels;

local matchers = '%s=~"$cluster", %s=~"$namespace", %s=~"$engine"' % [label.cluster, label.namespace, label.instance];
local select(metric, more='') = '%s{%s%s}' % [metric, matchers, if more == '' then '' else ', ' + more];
local by(how, expr) = '%s by (%s) (%s)' % [how, label.instance, expr];
local level(metric, more='') = by('sum', select(metric, more));
local fullest(metric, more='') = by('max', select(metric, more));
local rate(metric, more='') = by('sum', 'rate(%s[$__rate_interval])' % select(metric, more));
local first(exprs) = std.join(' or ', exprs);
local mean(histogram) = '%s / %s' % [rate(histogram + '_sum'), rate(histogram + '_count')];

// SGLang has its queues in total and per priority under one name; the total has no priority.
local total = 'priority=""';

{
  // One metric of each server, for the variable of instances.
  any: '{__name__=~"vllm:num_requests_running|sglang:num_running_reqs|tgi_batch_current_size|llamacpp:requests_processing|trtllm_num_requests_running|nv_trt_llm_request_metrics|nv_inference_pending_request_count", %s=~"$cluster", %s=~"$namespace"}' % [label.cluster, label.namespace],

  waiting: {
    vLLM: level('vllm:num_requests_waiting'),
    SGLang: level('sglang:num_queue_reqs', total),
    TGI: level('tgi_queue_size'),
    'llama.cpp': level('llamacpp:requests_deferred'),
    'TensorRT-LLM': level('trtllm_num_requests_waiting'),
    Triton: first([level('nv_trt_llm_request_metrics', 'request_type="waiting"'), level('nv_inference_pending_request_count')]),
  },
  running: {
    vLLM: level('vllm:num_requests_running'),
    SGLang: level('sglang:num_running_reqs', total),
    TGI: level('tgi_batch_current_size'),
    'llama.cpp': level('llamacpp:requests_processing'),
    'TensorRT-LLM': level('trtllm_num_requests_running'),
    Triton: first([level('nv_trt_llm_request_metrics', 'request_type="scheduled"'), level('nv_trt_llm_request_metrics', 'request_type="active"')]),
  },
  kv: {
    vLLM: first([fullest('vllm:kv_cache_usage_perc'), fullest('vllm:gpu_cache_usage_perc')]),
    SGLang: fullest('sglang:token_usage', total),
    'llama.cpp': fullest('llamacpp:kv_cache_usage_ratio'),
    'TensorRT-LLM': fullest('trtllm_kv_cache_utilization'),
    Triton: first([
      fullest('nv_trt_llm_kv_cache_block_metrics', 'kv_cache_block_type="fraction"'),
      '%s / %s' % [level('nv_trt_llm_kv_cache_block_metrics', 'kv_cache_block_type="used"'), level('nv_trt_llm_kv_cache_block_metrics', 'kv_cache_block_type="max"')],
    ]),
  },
  prefixHits: {
    vLLM: first([
      '%s / %s' % [rate('vllm:prefix_cache_hits_total'), rate('vllm:prefix_cache_queries_total')],
      '%s / %s' % [rate('vllm:gpu_prefix_cache_hits_total'), rate('vllm:gpu_prefix_cache_queries_total')],
      by('max', select('vllm:gpu_prefix_cache_hit_rate')),
    ]),
    SGLang: first(['%s / %s' % [rate('sglang:cached_tokens_total'), rate('sglang:prompt_tokens_total')], by('max', select('sglang:cache_hit_rate'))]),
    // Its prompt counter leaves cached tokens out.
    'llama.cpp': '%s / (%s + %s)' % [rate('llamacpp:prompt_tokens_cached_total'), rate('llamacpp:prompt_tokens_total'), rate('llamacpp:prompt_tokens_cached_total')],
    'TensorRT-LLM': first([
      '%s / (%s + %s)' % [rate('trtllm_kv_cache_reused_blocks_total'), rate('trtllm_kv_cache_reused_blocks_total'), rate('trtllm_kv_cache_missed_blocks_total')],
      by('max', select('trtllm_kv_cache_hit_rate')),
    ]),
  },
  preemptions: {
    vLLM: rate('vllm:num_preemptions_total'),
    SGLang: rate('sglang:num_retracted_requests_total'),
  },
  // Requests that are preempted now, where nothing counts preemptions.
  paused: {
    SGLang: level('sglang:num_retracted_reqs', total),
    'TensorRT-LLM': level('trtllm_num_paused_requests'),
    Triton: level('nv_trt_llm_inflight_batcher_metrics', 'inflight_batcher_specific_metric="paused_requests"'),
  },
  queueTime: {
    vLLM: mean('vllm:request_queue_time_seconds'),
    SGLang: mean('sglang:queue_time_seconds'),
    TGI: mean('tgi_request_queue_duration'),
    'TensorRT-LLM': mean('trtllm_request_queue_time_seconds'),
    Triton: '%s / %s / 1e6' % [rate('nv_inference_queue_duration_us'), rate('nv_inference_request_success')],
  },
  prefillTime: {
    vLLM: mean('vllm:request_prefill_time_seconds'),
    'TensorRT-LLM': mean('trtllm_request_prefill_time_seconds'),
  },
  ttft: {
    vLLM: mean('vllm:time_to_first_token_seconds'),
    SGLang: mean('sglang:time_to_first_token_seconds'),
    'TensorRT-LLM': mean('trtllm_time_to_first_token_seconds'),
  },
  // Time per output token: the newer name, then the older one.
  itl: {
    vLLM: first([mean('vllm:inter_token_latency_seconds'), mean('vllm:time_per_output_token_seconds')]),
    SGLang: first([mean('sglang:inter_token_latency_seconds'), mean('sglang:time_per_output_token_seconds')]),
    TGI: mean('tgi_request_mean_time_per_token_duration'),
    'TensorRT-LLM': mean('trtllm_time_per_output_token_seconds'),
  },
  generated: {
    vLLM: rate('vllm:generation_tokens_total'),
    SGLang: rate('sglang:generation_tokens_total'),
    TGI: rate('tgi_request_generated_tokens_sum'),
    'llama.cpp': rate('llamacpp:tokens_predicted_total'),
    'TensorRT-LLM': rate('trtllm_generation_tokens_total'),
  },
}
