// What is wrong with an instance, by the alert rules: their expressions and thresholds, without waiting for `for`.
local config = import 'config.libsonnet';
local query = import 'query.libsonnet';
local rules = std.parseYaml(importstr '../../deploy/prometheus/rules.yml');

// These name no instance: an SLO's budget has a board of its own, and who is absent has no row.
local ofNoInstance = ['StreamgaugeErrorBudgetBurns', 'StreamgaugePushStopped', 'StreamgaugeScrapeStopped', 'StreamgaugeAbsent'];
local alerts = [
  rule
  for group in rules.groups
  for rule in group.rules
  if std.objectHas(rule, 'alert') && !std.member(ofNoInstance, rule.alert)
];

// In one line, with the labels of the configuration.
local flat(expr) = std.strReplace(
  std.join(' ', std.filter(function(word) word != '', std.split(std.strReplace(expr, '\n', ' '), ' '))),
  'cluster, namespace, pod, job, instance',
  query.place,
);
local named(expr, name, value) = 'label_replace(%s, "%s", "%s", "", "")' % [expr, name, value];

local proxies = 'streamgauge_build_info{%s}' % query.proxies;

local instances = 'max by (%s) (last_over_time(%s[15m]))' % [query.place, proxies];
local holding = '(%s) and on (%s) last_over_time(%s[15m])' % [
  std.join(' or ', [
    named(named(named('(%s)' % flat(alert.expr), 'problem', std.strReplace(alert.alert, 'Streamgauge', '')), 'severity', alert.labels.severity), 'runbook', std.asciiLower(alert.alert))
    for alert in alerts
  ]),
  query.place,
  proxies,
];
// Labels that say what a rule found, in one.
local list = 'max by (severity, problem, %s, gen_ai_request_model, detail, runbook) (label_join(%s, "detail", " ", "server_address", "server_port", "resource", "stage", "exporter", "reason", "subject", "setting"))' % [query.place, holding];

{
  // Every proxy of the last 15 minutes, as 1.
  instances: instances,

  // One series for each problem of an instance, with its severity and the section of the runbook.
  list: list,

  // Number of problems of each instance.
  count: '%(instances)s * 0 + on (%(place)s) group_left () count by (%(place)s) (group by (%(place)s, problem) (%(list)s)) or %(instances)s * 0' % {
    instances: instances,
    list: list,
    place: query.place,
  },
}
