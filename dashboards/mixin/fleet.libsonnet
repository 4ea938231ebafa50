// Fleet: the health of all instances at a glance, the worst first.
local board = import 'board.libsonnet';
local config = import 'config.libsonnet';
local panel = import 'panel.libsonnet';
local problems = import 'problems.libsonnet';
local q = import 'query.libsonnet';
local label = config.labels;

local byPlace = q.place;
local judged(result, by, window='$__rate_interval') = q.rates(by, 'streamgauge_slo_requests_total', q.slos + ', result=~"%s"' % result, window);
local missedShare(by, window) = q.ratio(judged('missed', by, window), judged('met|missed', by, window));
// How many times as fast as the target allows the error budget is spent; of SLOs of one place the worst.
local target = 'max by (%s, slo) (streamgauge_slo_target_ratio{%s, slo=~"$slo"})' % [q.service, q.proxies];
local burn(by, window) = '%s / on (%s, slo) group_left () (1 - %s)' % [missedShare(by + ', slo', window), q.service, target];
local failures(by) = q.rates(by, 'streamgauge_http_responses_total', q.proxies + ', traffic!="probe", fault=~"upstream|proxy"');
local requests(by) = q.rates(by, 'streamgauge_http_responses_total', q.proxies + ', traffic!="probe"');
local failingShare(by) = '(%s or 0 * %s) / %s' % [failures(by), requests(by), requests(by)];
local saturation(by) = 'max by (%s) (streamgauge_proxy_resource_usage{%s} / streamgauge_proxy_resource_limit{%s})' % [by, q.proxies, q.proxies];

local good(from, to) = [{ color: 'green', value: null }, { color: 'orange', value: from }, { color: 'red', value: to }];
local toInstance = {
  title: 'Streaming of this instance',
  url: '/d/streamgauge-streaming?${datasource:queryparam}&var-instance=${__data.fields.%s}&${__url_time_range}' % label.instance,
};

local total(title, about, unit, expr, colors=[{ color: 'blue', value: null }], words=[], decimals=null) =
  panel.stat(title, about, unit, [panel.query(expr, title)], colors, words, decimals);

board.new(
  'fleet',
  'Fleet',
  'Health of every proxy at a glance, the worst first: what is wrong, and which instance, model or SLO to open next.',
  [
    {
      title: 'At a glance',
      lines: [{
        h: 5,
        panels: [
          total('Proxies', 'Instances that were seen in the last 15 minutes.', 'none', 'count(%s)' % problems.instances) { w: 4 },
          total(
            'With problems',
            'Instances with at least one problem. The tables below name the instance and the problem.',
            'none',
            'count(%s > 0) or vector(0)' % problems.count,
            good(1, 2),
            [panel.word(0, '✓ none', 'green')],
          ) { w: 4 },
          total('Requests', 'Requests per second that ended, health probes left out.', 'reqps', requests('')) { w: 4 },
          total(
            'Failures',
            "Share of requests that failed by the server's or the proxy's fault. Clients that disconnect do not count.",
            'percentunit',
            failingShare(''),
            good(0.01, 0.05),
            decimals=2,
          ) { w: 4 },
          total(
            'Fastest burn',
            'Pace at which the worst SLO spent its error budget in the last hour; 1 is as fast as it may be. From 14.4 on an alert pages.',
            'suffix:×',
            'max(%s)' % burn(q.service, '1h'),
            good(1, 14.4),
            decimals=1,
          ) { w: 4 },
          total('Open streams', 'Streams that wait for their first token or receive tokens.', 'none', q.level('', 'streamgauge_stream_active', q.proxies)) { w: 4 },
        ],
      }],
    },
    {
      title: 'Instances, the worst first',
      lines: [
        {
          h: 10,
          panels: [panel.table(
            'Instances',
            'One row per proxy, most problems first. The instance links to its streams. "Problems" counts the alert rules that hold now, before they have held long enough to alert. "Budget burn" is how many times as fast as its target allows the worst SLO is missed.',
            {
              [label.cluster]: { at: 0 },
              [label.namespace]: { at: 1 },
              [label.pod]: { at: 2 },
              [label.job]: { at: 3 },
              [label.instance]: { at: 4, link: toInstance },
            },
            [
              { name: 'Problems', unit: 'none', expr: problems.count, words: [panel.word(0, '✓ none', 'green'), panel.word(1, '! 1', 'orange'), panel.word(2, '! 2', 'red'), panel.words(3, 100, '! 3 or more', 'red')] },
              { name: 'Server', unit: 'none', expr: 'min by (%s) (streamgauge_upstream_up{%s})' % [byPlace, q.proxies], words: [panel.word(1, '✓ reached', 'green'), panel.word(0, '✗ not reached', 'red')] },
              { name: 'Requests/s', unit: 'reqps', decimals: 1, expr: requests(byPlace) },
              { name: 'Failures', unit: 'percentunit', decimals: 1, expr: failingShare(byPlace), colors: good(0.01, 0.05) },
              { name: 'SLO missed', unit: 'percentunit', decimals: 1, expr: missedShare(byPlace, '$__rate_interval') },
              { name: 'Budget burn', unit: 'suffix:×', decimals: 1, expr: 'max by (%s) (%s)' % [byPlace, burn(byPlace, '$__rate_interval')], colors: good(1, 14.4) },
              { name: 'TTFT p99', unit: 's', expr: q.quantile(0.99, byPlace, 'gen_ai_server_time_to_first_token_seconds', q.models), colors: good(config.lines.ttft, 2 * config.lines.ttft) },
              { name: 'ITL p99', unit: 's', expr: q.quantile(0.99, byPlace, 'streamgauge_stream_inter_token_latency_seconds', q.models), colors: good(config.lines.itl, 2 * config.lines.itl) },
              { name: 'Open streams', unit: 'none', expr: q.level(byPlace, 'streamgauge_stream_active', q.proxies) },
              { name: 'Nearest limit', unit: 'percentunit', decimals: 1, expr: saturation(byPlace), colors: good(0.7, 0.9) },
              { name: 'Running for', unit: 's', decimals: 0, expr: '(time() - max by (%s) (process_start_time_seconds{%s})) and on (%s) %s' % [byPlace, q.proxies, byPlace, problems.instances] },
            ],
            'Problems',
          ) { w: 24 }],
        },
        {
          h: 8,
          panels: [panel.table(
            'Problems now',
            'Alert rules that hold now. A page needs action at once, a ticket soon. The problem links to its section of the runbook. "Value" is what the rule compares: a share, a number or seconds.',
            {
              severity: { at: 0 },
              problem: { at: 1, link: { title: 'Runbook', url: config.runbook + '#${__data.fields.runbook}', targetBlank: true } },
              [label.namespace]: { at: 2 },
              [label.pod]: { at: 3 },
              [label.instance]: { at: 4, link: toInstance },
              gen_ai_request_model: { at: 5, name: 'model' },
              detail: { at: 6 },
              runbook: { at: 7 },
            },
            [{ name: 'Value now', unit: 'short', expr: problems.list }],
            'severity',
            descending=false,
            none='no problem',
          ) { w: 24 }],
        },
      ],
    },
    {
      title: 'Where it is worst',
      lines: [
        {
          h: 8,
          panels: [
            panel.chart(
              'TTFT p99, slowest instances',
              'Time to first token of the slowest instances. One slow instance among quick ones has a server or a machine of its own to look at. The dashed line is the limit in the configuration of the boards.',
              's',
              [panel.query(q.worst(q.quantile(0.99, label.instance, 'gen_ai_server_time_to_first_token_seconds', q.models)), '{{%s}}' % label.instance, exemplar=true)],
              lines=[panel.limit(config.lines.ttft)],
              calcs=['mean', 'lastNotNull', 'max'],
            ) { w: 8 },
            panel.chart(
              'ITL p99, slowest instances',
              'Inter-token latency of the slowest instances. All of them slow at once is a matter of the load; one of them is a matter of its batch or its machine.',
              's',
              [panel.query(q.worst(q.quantile(0.99, label.instance, 'streamgauge_stream_inter_token_latency_seconds', q.models)), '{{%s}}' % label.instance)],
              lines=[panel.limit(config.lines.itl)],
              calcs=['mean', 'lastNotNull', 'max'],
            ) { w: 8 },
            panel.chart(
              'SLO missed, worst instances',
              'Share of judged requests that missed an SLO, by instance. The board "SLO and error budget" says which objective.',
              'percentunit',
              [panel.query(q.worst(missedShare('%s, slo' % label.instance, '$__rate_interval')), '{{%s}}, {{slo}}' % label.instance)],
            ) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            panel.chart(
              'Failures by fault',
              'Requests per second that failed, by whose fault. upstream: the server could not be reached, answered 5xx or broke off. proxy: a limit of the proxy. client: 4xx, or the client disconnected.',
              'reqps',
              [panel.query(q.rates('fault, answered_by', 'streamgauge_http_responses_total', q.proxies + ', fault!=""'), '{{fault}}, answered by {{answered_by}}')],
              stack=true,
              links=[panel.runbook('StreamgaugeUpstreamFails'), panel.runbook('StreamgaugeProxyRejects')],
            ) { w: 8 },
            panel.chart(
              'Server can be reached',
              'Share of instances whose last attempt to connect to their server succeeded. Below 100% some clients get errors.',
              'percentunit',
              [panel.query('avg by (%s) (streamgauge_upstream_up{%s})' % [label.job, q.proxies], '{{%s}}' % label.job)],
              max=1,
              links=[panel.runbook('StreamgaugeUpstreamDown')],
            ) { w: 8 },
            panel.chart(
              'Nearest limit, fullest instances',
              'Largest share of a limit in use: streams, connections or file descriptors. At 100% further requests get a 503 or wait. An alert comes at the dashed line.',
              'percentunit',
              [panel.query(q.worst(saturation(label.instance)), '{{%s}}' % label.instance)],
              lines=[panel.limit(0.9)],
              links=[panel.runbook('StreamgaugeSaturated')],
            ) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            panel.chart(
              'Requests by model',
              'Requests per second that ended, by model. What asks for no model has no name here.',
              'reqps',
              [panel.query(q.rates('gen_ai_request_model', 'streamgauge_http_responses_total', q.proxies + ', traffic="inference"'), '{{gen_ai_request_model}}')],
              stack=true,
            ) { w: 8 },
            panel.chart(
              'Output tokens by model',
              'Output tokens per second, counted while they stream.',
              'suffix: tok/s',
              [panel.query(q.rates('gen_ai_request_model', 'streamgauge_stream_output_tokens_total', q.models), '{{gen_ai_request_model}}')],
              stack=true,
            ) { w: 8 },
            panel.chart(
              'Open streams by phase',
              'Streams that wait for their first token, and streams that receive tokens. If many wait, the servers have a queue, and TTFT grows.',
              'none',
              [panel.query(q.level('phase', 'streamgauge_stream_active', q.proxies), '{{phase}}')],
              stack=true,
            ) { w: 8 },
          ],
        },
      ],
    },
  ],
)
