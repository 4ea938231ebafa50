// SLO and error budget: what is left, how fast it goes, and which objective, model and instance take it.
local board = import 'board.libsonnet';
local config = import 'config.libsonnet';
local panel = import 'panel.libsonnet';
local q = import 'query.libsonnet';
local label = config.labels;

local judged(result, by, window='$__rate_interval') = q.rates(by, 'streamgauge_slo_requests_total', q.slos + ', result=~"%s"' % result, window);
local missedShare(by, window='$__rate_interval') = q.ratio(judged('missed', by, window), judged('met|missed', by, window));
local metShare(by) = q.ratio(judged('met', by), judged('met|missed', by));
// Equal names in two jobs are two SLOs, as in the rules.
local each = q.service + ', slo';
local name = '{{%s}} {{slo}}' % label.job;
local target = 'max by (%s) (streamgauge_slo_target_ratio{%s, slo=~"$slo"})' % [each, q.proxies];
local burn(window) = '%s / on (%s) (1 - %s)' % [missedShare(each, window), each, target];
local left = '1 - %s' % burn(config.budgetPeriod);
local alert = panel.runbook('StreamgaugeErrorBudgetBurns');

local burnChart(rates) = panel.chart(
  'Burn rate over %(long)s and %(short)s' % rates,
  "Pace at which the error budget is spent; 1 is as fast as it may be. The alert (%(severity)s) fires while both windows are above %(rate)s, the dashed line: the long one says that it matters, the short one that it still goes on." % rates,
  'suffix:×',
  [panel.query(burn(rates.long), name + ' ' + rates.long), panel.query(burn(rates.short), name + ' ' + rates.short)],
  lines=[panel.limit(rates.rate)],
  calcs=['lastNotNull', 'max'],
  links=[alert],
) { w: 6 };

board.new(
  'slo',
  'SLO and error budget',
  'For each SLO: its target, what is left of its error budget, how fast the budget burns in the windows of the alerts, and what spends it.',
  [
    {
      title: 'Error budget',
      lines: [
        {
          h: 6,
          panels: [
            panel.stat(
              'Target',
              'Share of requests that should meet the SLO: the setting `target` of the SLO. What is left to 100% is its error budget.',
              'percentunit',
              [panel.query(target, name)],
              decimals=2,
              graph=false,
            ) { w: 4 },
            panel.stat(
              'Met now',
              'Share of the judged requests that met every objective.',
              'percentunit',
              [panel.query(metShare(each), name)],
              decimals=2,
              links=[alert],
            ) { w: 4 },
            panel.stat(
              'Above the target',
              'What is met now, less the target of that SLO. Below 0 the budget shrinks.',
              'percentunit',
              [panel.query('%s - on (%s) %s' % [metShare(each), each, target], name)],
              [{ color: 'red', value: null }, { color: 'green', value: 0 }],
              decimals=2,
              links=[alert],
            ) { w: 4 },
            panel.stat(
              'Budget left',
              "Share of the error budget of %s that is left; negative if the SLO is broken. A younger instance's budget begins with its first request." % config.budgetPeriod,
              'percentunit',
              [panel.query(left, name)],
              [{ color: 'red', value: null }, { color: 'orange', value: 0 }, { color: 'green', value: 0.25 }],
              decimals=1,
              graph=false,
              links=[alert],
            ) { w: 4 },
            panel.chart(
              'Budget left, burn-down',
              'Share of the error budget that is left, over time. At the dashed line the budget is spent and the SLO broken. Steps down are incidents; a steady slope is a server that is too slow every day.',
              'percentunit',
              [panel.query(left, name)],
              lines=[panel.limit(0)],
              min=null,
              max=1,
              calcs=['lastNotNull', 'min'],
              links=[alert],
            ) { w: 8 },
          ],
        },
        { h: 8, panels: [burnChart(rates) for rates in config.burnRates] },
      ],
    },
    {
      title: 'What spends it',
      lines: [
        {
          h: 8,
          panels: [
            panel.chart(
              'Goodput',
              'Requests per second that met every objective, and those that missed one. If goodput falls and the sum does not, the server is slower; if both fall, less is asked.',
              'reqps',
              [panel.query(judged('met', 'slo'), '{{slo}} met'), panel.query(judged('missed', 'slo'), '{{slo}} missed'), panel.query(judged('excluded', 'slo'), '{{slo}} excluded')],
              stack=true,
              colors={ '/ met$/': 'green', '/ missed$/': 'red', '/ excluded$/': 'blue' },
            ) { w: 8 },
            panel.chart(
              'Violations by objective',
              'Objectives missed per second; a request can miss several. ttft: look at the queue and the prompts. itl and tpot: at the batch and at preemption. error: at how streams end. A limit in a header that is no number of milliseconds is invalid and judges nothing.',
              'suffix: /s',
              [
                panel.query(q.rates('slo, objective', 'streamgauge_slo_violations_total', q.slos), '{{slo}} {{objective}}'),
                panel.query(q.rates('objective', 'streamgauge_slo_invalid_limits_total', q.proxies) + ' > 0', 'invalid limit in a header, {{objective}}'),
              ],
              stack=true,
              links=[alert],
            ) { w: 8 },
            panel.chart(
              'Output tokens within the SLO',
              'Output tokens per second of requests that met the SLO, beside those of all streams. The distance is work that served no request well.',
              'suffix: tok/s',
              [
                panel.query(q.rates('slo', 'streamgauge_slo_output_tokens_total', q.slos), '{{slo}}'),
                panel.query(q.rates('', 'streamgauge_stream_output_tokens_total', q.models), 'all streams'),
              ],
              colors={ 'all streams': 'blue' },
            ) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            panel.chart(
              'Met by model, and the target',
              'Share of judged requests that met the SLO, by model, and the target of the SLO. A model far below the others is the one to look at.',
              'percentunit',
              [
                panel.query(metShare(each + ', gen_ai_request_model'), name + ', {{gen_ai_request_model}}'),
                panel.query(target, name + ': target'),
              ],
              max=1,
              colors={ '/: target$/': 'red' },
              dashed=['/: target$/'],
              calcs=['mean', 'lastNotNull', 'min'],
            ) { w: 8 },
            panel.chart(
              'Missed by instance, most first',
              'Requests per second that missed the SLO, by instance. If one instance has most of them, compare it with the others on the board Streaming.',
              'reqps',
              [panel.query(q.worst(judged('missed', '%s, slo' % label.instance)), '{{%s}}, {{slo}}' % label.instance)],
              stack=true,
            ) { w: 8 },
            panel.chart(
              'TTFT and ITL p99',
              'The latencies that objectives judge. The dashed lines are the limits in the configuration of the boards. A point opens the trace of a request.',
              's',
              [
                panel.query(q.quantile(0.99, '', 'gen_ai_server_time_to_first_token_seconds', q.models), 'TTFT p99', exemplar=true),
                panel.query(q.quantile(0.99, '', 'streamgauge_stream_inter_token_latency_seconds', q.models), 'ITL p99'),
              ],
              lines=[panel.limit(config.lines.itl, 'orange'), panel.limit(config.lines.ttft)],
              calcs=['mean', 'lastNotNull', 'max'],
            ) { w: 8 },
          ],
        },
      ],
    },
  ],
)
