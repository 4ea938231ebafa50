// Streaming: what clients of each model see, token by token.
local board = import 'board.libsonnet';
local config = import 'config.libsonnet';
local panel = import 'panel.libsonnet';
local q = import 'query.libsonnet';

local ttft = 'gen_ai_server_time_to_first_token_seconds';
local itl = 'streamgauge_stream_inter_token_latency_seconds';
local phases = 'streamgauge_stream_time_to_phase_seconds';

// An exemplar of ITL is the longest gap of its stream: among lines of all gaps it would mislead, so the heat map has it.
local quantiles(histogram, matchers=q.models, exemplar=false) = [
  panel.query(q.quantile(quantile / 100, '', histogram, matchers), 'p%d' % quantile, exemplar)
  for quantile in [50, 90, 99]
];
local byModel(quantile, histogram, exemplar=false) = [panel.query(q.quantile(quantile, 'gen_ai_request_model', histogram, q.models), '{{gen_ai_request_model}}', exemplar)];
local byPhase(quantile) = [
  panel.query(q.quantile(quantile, 'phase', phases, q.models), '{{phase}}'),
  panel.query(q.quantile(quantile, '', ttft, q.models), 'first_token'),
];
local timed(title, about, queries, lines=[], colors={}, links=[]) =
  panel.chart(title, about, 's', queries, lines=lines, colors=colors, calcs=['mean', 'lastNotNull', 'max'], links=links);
local endings(by, more='') = q.rates(by, 'streamgauge_stream_terminations_total', q.models + more);
local tokens(by, metric) = q.rates(by, metric, q.models);

board.new(
  'streaming',
  'Streaming',
  'What clients of each model see: time to first token by phase, inter-token latency, stalls, tokens, and how streams end.',
  [
    {
      title: 'Time to first token',
      lines: [
        {
          h: 8,
          panels: [
            timed(
              'TTFT',
              'From the first byte of the request at the proxy to the first generated text, of streams that succeeded. If p99 leaves p50 behind, some requests wait in a queue. A point opens the trace of a request.',
              quantiles(ttft, exemplar=true),
              [panel.limit(config.lines.ttft)],
              panel.quantiles,
              [panel.runbook('StreamgaugeErrorBudgetBurns')],
            ) { w: 8 },
            timed(
              'TTFT p90 by phase',
              'How far a stream had come after which time. Headers early and tokens late: the prompt is processed or waits. A reasoning model thinks between its first token and its first output.',
              byPhase(0.9),
            ) { w: 8 },
            timed(
              'TTFT p50 by phase',
              'The same for the usual request. A phase that is long at p90 only is a queue; one that is long here is the work itself.',
              byPhase(0.5),
            ) { w: 8 },
          ],
        },
        {
          h: 9,
          panels: [
            panel.heatMap(
              'TTFT, distribution',
              'Requests per second by their TTFT. Two bands are two kinds of requests, such as short and long prompts, or prompts that a cache knows and others. A point opens the trace of a request.',
              q.buckets(ttft, q.models),
            ) { w: 12 },
            timed(
              'TTFT p99 by model',
              'A slow model among quick ones is a matter of that model; all slow at once is a matter of the server.',
              byModel(0.99, ttft, exemplar=true),
              [panel.limit(config.lines.ttft)],
            ) { w: 12 },
          ],
        },
      ],
    },
    {
      title: 'Between tokens',
      lines: [
        {
          h: 9,
          panels: [
            panel.heatMap(
              'ITL, distribution',
              "Gaps between tokens per second, by their length. The band is the step of the server's batch. A second band above it comes from long prompts between the steps: smaller prefill chunks lower it. A point is the longest gap of a stream, and opens its trace.",
              q.buckets(itl, q.models),
              links=[panel.runbook('StreamgaugeStreamsStall')],
            ) { w: 12 },
            timed(
              'ITL',
              'Time between one token event and the next, divided by the tokens of the later one where the server reports how many. p50 is the speed that readers see, p99 the stutter.',
              quantiles(itl),
              [panel.limit(config.lines.itl)],
              panel.quantiles,
            ) { w: 12 },
          ],
        },
        {
          h: 8,
          panels: [
            timed(
              'ITL p99 by model',
              'The stutter of each model. A model whose line rises with its load shares a batch that is too large.',
              byModel(0.99, itl),
              [panel.limit(config.lines.itl)],
            ) { w: 8 },
            timed(
              'ITL p50 by method',
              'exact: the server reports the tokens of each event, and it is one. split: several tokens share the gap. chunk: the count is unknown, so the gap is that of events.',
              [panel.query(q.quantile(0.5, 'method', itl, q.models), '{{method}}')],
            ) { w: 8 },
            timed(
              'TPOT',
              'Time per output token after the first, of whole streams. Unlike ITL it counts each stream once, however long. If it is too high, admit fewer requests at once or add a server.',
              quantiles('gen_ai_server_time_per_output_token_seconds'),
              colors=panel.quantiles,
            ) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            panel.chart(
              'Tokens per event',
              'Mean number of tokens in one token event, where the server reports it. Above 1 with speculative decoding, or where the server batches its events; then ITL is divided.',
              'none',
              [panel.query(q.mean('gen_ai_request_model', 'streamgauge_stream_tokens_per_chunk', q.models), '{{gen_ai_request_model}}')],
              decimals=2,
            ) { w: 8 },
            panel.chart(
              'Stalls',
              'Gaps above the setting `stall` (1 s by default), per second. Readers notice each. Look for preemption, a full KV cache or a busy host.',
              'suffix: /s',
              [panel.query(q.rates('gen_ai_request_model', 'streamgauge_stream_stalls_total', q.models), '{{gen_ai_request_model}}')],
              stack=true,
              links=[panel.runbook('StreamgaugeStreamsStall')],
            ) { w: 8 },
            panel.chart(
              'Open streams',
              'Streams that wait for their first token, and that receive tokens. Many that wait: the server has a queue, and TTFT grows.',
              'none',
              [panel.query(q.level('phase', 'streamgauge_stream_active', q.models), '{{phase}}')],
              stack=true,
            ) { w: 8 },
          ],
        },
      ],
    },
    {
      title: 'How streams end',
      lines: [{
        h: 8,
        panels: [
          panel.chart(
            'Endings',
            'Streams per second by how they ended. done: whole. client_disconnect: the client left. All others were broken off by the server or on the way to it.',
            'suffix: /s',
            [panel.query(endings('reason'), '{{reason}}')],
            stack=true,
            colors={ done: 'green', client_disconnect: 'blue' },
            links=[panel.runbook('StreamgaugeStreamsTruncated')],
          ) { w: 8 },
          panel.chart(
            'Streams not whole',
            'Share of streams that the server did not finish, and that clients left. Clients that leave before the first token did not want to wait: see TTFT.',
            'percentunit',
            [
              panel.query(q.ratio(endings('', ', reason!~"done|client_disconnect"'), endings('')), 'broken off'),
              panel.query('%s / on () group_left () %s' % [endings('first_token', ', reason="client_disconnect"'), endings('')], 'client left, first token: {{first_token}}'),
            ],
            lines=[panel.limit(0.05)],
            links=[panel.runbook('StreamgaugeStreamsTruncated')],
          ) { w: 8 },
          panel.chart(
            'Broken off, by model',
            'Share of the streams of each model that ended before they were whole, without the client having left. An alert comes at the dashed line.',
            'percentunit',
            [panel.query('(%s or 0 * %s) / %s' % [endings('gen_ai_request_model', ', reason!~"done|client_disconnect"'), endings('gen_ai_request_model'), endings('gen_ai_request_model')], '{{gen_ai_request_model}}')],
            lines=[panel.limit(0.05)],
            links=[panel.runbook('StreamgaugeStreamsTruncated')],
          ) { w: 8 },
        ],
      }],
    },
    {
      title: 'Tokens and requests',
      lines: [
        {
          h: 8,
          panels: [
            panel.chart(
              'Output tokens by model',
              'Output tokens per second, counted while they stream: what the server achieves.',
              'suffix: tok/s',
              [panel.query(tokens('gen_ai_request_model', 'streamgauge_stream_output_tokens_total'), '{{gen_ai_request_model}}')],
              stack=true,
            ) { w: 8 },
            panel.chart(
              'Output tokens by source of the count',
              'The same by who counted. `chunks` is an estimate: let clients ask for the usage, or turn on `ask_usage`.',
              'suffix: tok/s',
              [panel.query(tokens('source', 'streamgauge_stream_output_tokens_total'), '{{source}}')],
              stack=true,
            ) { w: 8 },
            panel.chart(
              'Tokens per request',
              'Mean input and output tokens of a request whose usage the server reported. Longer inputs make TTFT longer, longer outputs the duration. The panel reads both sets of names of the conventions. Empty with `gen_ai_client: false`.',
              'suffix: tok',
              [
                panel.query(q.mean('gen_ai_token_type', 'gen_ai_client_token_usage', q.models), '{{gen_ai_token_type}}'),
                panel.query(q.mean('', 'gen_ai_client_inference_operation_input_tokens', q.models), 'input, newest names'),
                panel.query(q.mean('', 'gen_ai_client_inference_operation_output_tokens', q.models), 'output, newest names'),
              ],
            ) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            panel.chart(
              'Cached input and reasoning',
              'Share of input tokens that the server took from its cache or wrote to it, and of output tokens that are reasoning. Only the newest names of the conventions have them (OTEL_SEMCONV_STABILITY_OPT_IN).',
              'percentunit',
              [
                panel.query(q.ratio(tokens('', 'gen_ai_client_inference_usage_cache_read_input_tokens_total'), tokens('', 'gen_ai_client_inference_usage_input_tokens_total')), 'input from the cache'),
                panel.query(q.ratio(tokens('', 'gen_ai_client_inference_usage_cache_write_input_tokens_total'), tokens('', 'gen_ai_client_inference_usage_input_tokens_total')), 'input to the cache'),
                panel.query(q.ratio(tokens('', 'gen_ai_client_inference_usage_reasoning_output_tokens_total'), tokens('', 'gen_ai_client_inference_usage_output_tokens_total')), 'output that is reasoning'),
              ],
            ) { w: 8 },
            timed(
              'Request duration',
              'From the first byte of the request to the end of the response, of successes. It depends on the length of responses: judge a server by TTFT and ITL.',
              quantiles('gen_ai_server_request_duration_seconds', q.models + ', error_type=""', exemplar=true),
              colors=panel.quantiles,
            ) { w: 8 },
            panel.chart(
              'Responses by status',
              'Requests per second by the class of their status. none: no response began. A status does not say who answered: the board Fleet has the failures by fault.',
              'reqps',
              [panel.query(q.rates('status_class', 'streamgauge_http_responses_total', q.models + ', traffic!="probe"'), '{{status_class}}')],
              colors={ '2xx': 'green', '4xx': 'yellow', '5xx': 'red' },
              links=[panel.runbook('StreamgaugeUpstreamFails')],
            ) { w: 8 },
          ],
        },
      ],
    },
  ],
)
