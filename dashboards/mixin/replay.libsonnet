// Capture and replay: production and a run of replay, load or sweep on one axis, and whether capture and run are sound.
local board = import 'board.libsonnet';
local config = import 'config.libsonnet';
local panel = import 'panel.libsonnet';
local q = import 'query.libsonnet';
local label = config.labels;

local runs = '%s=~"$cluster", %s=~"$namespace", %s=~"$run"' % [label.cluster, label.namespace, label.instance];
local models = runs + ', gen_ai_request_model=~"$model"';
local slos = models + ', slo=~"$slo"';

// The same query for both: production's lines and the run's.
local both(query, legend='') = [
  panel.query(query(q.models, q.slos), 'production' + legend),
  panel.query(query(models, slos), 'run' + legend),
];
local sides = { '/^production/': 'blue', '/^run/': 'orange' };
local quantiles(histogram) = std.flattenArrays([
  both(function(models, slos) q.quantile(quantile / 100, '', histogram, models), ' p%d' % quantile)
  for quantile in [50, 99]
]);
local ratio(result, whole) = function(models, slos) q.ratio(
  q.rates('slo', 'streamgauge_slo_requests_total', slos + ', result=~"%s"' % result),
  q.rates('slo', 'streamgauge_slo_requests_total', slos + ', result=~"%s"' % whole),
);
local side(title, about, unit, queries, lines=[], max=null) = panel.chart(title, about, unit, queries, colors=sides, dashed=['/p50/', '/waiting/'], lines=lines, max=max, calcs=['mean', 'lastNotNull', 'max']);

board.new(
  'replay',
  'Capture and replay',
  'Production (blue) against a run of `streamgauge replay`, `load` or `sweep` with --admin (orange) on one axis. Scrape runs as a job of their own.',
  [
    {
      title: 'Production against the run',
      lines: [
        {
          h: 9,
          panels: [
            side('TTFT', 'Time to first token of both; p50 is dashed. A replay of the same traffic against the same kind of server should lie on production; the distance is the change that you test.', 's', quantiles('gen_ai_server_time_to_first_token_seconds'), [panel.limit(config.lines.ttft)]) { w: 8 },
            side('ITL', 'Inter-token latency of both.', 's', quantiles('streamgauge_stream_inter_token_latency_seconds'), [panel.limit(config.lines.itl)]) { w: 8 },
            side('TPOT', 'Time per output token after the first, of both.', 's', quantiles('gen_ai_server_time_per_output_token_seconds')) { w: 8 },
          ],
        },
        {
          h: 9,
          panels: [
            side('Output tokens', 'Output tokens per second of both. If the run has fewer, its load is not that of production.', 'suffix: tok/s', both(function(models, slos) q.rates('', 'streamgauge_stream_output_tokens_total', models))) { w: 8 },
            side('Meets the SLO', 'Share of the judged requests that met every objective, on both sides. A run has SLOs of its own (--slo).', 'percentunit', both(ratio('met', 'met|missed'), ' {{slo}}'), max=1) { w: 8 },
            side('Request duration', 'Duration of successes on both sides. It follows the length of responses: `--exact-output` makes the run give as many tokens as were recorded.', 's', std.flattenArrays([
              both(function(models, slos) q.quantile(quantile / 100, '', 'gen_ai_server_request_duration_seconds', models + ', error_type=""'), ' p%d' % quantile)
              for quantile in [50, 99]
            ])) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            side('Open streams', 'Streams that receive tokens, and that wait for their first (dashed), on both sides. If more of the run wait, its server has the longer queue.', 'none', both(function(models, slos) q.level('phase', 'streamgauge_stream_active', models), ' {{phase}}')) { w: 8 },
            side('Streams not whole', 'Share of streams that ended before they were whole, without the client having left.', 'percentunit', both(function(models, slos) '(%s or vector(0)) / %s' % [
              q.rates('', 'streamgauge_stream_terminations_total', models + ', reason!~"done|client_disconnect"'),
              q.rates('', 'streamgauge_stream_terminations_total', models),
            ])) { w: 8 },
            side('Stalls', 'Gaps above the setting `stall`, per second.', 'suffix: /s', both(function(models, slos) q.rates('', 'streamgauge_stream_stalls_total', models))) { w: 8 },
          ],
        },
      ],
    },
    {
      title: 'Is the run sound?',
      lines: [{
        h: 8,
        panels: [
          panel.chart(
            'Requests of the run',
            'Requests per second of the run that ended, by what became of them.',
            'reqps',
            [panel.query(q.rates('outcome', 'streamgauge_replay_requests_total', runs), '{{outcome}}')],
            stack=true,
            colors={ success: 'green', cancelled: 'blue' },
          ) { w: 8 },
          panel.chart(
            'Sent of what is planned',
            'Requests that the run has sent, and those that it has planned where its end is known.',
            'none',
            [
              panel.query(q.level(label.instance, 'streamgauge_replay_sent_total', runs), '{{%s}}: sent' % label.instance),
              panel.query(q.level(label.instance, 'streamgauge_replay_planned', runs), '{{%s}}: planned' % label.instance),
            ],
            calcs=['lastNotNull'],
          ) { w: 8 },
          panel.chart(
            'Send lag',
            'How much later than planned requests were sent. Above some milliseconds the machine that sends is too slow, and the run reports that it is not valid.',
            's',
            [
              panel.query(q.quantile(quantile / 100, '', 'streamgauge_replay_schedule_lag_seconds', runs), 'p%d' % quantile)
              for quantile in [50, 99]
            ],
            colors=panel.quantiles,
            calcs=['mean', 'lastNotNull', 'max'],
          ) { w: 8 },
        ],
      }],
    },
    {
      title: 'Is the capture complete?',
      lines: [{
        h: 8,
        panels: [
          panel.chart(
            'Rows captured',
            'Rows per second of the capture (--capture), by what became of them. dropped: queue_full when the disk is slow, disk when it fails. skipped: a probe. No stream suffers. Empty without a capture.',
            'suffix: rows/s',
            [panel.query(q.rates('outcome, reason', 'streamgauge_capture_records_total', q.proxies), '{{outcome}} {{reason}}')],
            stack=true,
            links=[panel.runbook('StreamgaugeCaptureLost')],
          ) { w: 8 },
          panel.chart(
            'Capture on disk',
            'Bytes per second that captures write.',
            'Bps',
            [panel.query(q.worst(q.rates(label.instance, 'streamgauge_capture_size_bytes_total', q.proxies)), '{{%s}}' % label.instance)],
          ) { w: 8 },
          panel.chart(
            'Rows waiting',
            'Rows that wait to be captured. The proxy drops and counts them if the queue is full. 0 is usual.',
            'suffix: rows',
            [panel.query(q.worst(q.level(label.instance, 'streamgauge_capture_queue_depth', q.proxies)), '{{%s}}' % label.instance)],
            links=[panel.runbook('StreamgaugeCaptureLost')],
          ) { w: 8 },
        ],
      }, {
        h: 8,
        panels: [
          panel.chart(
            'Uploads to the bucket',
            'Attempts per second to upload a segment or a manifest. failed attempts are repeated with pauses of up to a minute, and lose nothing while the spool has room. Empty without a bucket.',
            'suffix: uploads/s',
            [panel.query(q.rates('outcome', 'streamgauge_capture_uploads_total', q.proxies), '{{outcome}}')],
            stack=true,
            links=[panel.runbook('StreamgaugeCaptureLost')],
          ) { w: 12 },
          panel.chart(
            'Spool',
            'Bytes that the bucket does not have yet. A spool that grows towards capture_keep_bytes soon loses its oldest segments: the bucket cannot be reached, or is too slow. Empty without a bucket.',
            'bytes',
            [panel.query(q.worst(q.level(label.instance, 'streamgauge_capture_spool_size_bytes', q.proxies)), '{{%s}}' % label.instance)],
            links=[panel.runbook('StreamgaugeCaptureLost')],
          ) { w: 12 },
        ],
      }],
    },
  ],
  // "All" is every run and not ".*", which would be production as well.
  [board.values('run', 'Run', 'streamgauge_replay_sent_total{%s=~"$cluster", %s=~"$namespace"}' % [label.cluster, label.namespace], label.instance, all=null)],
)
