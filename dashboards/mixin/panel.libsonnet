// Panels for Grafana 12 and newer. Grafonnet has the same and much more, but is in no package registry, and is
// generated code for every panel and version of Grafana. The boards need four kinds of panels.
local config = import 'config.libsonnet';

local source = { type: 'prometheus', uid: '${datasource}' };
local letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ';

local legend(calcs) = { displayMode: 'table', placement: 'bottom', showLegend: true, calcs: calcs };
local fixed(color) = { mode: 'fixed', fixedColor: color };
local steps(colors) = { mode: 'absolute', steps: colors };

{
  source: source,

  // One query of a panel. `exemplar` asks for the traces of single requests.
  query(expr, legend, exemplar=false):: {
    datasource: source,
    editorMode: 'code',
    expr: expr,
    format: 'time_series',
    legendFormat: legend,
    range: true,
    [if exemplar then 'exemplar']: true,
  },

  // One column of a table: the value now.
  column(expr):: { datasource: source, editorMode: 'code', expr: expr, format: 'table', instant: true, legendFormat: '', range: false },

  // A link of a board or of a panel.
  link(title, url, tooltip=''):: { title: title, type: 'link', icon: 'doc', url: url, targetBlank: true, asDropdown: false, includeVars: false, keepTime: false, tags: [], tooltip: tooltip },

  runbook(alert):: self.link('Runbook: ' + alert, config.runbook + '#' + std.asciiLower(alert)),

  local panel = function(type, title, about, queries) {
    type: type,
    title: title,
    description: about,
    datasource: source,
    targets: std.mapWithIndex(function(i, query) { refId: letters[i] } + query, queries),
  },

  local matcher = function(name) { id: if std.startsWith(name, '/') then 'byRegexp' else 'byName', options: name },

  // Colours of series by name, or by a pattern between slashes. Every series has its name in the legend as well.
  local coloured = function(colors) [
    { matcher: matcher(name), properties: [{ id: 'color', value: fixed(colors[name]) }] }
    for name in std.objectFields(colors)
  ],

  // Lines over time. `lines` are limits at a number, `dashed` series that are drawn so.
  chart(title, about, unit, queries, stack=false, colors={}, lines=[], dashed=[], max=null, calcs=['mean', 'lastNotNull'], links=[], min=0, decimals=null):: panel('timeseries', title, about, queries) {
    fieldConfig: {
      defaults: {
        unit: unit,
        color: { mode: 'palette-classic' },
        custom: {
          drawStyle: 'line',
          lineWidth: 1,
          fillOpacity: if stack then 25 else 0,
          showPoints: 'never',
          spanNulls: false,
          stacking: { mode: if stack then 'normal' else 'none', group: 'A' },
        } + if lines == [] then {} else { thresholdsStyle: { mode: 'dashed' } },
        [if min != null then 'min']: min,
        [if max != null then 'max']: max,
        [if decimals != null then 'decimals']: decimals,
        [if lines != [] then 'thresholds']: steps([{ color: 'transparent', value: null }] + lines),
      },
      overrides: coloured(colors) + [
        { matcher: matcher(name), properties: [{ id: 'custom.lineStyle', value: { fill: 'dash', dash: [6, 4] } }] }
        for name in dashed
      ],
    },
    options: { legend: legend(calcs), tooltip: { mode: 'multi', sort: 'desc' } },
    [if links != [] then 'links']: links,
  },

  quantiles:: { p50: 'green', p90: 'yellow', p99: 'red' },

  // A dashed line at a limit.
  limit(value, color='red'):: { color: color, value: value },

  heatMap(title, about, expr, unit='s', links=[]):: panel('heatmap', title, about, [self.query(expr, '{{le}}', exemplar=true) { format: 'heatmap' }]) {
    fieldConfig: { defaults: { custom: { scaleDistribution: { type: 'linear' } } }, overrides: [] },
    options: {
      calculate: false,
      cellGap: 1,
      cellValues: { unit: 'cps' },
      color: { mode: 'scheme', scheme: 'Turbo', fill: 'dark-orange', scale: 'exponential', exponent: 0.5, steps: 64, reverse: false },
      exemplars: { color: 'rgba(255,255,255,0.7)' },
      filterValues: { le: 1e-9 },
      legend: { show: true },
      rowsFrame: { layout: 'auto' },
      showValue: 'never',
      tooltip: { mode: 'single', yHistogram: true, showColorScale: false },
      yAxis: { axisPlacement: 'left', reverse: false, unit: unit },
    },
    [if links != [] then 'links']: links,
  },

  // Numbers now. `colors` are steps from below; `words` name values, so that a colour is never the only sign.
  stat(title, about, unit, queries, colors=[{ color: 'blue', value: null }], words=[], decimals=null, graph=true, links=[]):: panel('stat', title, about, queries) {
    fieldConfig: {
      defaults: {
        unit: unit,
        color: { mode: 'thresholds' },
        thresholds: steps(colors),
        [if words != [] then 'mappings']: words,
        [if decimals != null then 'decimals']: decimals,
      },
      overrides: [],
    },
    options: {
      colorMode: 'value',
      graphMode: if graph then 'area' else 'none',
      justifyMode: 'auto',
      orientation: 'auto',
      textMode: if std.length(queries) == 1 && queries[0].legendFormat == title then 'value' else 'value_and_name',
      wideLayout: true,
      showPercentChange: false,
      percentChangeColorMode: 'standard',
      reduceOptions: { calcs: ['lastNotNull'], fields: '', values: false },
    },
    [if links != [] then 'links']: links,
  },

  // A word for a value or a range of values.
  word(value, text, color):: { type: 'value', options: { [std.toString(value)]: { text: text, color: color, index: 0 } } },
  words(from, to, text, color):: { type: 'range', options: { from: from, to: to, result: { text: text, color: color, index: 0 } } },

  // A table with one row per label set. `columns` are {name, expr, unit, colors, words, link}; `labels` the columns before.
  table(title, about, labels, columns, sort, descending=true, links=[], none='none'):: panel('table', title, about, [self.column(column.expr) for column in columns]) {
    local values = ['Value #' + letters[i] for i in std.range(0, std.length(columns) - 1)],
    local named = if std.length(columns) == 1 then ['Value'] else values,
    fieldConfig: {
      defaults: {
        unit: 'none',
        noValue: none,
        custom: { align: 'auto', filterable: true, inspect: false, cellOptions: { type: 'auto' } },
      },
      overrides: [
        {
          matcher: { id: 'byName', options: column.name },
          properties: [{ id: 'unit', value: column.unit }]
                      + (if std.objectHas(column, 'decimals') then [{ id: 'decimals', value: column.decimals }] else [])
                      + (if std.objectHas(column, 'colors') then [
                           { id: 'thresholds', value: steps(column.colors) },
                           { id: 'color', value: { mode: 'thresholds' } },
                           { id: 'custom.cellOptions', value: { type: 'color-text' } },
                         ] else [])
                      + (if std.objectHas(column, 'words') then [{ id: 'mappings', value: column.words }, { id: 'custom.cellOptions', value: { type: 'color-text' } }] else [])
                      + (if std.objectHas(column, 'link') then [{ id: 'links', value: [column.link] }] else []),
        }
        for column in columns
      ] + [
        { matcher: { id: 'byName', options: name }, properties: [{ id: 'links', value: [labels[name].link] }] }
        for name in std.objectFields(labels)
        if std.objectHas(labels[name], 'link')
      ],
    },
    options: { showHeader: true, cellHeight: 'sm', frameIndex: 0, sortBy: [{ displayName: sort, desc: descending }] },
    transformations: (if std.length(columns) > 1 then [{ id: 'merge', options: {} }] else []) + [{
      id: 'organize',
      options: {
        excludeByName: { Time: true },
        indexByName: { [name]: labels[name].at for name in std.objectFields(labels) }
                     + { [named[i]]: 100 + i for i in std.range(0, std.length(columns) - 1) },
        renameByName: { [name]: labels[name].name for name in std.objectFields(labels) if std.objectHas(labels[name], 'name') }
                      + { [named[i]]: columns[i].name for i in std.range(0, std.length(columns) - 1) },
      },
    }],
    [if links != [] then 'links']: links,
  },
}
