// PromQL for the boards: matchers by the boards' variables, and histograms whether they are native or classic.
local config = import 'config.libsonnet';
local label = config.labels;

local aggregated(by, expr) = if by == '' then 'sum(%s)' % expr else 'sum by (%s) (%s)' % [by, expr];
local joined(labels) = std.join(', ', std.filter(function(name) name != '', labels));

// The native or the classic form of a query, as the configuration has it. Native first: where both are, it is finer.
local either(native, classic) =
  if config.histograms == 'classic' then classic
  else if config.histograms == 'native' then native
  else '(%s) or (%s)' % [native, classic];

{
  // Where a series comes from, as labels and as matchers.
  place: std.join(', ', [label.cluster, label.namespace, label.pod, label.job, label.instance]),
  // What an SLO is judged for: all instances of a job.
  service: std.join(', ', [label.cluster, label.namespace, label.job]),
  proxies: joined([
    '%s=~"$cluster"' % label.cluster,
    '%s=~"$namespace"' % label.namespace,
    '%s=~"$pod"' % label.pod,
    '%s=~"$job"' % label.job,
    '%s=~"$instance"' % label.instance,
  ]),
  models: self.proxies + ', gen_ai_request_model=~"$model"',
  slos: self.models + ', slo=~"$slo"',

  // The version of each instance, once: a push has that of the last process beside it for a while.
  versions: 'topk by (%(job)s, %(instance)s) (1, max by (%(job)s, %(instance)s, version) (streamgauge_build_info{%(proxies)s}))' % (label { proxies: $.proxies }),


  rate(metric, matchers, window='$__rate_interval'): 'rate(%s{%s}[%s])' % [metric, matchers, window],

  // Sum of a counter's rates.
  rates(by, metric, matchers, window='$__rate_interval'): aggregated(by, self.rate(metric, matchers, window)),

  // Sum of a gauge.
  level(by, metric, matchers): aggregated(by, '%s{%s}' % [metric, matchers]),

  ratio(part, whole): '%s / %s' % [part, whole],

  quantile(q, by, histogram, matchers): either(
    'histogram_quantile(%.4g, %s)' % [q, aggregated(by, self.rate(histogram, matchers))],
    'histogram_quantile(%.4g, %s)' % [q, aggregated(joined([by, 'le']), self.rate(histogram + '_bucket', matchers))],
  ),

  mean(by, histogram, matchers): either(
    'histogram_avg(%s)' % aggregated(by, self.rate(histogram, matchers)),
    '%s / %s' % [aggregated(by, self.rate(histogram + '_sum', matchers)), aggregated(by, self.rate(histogram + '_count', matchers))],
  ),

  // Rows of a heat map. Classic first: an SLO's limits are bounds of the buckets, so a row ends exactly there.
  buckets(histogram, matchers):
    local classic = aggregated('le', self.rate(histogram + '_bucket', matchers));
    local native = aggregated('', self.rate(histogram, matchers));
    if config.histograms == 'classic' then classic
    else if config.histograms == 'native' then native
    else '%s or (%s unless on () %s)' % [classic, native, aggregated('', self.rate(histogram + '_count', matchers))],

  // The worst few.
  worst(expr): 'topk(%d, %s)' % [config.worst, expr],
}
