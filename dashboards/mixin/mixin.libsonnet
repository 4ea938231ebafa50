// A mixin in the usual form (https://monitoring.mixins.dev): boards by file name, and alerts and recording rules.
{
  grafanaDashboards+:: {
    'streamgauge-fleet.json': import 'fleet.libsonnet',
    'streamgauge-slo.json': import 'slo.libsonnet',
    'streamgauge-streaming.json': import 'streaming.libsonnet',
    'streamgauge-engine.json': import 'engine.libsonnet',
    'streamgauge-replay.json': import 'replay.libsonnet',
    'streamgauge-self.json': import 'self.libsonnet',
  },
  prometheusAlerts+:: std.parseYaml(importstr '../../deploy/prometheus/rules.yml'),
}
