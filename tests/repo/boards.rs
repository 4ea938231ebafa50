//! The boards of `dashboards/`: their grid, descriptions, units, queries and links.
//!
//! `tests/deploy/run` checks that they are what the mixin renders, that Grafana's types accept them and that the queries
//! are PromQL. `tests/real/dashboard.rs` runs the queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use streamgauge::export::prometheus::name;
use streamgauge::export::registry::catalog::{InstrumentKind, TABLE, attribute};

/// The boards, by file name without extension, and their titles.
const BOARDS: [(&str, &str); 6] = [
    ("streamgauge-engine", "Streamgauge / Engine beside proxy"),
    ("streamgauge-fleet", "Streamgauge / Fleet"),
    ("streamgauge-replay", "Streamgauge / Capture and replay"),
    ("streamgauge-self", "Streamgauge / Streamgauge itself"),
    ("streamgauge-slo", "Streamgauge / SLO and error budget"),
    ("streamgauge-streaming", "Streamgauge / Streaming"),
];

/// Prefixes of metrics that inference servers export.
const SERVER_PREFIXES: [&str; 6] = ["vllm:", "sglang:", "tgi_", "llamacpp:", "trtllm_", "nv_"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap()
}

fn board(name: &str) -> Value {
    serde_json::from_str(&read(&format!("dashboards/{name}.json"))).unwrap()
}

fn boards() -> impl Iterator<Item = (&'static str, Value)> {
    BOARDS.into_iter().map(|(name, _)| (name, board(name)))
}

/// The panels that show something.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    list(&board["panels"]).iter().filter(|panel| panel["type"] != "row")
}

/// Every query with the title of its panel.
fn queries(board: &Value) -> Vec<(&str, &str)> {
    panels(board)
        .flat_map(|panel| list(&panel["targets"]).iter().map(|target| (text(panel, "title"), text(target, "expr"))))
        .collect()
}

/// The metric names of a query, each with the matchers that follow it.
fn selectors(query: &str) -> Vec<(&str, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut found = Vec::new();
    for (at, _) in query.match_indices('{') {
        let start = query[..at].rfind(|c| !is_name(c)).map_or(0, |before| before + 1);
        let end = at + query[at..].find('}').unwrap();
        found.push((&query[start..at], &query[at + 1..end]));
    }
    found
}

#[test]
fn the_boards_are_the_six_that_the_manual_names() {
    let files = fs::read_dir(root().join("dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let files: BTreeSet<String> = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(files, BOARDS.map(|(name, _)| name.to_owned()).into());
    let manual = read("dashboards/README.md");
    for (name, title) in BOARDS {
        let board = board(name);
        assert_eq!((text(&board, "uid"), text(&board, "title")), (name, title));
        let row = format!("| [{}]({name}.json) |", title.strip_prefix("Streamgauge / ").unwrap());
        assert!(manual.contains(&row), "no row {row}");
    }
}

#[test]
fn every_board_fills_its_24_columns_without_overlaps_or_holes() {
    for (name, board) in boards() {
        let mut taken = BTreeSet::new();
        let mut height = 0;
        for panel in list(&board["panels"]) {
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
            assert!(x + w <= 24 && w > 0 && h > 0, "{name}: {} leaves the grid", panel["title"]);
            height = height.max(y + h);
            for cell in (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y))) {
                assert!(taken.insert(cell), "{name}: {} lies over another panel at {cell:?}", panel["title"]);
            }
        }
        assert_eq!(taken.len() as u64, 24 * height, "{name}: a hole");
        let ids: BTreeSet<u64> = list(&board["panels"]).iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
        assert_eq!(ids.len(), list(&board["panels"]).len(), "{name}: each id once");
    }
}

#[test]
fn every_panel_has_a_description_a_unit_and_a_data_source() {
    for (name, board) in boards() {
        let mut titles = BTreeSet::new();
        for panel in panels(&board) {
            let title = text(panel, "title");
            assert!(titles.insert(title), "{name} has two panels {title}");
            let description = panel["description"].as_str().unwrap();
            assert!(description.ends_with('.'), "{title}: no description");
            for sentence in description.split_terminator(['.', ':', ';']) {
                assert!(sentence.split_whitespace().count() <= 25, "{title}: a long sentence: {sentence}");
            }
            let unit = match &panel["options"]["yAxis"]["unit"] {
                Value::Null => &panel["fieldConfig"]["defaults"]["unit"],
                of_heat_map => of_heat_map,
            };
            assert!(unit.is_string(), "{title}: no unit");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            for target in list(&panel["targets"]) {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            }
        }
    }
}

#[test]
fn every_board_has_the_same_variables() {
    for (name, board) in boards() {
        let variables: Vec<&str> =
            list(&board["templating"]["list"]).iter().map(|variable| text(variable, "name")).collect();
        let common = ["datasource", "cluster", "namespace", "job", "pod", "instance", "model", "slo"];
        let own: &[&str] = match name {
            "streamgauge-engine" => &["engine"],
            "streamgauge-replay" => &["run"],
            _ => &[],
        };
        assert_eq!(variables, [&common, own, &["filters"]].concat(), "{name}");
    }
}

/// `.*` also matches a series without the label. A run must not match as production, nor production as a run.
#[test]
fn all_matches_series_without_the_label_and_keeps_runs_apart() {
    for (name, board) in boards() {
        for variable in list(&board["templating"]["list"]).iter().filter(|variable| variable["type"] == "query") {
            let expected = match text(variable, "name") {
                "job" | "run" => Value::Null,
                _ => ".*".into(),
            };
            assert_eq!(variable["allValue"], expected, "{name}: {}", variable["name"]);
        }
    }
}

#[test]
fn every_quantile_is_called_what_it_is() {
    let mut seen = 0;
    for (_, board) in boards() {
        for panel in panels(&board) {
            for target in list(&panel["targets"]) {
                let (query, legend) = (text(target, "expr"), text(target, "legendFormat"));
                let called = format!("{} {legend}", text(panel, "title"));
                let called: BTreeSet<&str> = called.split([' ', ',']).collect();
                for quantile in query.split("histogram_quantile(").skip(1) {
                    let quantile: f64 = quantile.split(',').next().unwrap().parse().unwrap();
                    let expected = format!("p{}", quantile * 100.0);
                    let rules = query.contains("label_replace") || panel["type"] == "table";
                    assert!(rules || called.contains(&*expected), "{expected} is not in {called:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn every_rate_is_over_the_interval_that_grafana_knows_or_over_a_window_of_an_slo() {
    for (name, board) in boards() {
        // Queries of recording rules have the rules' windows.
        for (title, query) in queries(&board).into_iter().filter(|(_, query)| !query.contains("label_replace")) {
            for range in query.split('[').skip(1) {
                let range = range.split(']').next().unwrap();
                let of_slo = query.contains("streamgauge_slo_requests_total")
                    && ["5m", "30m", "1h", "2h", "6h", "1d", "3d", "30d"].contains(&range);
                let of_seen = range == "15m" && query.contains("last_over_time(streamgauge_build_info");
                assert!(range == "$__rate_interval" || of_slo || of_seen, "{name}, {title}: {query}");
            }
        }
    }
}

/// The rules burn in these windows; the board of the SLOs shows them all.
#[test]
fn the_board_of_the_slos_shows_every_window_and_rate_of_the_alerts() {
    let rules: Value = serde_saphyr::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    let rules = list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"]));
    let alerts = rules.filter(|rule| rule["alert"] == "StreamgaugeErrorBudgetBurns");
    let board = board("streamgauge-slo");
    let mut shown = 0;
    for alert in alerts {
        let windows: Vec<&str> =
            text(alert, "expr").split("ratio_rate").skip(1).map(|rest| rest.split(' ').next().unwrap()).collect();
        let title = format!("Burn rate over {} and {}", windows[0], windows[1]);
        let panel = panels(&board).find(|panel| panel["title"] == *title).unwrap_or_else(|| panic!("no {title}"));
        for (target, window) in list(&panel["targets"]).iter().zip(windows) {
            assert!(text(target, "expr").contains(&format!("[{window}]")), "{title}");
        }
        let limit = &panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"];
        assert_eq!(limit.to_string(), text(&alert["labels"], "burn_rate"), "{title}");
        shown += 1;
    }
    assert_eq!(shown, 4);
}

#[test]
fn every_query_is_narrowed_by_the_variables() {
    let instruments: BTreeMap<String, &[&str]> =
        TABLE.iter().map(|instrument| (name::family(instrument), instrument.attributes)).collect();
    for (name, board) in boards() {
        for (title, query) in queries(&board).into_iter().filter(|(_, query)| !query.contains("label_replace")) {
            for (metric, matchers) in selectors(query) {
                let is_server = SERVER_PREFIXES.iter().any(|prefix| metric.starts_with(prefix));
                let which = if is_server {
                    "instance=~\"$engine\""
                } else if matchers.contains("$run") {
                    "instance=~\"$run\""
                } else {
                    "job=~\"$job\", instance=~\"$instance\""
                };
                assert!(matchers.starts_with("cluster=~\"$cluster\", namespace=~\"$namespace\""), "{title}: {query}");
                assert!(matchers.contains(which), "{name}, {title}: {query}");
                let parts = ["_bucket", "_sum", "_count", "_total"];
                let family = parts.iter().find_map(|part| metric.strip_suffix(part)).unwrap_or(metric);
                let attributes = instruments.get(family).or_else(|| instruments.get(metric)).copied();
                // The proxies of the other boards are those of every model.
                if ["streamgauge-streaming", "streamgauge-slo"].contains(&name)
                    && attributes.is_some_and(|attributes| attributes.contains(&attribute::MODEL))
                {
                    assert!(matchers.contains("gen_ai_request_model=~\"$model\""), "{title}: {query}");
                }
                if attributes.is_some_and(|attributes| attributes.contains(&"slo")) {
                    assert!(matchers.contains("slo=~\"$slo\"") || query.starts_with("max("), "{title}: {query}");
                }
            }
        }
    }
}

#[test]
fn every_histogram_is_read_in_its_native_and_in_its_classic_form() {
    let histograms = TABLE.iter().filter(|instrument| matches!(instrument.kind, InstrumentKind::Histogram(_)));
    let families: BTreeSet<String> = histograms.map(name::family).collect();
    for (name, board) in boards() {
        for (title, query) in queries(&board).into_iter().filter(|(_, query)| !query.contains("label_replace")) {
            let selected: BTreeSet<&str> = selectors(query).into_iter().map(|(metric, _)| metric).collect();
            for family in &families {
                let classic =
                    ["_bucket", "_sum", "_count"].iter().any(|part| selected.contains(&*format!("{family}{part}")));
                assert_eq!(classic, selected.contains(&**family), "{name}, {title}: {query}");
            }
        }
    }
}

#[test]
fn the_fleet_lists_the_problems_of_every_alert_that_names_an_instance() {
    let rules: Value = serde_saphyr::from_str(&read("deploy/prometheus/rules.yml")).unwrap();
    let rules = list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"]));
    let alerts: BTreeSet<&str> = rules.filter_map(|rule| rule["alert"].as_str()).collect();
    let board = board("streamgauge-fleet");
    let panel = panels(&board).find(|panel| panel["title"] == "Problems now").unwrap();
    let query = text(&panel["targets"][0], "expr");
    for alert in alerts {
        let of_no_instance =
            ["StreamgaugeErrorBudgetBurns", "StreamgaugePushStopped", "StreamgaugeScrapeStopped", "StreamgaugeAbsent"]
                .contains(&alert);
        let listed = query.contains(&format!("\"problem\", \"{}\"", alert.strip_prefix("Streamgauge").unwrap()));
        assert_eq!(listed, !of_no_instance, "{alert}");
        assert_eq!(query.contains(&format!("\"runbook\", \"{}\"", alert.to_lowercase())), listed, "{alert}");
    }
    let instances = panels(&board).find(|panel| panel["title"] == "Instances").unwrap();
    let sort = &instances["options"]["sortBy"][0];
    assert_eq!((&sort["displayName"], &sort["desc"]), (&"Problems".into(), &true.into()), "the worst first");
}

/// The values of this key anywhere in there.
fn strings<'a>(key: &str, within: &'a Value, found: &mut Vec<&'a str>) {
    match within {
        Value::Array(items) => items.iter().for_each(|item| strings(key, item, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => found.push(text),
                    _ => strings(key, value, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_link_leads_to_a_section_of_the_runbook_or_to_a_board() {
    let runbook = read("deploy/prometheus/README.md");
    let mut sections = BTreeSet::new();
    for (name, board) in boards() {
        let mut links = Vec::new();
        strings("url", &board, &mut links);
        for link in links.into_iter().filter(|link| !link.is_empty()) {
            if let Some((_, section)) = link.split_once("/deploy/prometheus/README.md#") {
                if section.starts_with("${") {
                    continue;
                }
                let heading = runbook.lines().any(|line| line.to_lowercase() == format!("## {section}"));
                assert!(heading, "{name}: the runbook has no section {section}");
                sections.insert(section.to_owned());
            } else if let Some(path) = link.strip_prefix("/d/") {
                let uid = path.split(['?', '/']).next().unwrap();
                assert!(BOARDS.iter().any(|(name, _)| *name == uid), "{name}: no board {uid}");
            } else {
                let ours = read("Cargo.toml")
                    .lines()
                    .find_map(|line| line.strip_prefix("repository = ").map(|url| url.trim_matches('"').to_owned()));
                let path = link.strip_prefix(&format!("{}/blob/main/", ours.unwrap())).unwrap();
                assert!(root().join(path).exists(), "{name}: {link}");
            }
        }
        let others = list(&board["links"]).iter().find(|link| link["type"] == "dashboards").unwrap();
        assert_eq!((&others["tags"][0], &others["includeVars"]), (&"streamgauge".into(), &true.into()));
        assert_eq!(board["tags"][0], "streamgauge", "or the others do not link to {name}");
    }
    assert!(sections.len() >= 12, "{sections:?}");
}

#[test]
fn a_colour_is_never_the_only_sign() {
    for (name, board) in boards() {
        for panel in panels(&board) {
            let mut words = Vec::new();
            strings("text", &panel["fieldConfig"], &mut words);
            for word in words {
                assert!(word.starts_with(['✓', '✗', '!']), "{name}, {}: {word}", panel["title"]);
            }
            if panel["type"] == "timeseries" {
                assert_eq!(panel["options"]["legend"]["showLegend"], true, "{name}, {}", panel["title"]);
            }
        }
    }
}

#[test]
fn exemplars_of_both_latencies_lead_to_traces() {
    let board = board("streamgauge-streaming");
    for title in ["TTFT", "TTFT, distribution", "ITL, distribution", "Request duration"] {
        let panel = panels(&board).find(|panel| panel["title"] == title).unwrap();
        assert!(list(&panel["targets"]).iter().all(|target| target["exemplar"] == true), "{title}");
    }
    let source: Value = serde_saphyr::from_str(&read("deploy/grafana/datasources/prometheus.yaml")).unwrap();
    let trace = &source["datasources"][0]["jsonData"]["exemplarTraceIdDestinations"][0];
    assert_eq!(trace["name"], "trace_id");
    assert!(text(trace, "url").ends_with("/trace/$${__value.raw}"), "{trace}");
}

#[test]
fn every_metric_of_a_server_that_a_board_reads_is_on_a_page_of_test_data() {
    let pages = fs::read_dir(root().join("tests/data/server_metrics")).unwrap().map(|entry| entry.unwrap().path());
    let pages: String = pages
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let exported: BTreeSet<&str> = pages.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let board = board("streamgauge-engine");
    let mut read = BTreeSet::new();
    for (title, query) in queries(&board) {
        for (metric, _) in selectors(query) {
            if SERVER_PREFIXES.iter().any(|prefix| metric.starts_with(prefix)) {
                assert!(exported.contains(metric), "{title}: no page has {metric}");
                read.insert(metric.to_owned());
            }
        }
    }
    for prefix in SERVER_PREFIXES {
        assert!(read.iter().any(|metric| metric.starts_with(prefix)), "no metric of {prefix}");
    }
}
