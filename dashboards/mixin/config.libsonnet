// What an organisation may change: in a clone, before `dashboards/mixin/render --out DIR`.
{
  // Labels that say where a series comes from. A label that a series does not have matches "All".
  // For OTLP ingest with promoted resource attributes: k8s_cluster_name, k8s_namespace_name, k8s_pod_name.
  labels: {
    cluster: 'cluster',
    namespace: 'namespace',
    pod: 'pod',
    job: 'job',
    instance: 'instance',
  },

  // Which histograms the queries read: 'both' prefers native ones where a series has them; 'classic' or 'native' alone
  // halves the queries.
  histograms: 'both',

  // Lines in the charts of latencies, in seconds. They are those of deploy/compose.yaml: take your SLO's.
  lines: { ttft: 0.5, itl: 0.05 },

  // The period that an error budget is for.
  budgetPeriod: '30d',

  // Burn-rate alerts of deploy/prometheus/rules.yml: a long window, a short one, and the rate that alerts.
  burnRates: [
    { long: '1h', short: '5m', rate: 14.4, severity: 'page' },
    { long: '6h', short: '30m', rate: 6, severity: 'page' },
    { long: '1d', short: '2h', rate: 3, severity: 'ticket' },
    { long: '3d', short: '6h', rate: 1, severity: 'ticket' },
  ],

  // Instances that a chart of the worst shows.
  worst: 10,

  runbook: 'https://github.com/streamgauge/streamgauge/blob/main/deploy/prometheus/README.md',
  manual: 'https://github.com/streamgauge/streamgauge/blob/main/dashboards/README.md',
  tags: ['streamgauge', 'llm', 'inference'],
  refresh: '30s',
  from: 'now-1h',
}
