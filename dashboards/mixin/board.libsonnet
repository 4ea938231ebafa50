// A board from its rows: variables, links to the other boards, and a place for each panel.
local config = import 'config.libsonnet';
local panel = import 'panel.libsonnet';
local q = import 'query.libsonnet';
local label = config.labels;

// A board's rows are {title, lines}; a line is {h, panels}, where a panel has its width as `w`. A line fills 24 columns.
local placed(rows) =
  std.foldl(
    function(state, row)
      local head = { type: 'row', title: row.title, collapsed: false, panels: [], gridPos: { h: 1, w: 24, x: 0, y: state.y } };
      std.foldl(
        function(state, line)
          local total = std.foldl(function(sum, item) sum + item.w, line.panels, 0);
          assert total == 24 : 'a line of "%s" has %d columns' % [row.title, total];
          state {
            y: state.y + line.h,
            panels: state.panels + std.foldl(
              function(inner, item) inner {
                x: inner.x + item.w,
                panels: inner.panels + [{ [key]: item[key] for key in std.objectFields(item) if key != 'w' } + { gridPos: { h: line.h, w: item.w, x: inner.x, y: state.y } }],
              },
              line.panels, { x: 0, panels: [] },
            ).panels,
          },
        row.lines, { y: state.y + 1, panels: state.panels + [head] },
      ),
    rows, { y: 0, panels: [] },
  ).panels;

local common = { hide: 0, skipUrlSync: false, options: [], regex: '' };

// A variable with the values of a label. An allValue of ".*" also matches series without the label.
local values(name, title, metric, of, all='.*', multi=true) = common {
  name: name,
  label: title,
  type: 'query',
  datasource: panel.source,
  query: { qryType: 1, query: 'label_values(%s, %s)' % [metric, of], refId: 'PrometheusVariableQueryEditor-VariableQuery' },
  refresh: 2,
  sort: 1,
  multi: multi,
  includeAll: true,
  [if all != null then 'allValue']: all,
  current: { selected: true, text: ['All'], value: ['$__all'] },
};

local cluster = '%s=~"$cluster"' % label.cluster;
local namespace = '%s, %s=~"$namespace"' % [cluster, label.namespace];
local job = '%s, %s=~"$job"' % [namespace, label.job];
local instance = '%s, %s=~"$pod", %s=~"$instance"' % [job, label.pod, label.instance];

{
  values:: values,

  variables:: {
    datasource: common {
      name: 'datasource',
      label: 'Data source',
      type: 'datasource',
      query: 'prometheus',
      refresh: 1,
      multi: false,
      includeAll: false,
    },
    cluster: values('cluster', 'Cluster', 'streamgauge_build_info', label.cluster),
    namespace: values('namespace', 'Namespace', 'streamgauge_build_info{%s}' % cluster, label.namespace),
    // Jobs of proxies. "All" is these and not ".*": a load generator that is scraped as a job of its own stays out.
    job: values('job', 'Job', 'streamgauge_proxy_resource_limit{%s}' % namespace, label.job, all=null),
    pod: values('pod', 'Pod', 'streamgauge_proxy_resource_limit{%s}' % job, label.pod),
    instance: values('instance', 'Instance', 'streamgauge_proxy_resource_limit{%s, %s=~"$pod"}' % [job, label.pod], label.instance),
    model: values('model', 'Model', 'streamgauge_stream_terminations_total{%s}' % instance, 'gen_ai_request_model'),
    slo: values('slo', 'SLO', 'streamgauge_slo_target_ratio{%s}' % instance, 'slo'),
    // Adds matchers to every query of the board, for example by a class (`--class tier=header:x-tier`).
    filters: common { name: 'filters', label: 'Filters', type: 'adhoc', datasource: panel.source },
  },

  new(name, title, about, rows, more=[])::
    local panels = placed(rows);
    local variables = self.variables;
    {
      uid: 'streamgauge-' + name,
      title: 'Streamgauge / ' + title,
      description: about,
      tags: config.tags,
      schemaVersion: 41,
      version: 1,
      editable: true,
      graphTooltip: 1,
      fiscalYearStartMonth: 0,
      liveNow: false,
      preload: false,
      refresh: config.refresh,
      timezone: 'browser',
      time: { from: config.from, to: 'now' },
      timepicker: {},
      weekStart: '',
      links: [
        { title: 'Boards of Streamgauge', type: 'dashboards', icon: 'external link', url: '', targetBlank: false, asDropdown: false, includeVars: true, keepTime: true, tags: ['streamgauge'], tooltip: 'The other boards, with the same variables and times' },
        panel.link('Runbook', config.runbook, 'What to do for each alert'),
        panel.link('Metrics', config.manual, 'Every metric and its definition'),
      ],
      annotations: {
        list: [
          { builtIn: 1, datasource: { type: 'grafana', uid: '-- Grafana --' }, enable: true, hide: true, iconColor: 'rgba(0, 211, 255, 1)', name: 'Annotations & Alerts', type: 'dashboard' },
          {
            datasource: panel.source,
            enable: true,
            hide: false,
            iconColor: 'purple',
            name: 'Restarts',
            expr: 'max by (%s, %s) (changes(process_start_time_seconds{%s}[2m])) * on (%s, %s) group_left (version) %s > 0' % [label.job, label.instance, instance, label.job, label.instance, q.versions],
            step: '60s',
            titleFormat: 'Streamgauge restarted',
            textFormat: '{{%s}} {{version}}' % label.instance,
          },
        ],
      },
      templating: { list: [variables[name] for name in ['datasource', 'cluster', 'namespace', 'job', 'pod', 'instance', 'model', 'slo']] + more + [variables.filters] },
      panels: std.mapWithIndex(function(i, item) { id: i + 1 } + item, panels),
    },
}
