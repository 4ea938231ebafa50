// Streamgauge itself: what the proxy costs and adds, its limits, its configuration, and what of its telemetry is lost.
local board = import 'board.libsonnet';
local config = import 'config.libsonnet';
local panel = import 'panel.libsonnet';
local q = import 'query.libsonnet';
local label = config.labels;

local instance = label.instance;
local seconds(title, about, queries, links=[], lines=[]) = panel.chart(title, about, 's', queries, calcs=['mean', 'lastNotNull', 'max'], links=links, lines=lines);
// What every program exports is narrowed to proxies. The second name is that of OTLP ingest.
local process(metric, otlp) = q.worst('sum by (%(by)s) (%(metric)s{%(proxies)s} or %(otlp)s{%(proxies)s})' % { by: instance, metric: metric, otlp: otlp, proxies: q.proxies });

board.new(
  'self',
  'Streamgauge itself',
  'What the proxies add and use, how near they are to their limits, what they failed to load, and what of their telemetry is lost.',
  [
    {
      title: 'What it adds',
      lines: [{
        h: 8,
        panels: [
          seconds(
            'Overhead p99 by stage',
            'Time between the arrival of bytes at the proxy and their hand-over to the other side, for requests, response heads and chunks. Above a few milliseconds it lacks CPU, or clients read slowly (chunk).',
            [panel.query(q.quantile(0.99, 'stage', 'streamgauge_proxy_overhead_seconds', q.proxies), '{{stage}}')],
            [panel.runbook('StreamgaugeProxySlow')],
            [panel.limit(0.01)],
          ) { w: 8 },
          seconds(
            'Overhead p99, slowest instances',
            'The same for requests and response heads, by instance. One that stands out is throttled or shares its cores. An alert comes at the dashed line.',
            [panel.query(q.worst(q.quantile(0.99, instance, 'streamgauge_proxy_overhead_seconds', q.proxies + ', stage!="chunk"')), '{{%s}}' % instance)],
            [panel.runbook('StreamgaugeProxySlow')],
            [panel.limit(0.01)],
          ) { w: 8 },
          seconds(
            'HTTP requests p99 by status',
            'Duration of every HTTP request, those without a model too.',
            [panel.query(q.quantile(0.99, 'http_response_status_code', 'http_server_request_duration_seconds', q.proxies), '{{http_response_status_code}}')],
          ) { w: 8 },
        ],
      }],
    },
    {
      title: 'What it uses',
      lines: [
        {
          h: 8,
          panels: [
            panel.chart(
              'CPU',
              'Cores that each proxy uses.',
              'suffix: cores',
              [panel.query(q.worst('sum by (%(by)s) (rate(process_cpu_seconds_total{%(proxies)s}[$__rate_interval]) or rate(process_cpu_time_seconds_total{%(proxies)s}[$__rate_interval]))' % { by: instance, proxies: q.proxies }), '{{%s}}' % instance)],
              links=[panel.runbook('StreamgaugeProxySlow')],
              decimals=3,
            ) { w: 8 },
            panel.chart(
              'Memory',
              'Resident memory of each proxy: a base below 20 MiB, and about 20 KiB for each open stream.',
              'bytes',
              [panel.query(process('process_resident_memory_bytes', 'process_memory_usage_bytes'), '{{%s}}' % instance)],
            ) { w: 8 },
            panel.chart(
              'Open files',
              'File descriptors of each proxy: two for each open request, and kept connections.',
              'none',
              [panel.query(process('process_open_fds', 'process_unix_file_descriptor_count'), '{{%s}}' % instance)],
              links=[panel.runbook('StreamgaugeSaturated')],
            ) { w: 8 },
          ],
        },
        {
          h: 8,
          panels: [
            panel.chart(
              'Use of limits',
              'Largest share of each limit in use. At 100% further requests get a 503 or wait: raise max_streams, max_connections or the limit on open files. An alert comes at the dashed line.',
              'percentunit',
              [panel.query('max by (resource) (streamgauge_proxy_resource_usage{%s} / streamgauge_proxy_resource_limit{%s})' % [q.proxies, q.proxies], '{{resource}}')],
              lines=[panel.limit(0.9)],
              links=[panel.runbook('StreamgaugeSaturated')],
            ) { w: 8 },
            panel.chart(
              'HTTP requests in flight',
              'Open HTTP requests by instance, those without a model too.',
              'none',
              [panel.query(q.worst(q.level(instance, 'http_server_active_requests', q.proxies)), '{{%s}}' % instance)],
            ) { w: 8 },
            panel.chart(
              'Failures of the proxy itself',
              'Requests per second that failed by a limit of the proxy, or because it stopped. 0 is right.',
              'reqps',
              [panel.query('%s or 0 * %s' % [q.rates(instance, 'streamgauge_http_responses_total', q.proxies + ', fault="proxy"'), q.rates(instance, 'streamgauge_http_responses_total', q.proxies)], '{{%s}}' % instance)],
              links=[panel.runbook('StreamgaugeProxyRejects')],
            ) { w: 8 },
          ],
        },
      ],
    },
    {
      title: 'What it runs',
      lines: [{
        h: 8,
        panels: [
          panel.table(
            'Versions',
            'Version of each proxy, and the time since its start. A short one among long ones has restarted: look at its log.',
            {
              [label.cluster]: { at: 0 },
              [label.namespace]: { at: 1 },
              [label.pod]: { at: 2 },
              [label.job]: { at: 3 },
              [instance]: { at: 4 },
              version: { at: 5 },
            },
            [{ name: 'Running for', unit: 's', decimals: 0, expr: '(time() - max by (%s) (process_start_time_seconds{%s})) * on (%s, %s) group_left (version) %s' % [q.place, q.proxies, label.job, instance, q.versions] }],
            'Running for',
            descending=false,
            links=[panel.runbook('StreamgaugeRestarts')],
          ) { w: 8 },
          panel.stat(
            'Reloads',
            'Whether the last change of the configuration and of certificates could be loaded, at every instance. Otherwise the old one stays in force; the log names the problem.',
            'none',
            [panel.query('min by (subject) (streamgauge_reload_success{%s})' % q.proxies, '{{subject}}')],
            [{ color: 'red', value: null }, { color: 'green', value: 1 }],
            [panel.word(1, '✓ loaded', 'green'), panel.word(0, '✗ failed', 'red')],
            graph=false,
            links=[panel.runbook('StreamgaugeReloadFailed')],
          ) { w: 8 },
          panel.chart(
            'Certificates end in',
            'Time until the first certificate of a file ends to be valid. Renew it in place: the proxy reads the file again by itself. An alert comes at the dashed line. Empty without TLS.',
            's',
            [panel.query('min by (%s, setting) (streamgauge_tls_certificate_not_after_seconds{%s}) - time()' % [instance, q.proxies], '{{%s}} {{setting}}' % instance)],
            lines=[panel.limit(14 * 86400)],
            calcs=['lastNotNull'],
            links=[panel.runbook('StreamgaugeCertificateEnds')],
          ) { w: 8 },
        ],
      }],
    },
    {
      title: 'What is lost',
      lines: [{
        h: 8,
        panels: [
          panel.chart(
            'Telemetry lost',
            'Records per second that were measured and not exported. No stream suffers. queue_full: sample fewer traces, or give the proxy CPU. failed: the collector is down or slow. rejected: it refuses them. 0 is right.',
            'suffix: /s',
            [panel.query(q.rates('exporter, reason', 'streamgauge_export_dropped_total', q.proxies), '{{exporter}}: {{reason}}')],
            links=[panel.runbook('StreamgaugeTelemetryLost')],
          ) { w: 12 },
          panel.chart(
            'Telemetry lost, by instance',
            'The same for the instances that lose most.',
            'suffix: /s',
            [panel.query(q.worst(q.rates(instance, 'streamgauge_export_dropped_total', q.proxies)), '{{%s}}' % instance)],
            links=[panel.runbook('StreamgaugeTelemetryLost')],
          ) { w: 12 },
        ],
      }],
    },
  ],
)
