// A board's type is Grafana's own. tests/deploy/run puts `const board = …json… satisfies Board` below this, since
// the compiler widens the strings of a JSON file that is imported.
import type { Dashboard, FieldConfig, Panel, RowPanel } from "@grafana/schema";
import type * as Heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as Stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as Table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as TimeSeries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// What JSON can hold of a type: enums as their values.
type Plain<T> = T extends string ? `${T}` : T extends number ? number : T extends boolean | null | undefined ? T
  : T extends Array<infer Item> ? Plain<Item>[] : T extends object ? { [Key in keyof T]: Plain<T[Key]> } : T;

interface Query {
  refId: string;
  datasource: { type: "prometheus"; uid: "${datasource}" };
  editorMode: "code";
  expr: string;
  format: "time_series" | "heatmap" | "table";
  legendFormat: string;
  range: boolean;
  instant?: boolean;
  exemplar?: boolean;
}

type Of<Kind extends string, Options, Custom> = Omit<Panel, "type" | "options" | "fieldConfig" | "targets"> & {
  type: Kind;
  options: Plain<Options>;
  fieldConfig: { defaults: Omit<Plain<FieldConfig>, "custom"> & { custom?: Partial<Plain<Custom>> }; overrides: { matcher: { id: string; options?: unknown }; properties: { id: string; value?: unknown }[] }[] };
  targets: Query[];
};

type Annotation = NonNullable<NonNullable<Plain<Dashboard>["annotations"]>["list"]>[number];

type Board = Omit<Plain<Dashboard>, "panels" | "annotations"> & {
  annotations: { list: (Annotation | Annotation & { expr: string; step: string; titleFormat: string; textFormat: string })[] };
  panels: (Plain<RowPanel> | Of<"timeseries", TimeSeries.Options, TimeSeries.FieldConfig> | Of<"heatmap", Heatmap.Options, Heatmap.FieldConfig> | Of<"stat", Stat.Options, object> | Of<"table", Table.Options, Table.FieldConfig>)[];
};
