// Engine beside proxy: the server's own figures next to what the proxy measured, on one axis where they have one unit.
local board = import 'board.libsonnet';
local config = import 'config.libsonnet';
local engines = import 'engines.libsonnet';
local panel = import 'panel.libsonnet';
local q = import 'query.libsonnet';
local label = config.labels;

local phases = 'streamgauge_stream_time_to_phase_seconds';
local ttft = 'gen_ai_server_time_to_first_token_seconds';
local itl = 'streamgauge_stream_inter_token_latency_seconds';

// A line for each server, of those that have the figure.
local servers(figure) = [panel.query(figure[server], '%s {{%s}}' % [server, label.instance]) for server in std.objectFields(figure)];
local ours(expr, legend) = panel.query(expr, 'proxy: ' + legend);
local marked = { '/^proxy: /': 'purple' };
local proxies = std.objectFields(marked);
local phase(name) = q.mean('', phases, q.models + ', phase="%s"' % name);

board.new(
  'engine',
  'Engine beside proxy',
  "The inference server's own figures beside what the proxy measured for its clients. Dashed purple lines are the proxy's.",
  [
    {
      title: 'Load',
      lines: [{
        h: 10,
        panels: [
          panel.chart(
            'Waiting',
            "Requests in the server's queue, and streams at the proxy without a first token. The proxy's number also has those whose prompt is being processed. If it is far above the queue, requests wait before the scheduler.",
            'none',
            servers(engines.waiting) + [ours(q.level('', 'streamgauge_stream_active', q.proxies + ', phase="waiting"'), 'streams without a token')],
            colors=marked,
            dashed=proxies,
          ) { w: 8 },
          panel.chart(
            'Running',
            "Requests in the server's batch, and streams at the proxy that receive tokens. If the server has more, others send to it without the proxy.",
            'none',
            servers(engines.running) + [ours(q.level('', 'streamgauge_stream_active', q.proxies + ', phase="streaming"'), 'streams with tokens')],
            colors=marked,
            dashed=proxies,
          ) { w: 8 },
          panel.chart(
            'Output tokens',
            'Output tokens per second as the server counts them, and as the proxy saw them pass. TGI counts at the end of a request.',
            'suffix: tok/s',
            servers(engines.generated) + [ours(q.rates('', 'streamgauge_stream_output_tokens_total', q.models), 'all models')],
            colors=marked,
            dashed=proxies,
          ) { w: 8 },
        ],
      }],
    },
    {
      title: 'Time to first token: queue, prefill, and what clients saw',
      lines: [{
        h: 10,
        panels: [
          panel.chart(
            'Queue time, mean',
            "Mean time in the server's queue, and at the proxy the mean time to the response headers and to the first token. A server that sends headers before it schedules hides its queue in the second.",
            's',
            servers(engines.queueTime) + [ours(phase('headers'), 'to the headers'), ours(q.mean('', ttft, q.models), 'to the first token')],
            colors=marked,
            dashed=proxies,
          ) { w: 8 },
          panel.chart(
            'Prefill time, mean',
            "Mean time of the prompt's processing in the server, and at the proxy the mean time from the headers to the first output.",
            's',
            servers(engines.prefillTime) + [ours('%s - %s' % ['(%s)' % phase('first_output'), '(%s)' % phase('headers')], 'headers to first output')],
            colors=marked,
            dashed=proxies,
          ) { w: 8 },
          panel.chart(
            'TTFT, mean',
            "The server's own time to first token, and the proxy's. The distance is what the server does not count: its front end, tokenizer and network.",
            's',
            servers(engines.ttft) + [ours(q.mean('', ttft, q.models), 'all models')],
            colors=marked,
            dashed=proxies,
          ) { w: 8 },
        ],
      }],
    },
    {
      title: 'KV cache and batch',
      lines: [
        {
          h: 10,
          panels: [
            panel.chart(
              'KV cache in use',
              'Share of the KV cache in use. Near 100% the server preempts requests, and streams stall. TGI exports none; llama.cpp only in older versions.',
              'percentunit',
              servers(engines.kv),
              max=1,
              lines=[panel.limit(0.9)],
              links=[panel.runbook('StreamgaugeStreamsStall')],
            ) { w: 8 },
            panel.chart(
              'Prefix-cache hits',
              'Share of prompt tokens (TensorRT-LLM: of blocks) that came from the prefix cache, and the share that the server reported to clients in its usage. TGI and Triton export none.',
              'percentunit',
              servers(engines.prefixHits) + [ours(q.ratio(q.rates('', 'gen_ai_client_inference_usage_cache_read_input_tokens_total', q.models), q.rates('', 'gen_ai_client_inference_usage_input_tokens_total', q.models)), 'reported in usage')],
              max=1,
              colors=marked,
              dashed=proxies,
            ) { w: 8 },
            panel.chart(
              'Preemptions',
              'Requests per second that the server threw out of its batch, and stalls per second that clients saw. TensorRT-LLM and Triton do not count them: see the paused requests.',
              'suffix: /s',
              servers(engines.preemptions) + [ours(q.rates('', 'streamgauge_stream_stalls_total', q.models), 'stalls')],
              colors=marked,
              dashed=proxies,
              links=[panel.runbook('StreamgaugeStreamsStall')],
            ) { w: 8 },
          ],
        },
        {
          h: 10,
          panels: [
            panel.chart(
              'Paused requests',
              'Requests that are preempted now, where a server exports that. Any number above 0 means that its KV cache is too small for its batch.',
              'none',
              servers(engines.paused),
            ) { w: 8 },
            panel.chart(
              'Time per token, mean',
              "The server's own inter-token latency, and the proxy's. If the proxy's is longer, tokens arrive in groups or clients read slowly.",
              's',
              servers(engines.itl) + [ours(q.mean('', itl, q.models), 'all models')],
              colors=marked,
              dashed=proxies,
            ) { w: 8 },
            panel.chart(
              'Connections to the server',
              'Open connections from the proxies to their servers, in use and kept for the next request.',
              'none',
              [panel.query(q.level('state', 'streamgauge_proxy_upstream_connections', q.proxies), '{{state}}')],
              stack=true,
              links=[panel.runbook('StreamgaugeUpstreamDown')],
            ) { w: 8 },
          ],
        },
      ],
    },
  ],
  [board.values('engine', 'Engine', engines.any, label.instance)],
)
