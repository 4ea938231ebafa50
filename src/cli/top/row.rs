//! Rows of the table: instances and models, judged and sorted worst first.

use std::cmp::Ordering;

use comfy_table::{Cell, CellAlignment, Color};
use schemars::JsonSchema;
use serde::Serialize;

use super::window::{HistoryReply, TopQuantiles, TopSessions, WindowFigures};
use crate::cli::terminal::{render_table, right_aligned_table};
use crate::report::ascii_plot::replace_unprintable;

/// How a row is, in rising order of badness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum TopStatus {
    Ok,
    /// Goodput is below the target of an SLO, or streams are open and no token comes.
    Warning,
    /// Requests fail by the fault of the server or the proxy, or the instance does not serve or cannot be read.
    Bad,
}

impl TopStatus {
    /// A mark: colour alone would not reach every reader.
    const fn mark(self) -> &'static str {
        match self {
            Self::Ok => "✓",
            Self::Warning => "!",
            Self::Bad => "✗",
        }
    }

    const fn colour(self) -> Option<Color> {
        match self {
            Self::Ok => None,
            Self::Warning => Some(Color::Yellow),
            Self::Bad => Some(Color::Red),
        }
    }
}

/// One row: all models of an instance, one of several models, or the reason why it cannot be read.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::cli) struct TopRow {
    pub(super) status: TopStatus,
    instance: String,
    /// `null` for all models together.
    model: Option<String>,
    /// Why the status is what it is; absent if all is well.
    reason: Option<String>,
    /// `reachable`, `unreachable` or `unknown`; absent if the instance cannot be read.
    upstream: Option<String>,
    /// Absent if the instance cannot be read.
    figures: Option<WindowFigures>,
    /// Of all models; absent without a capture, and until a session has ended its first turn.
    sessions: Option<TopSessions>,
}

impl TopRow {
    /// The row of an instance that cannot be read.
    pub(super) fn unreadable(instance: &str, reason: String) -> Self {
        let (status, reason) = (TopStatus::Bad, Some(reason));
        let instance = instance.to_owned();
        Self { status, instance, model: None, reason, upstream: None, figures: None, sessions: None }
    }

    /// The rows of an instance: one for all models, and one for each of several.
    pub(super) fn of_instance(instance: &str, reply: &HistoryReply, sessions: Option<TopSessions>) -> Vec<Self> {
        let (all, models) = reply.windows();
        let row = |model: Option<String>, figures: WindowFigures| {
            let (status, reason) = judge(reply, &figures);
            let upstream = Some(reply.upstream.state.clone());
            let instance = instance.to_owned();
            Self { status, instance, model, reason, upstream, figures: Some(figures), sessions: None }
        };
        let only = models.keys().next().filter(|_| models.len() == 1).map(|model| (*model).to_owned());
        let mut rows = vec![Self { sessions, ..row(only, all) }];
        if models.len() > 1 {
            rows.extend(models.into_iter().map(|(model, figures)| row(Some(model.to_owned()), figures)));
        }
        rows
    }

    /// True if the instance gave no figures.
    pub(super) fn is_unreadable(&self) -> bool {
        self.figures.is_none()
    }

    /// Worst first: by status, then failures, goodput and TTFT; equals by name.
    pub(super) fn cmp_worst_first(&self, other: &Self) -> Ordering {
        let failures = |row: &Self| row.figures.as_ref().map_or(u64::MAX, server_failures);
        let goodput = |row: &Self| row.figures.as_ref().and_then(worst_goodput).unwrap_or(1.0);
        let ttft = |row: &Self| row.figures.as_ref().and_then(|figures| figures.ttft_ms).map_or(0.0, |ttft| ttft.p99);
        let name = |row: &Self| (row.instance.clone(), row.model.clone());
        let worst = other.status.cmp(&self.status).then(failures(other).cmp(&failures(self)));
        let worst = worst.then(goodput(self).total_cmp(&goodput(other))).then(ttft(other).total_cmp(&ttft(self)));
        worst.then_with(|| name(self).cmp(&name(other)))
    }

    /// Cells in the order of [`HEADER`].
    fn cells(&self) -> Vec<String> {
        let none = || "-".to_owned();
        let mut cells = vec![
            self.status.mark().to_owned(),
            shown(&self.instance),
            self.model.as_deref().map_or_else(|| "all".to_owned(), shown),
        ];
        match &self.figures {
            None => cells.extend((0..8).map(|_| none())),
            Some(figures) => {
                let millis = |latency: Option<TopQuantiles>, which: fn(TopQuantiles) -> f64| match latency.map(which) {
                    None => none(),
                    Some(millis) if millis < 99.95 => format!("{millis:.1}"),
                    Some(millis) => format!("{millis:.0}"),
                };
                cells.extend([format!("{:.1}", figures.requests_per_s), figures.in_flight.to_string()]);
                for latency in [figures.ttft_ms, figures.itl_ms] {
                    cells.extend([millis(latency, |latency| latency.p50), millis(latency, |latency| latency.p99)]);
                }
                let goodput = figures.goodput.iter().map(|(slo, met)| {
                    let met = met.map_or_else(none, |met| format!("{:.1} %", met * 100.0));
                    format!("{} {met}", shown(slo))
                });
                cells.push(join_or_dash(goodput));
                cells.push(join_or_dash(
                    figures.failures.iter().map(|(fault, count)| format!("{} {count}", shown(fault))),
                ));
            }
        }
        cells.push(self.sessions.as_ref().map_or_else(none, |sessions| match sessions.tool_share {
            Some(tool) => format!("{}, tools {:.0} %", sessions.count, tool * 100.0),
            None => sessions.count.to_string(),
        }));
        cells.push(self.upstream.as_deref().map_or_else(none, shown));
        cells.push(self.reason.as_deref().map(shown).unwrap_or_default());
        cells
    }
}

const HEADER: [&str; 14] = [
    "", "instance", "model", "req/s", "open", "TTFT p50", "p99", "ITL p50", "p99", "goodput", "errors", "sessions",
    "upstream", "why",
];
/// Columns of [`HEADER`] with text, which is aligned to the left.
const TEXT_COLUMNS: [usize; 7] = [1, 2, 9, 10, 11, 12, 13];

/// The table of rows in their order. Latencies are in ms.
pub(super) fn table(rows: &[TopRow], colourful: bool) -> String {
    let mut table = right_aligned_table(&HEADER);
    for row in rows {
        let cell = |text: String| match row.status.colour().filter(|_| colourful) {
            Some(colour) => Cell::new(text).fg(colour),
            None => Cell::new(text),
        };
        table.add_row(row.cells().into_iter().map(cell));
    }
    for column in TEXT_COLUMNS {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Left);
        }
    }
    if colourful {
        table.enforce_styling();
    }
    render_table(&table)
}

/// The status of a row and its reason.
fn judge(reply: &HistoryReply, figures: &WindowFigures) -> (TopStatus, Option<String>) {
    if reply.upstream.state == "unreachable" {
        let why = reply.upstream.reason.as_deref().unwrap_or("no reason is known");
        return (TopStatus::Bad, Some(format!("the upstream cannot be reached: {why}")));
    }
    if !reply.ready {
        return (TopStatus::Bad, Some("not ready: starting, draining, or a run that has ended".to_owned()));
    }
    if server_failures(figures) > 0 {
        return (TopStatus::Bad, Some("requests fail".to_owned()));
    }
    let missed = figures.goodput.iter().filter_map(|(slo, met)| {
        let (met, target) = ((*met)?, *reply.slo_targets.get(slo)?);
        (met < target).then(|| format!("{slo} is below {} %", (target * 1e5).round() / 1e3))
    });
    let mut reasons: Vec<String> = missed.collect();
    if figures.silent_streams > 0 {
        reasons.push(format!("{} streams are open, and no token comes", figures.silent_streams));
    }
    match reasons.is_empty() {
        true => (TopStatus::Ok, None),
        false => (TopStatus::Warning, Some(reasons.join(", "))),
    }
}

/// Failures by the fault of the server or the proxy: a client's own mistakes make no row bad.
fn server_failures(figures: &WindowFigures) -> u64 {
    let ours = figures.failures.iter().filter(|(fault, _)| *fault != "client");
    ours.fold(0, |sum, (_, count)| sum.saturating_add(*count))
}

fn worst_goodput(figures: &WindowFigures) -> Option<f64> {
    figures.goodput.values().filter_map(|met| *met).min_by(f64::total_cmp)
}

fn join_or_dash(parts: impl Iterator<Item = String>) -> String {
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// A text of another process, without what would move a terminal's cursor, and cut.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let short: String = replace_unprintable(text).chars().take(MAX_CHARS).collect();
    if text.chars().count() > MAX_CHARS { short + "…" } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::window::StateReply;

    fn reply(text: &str) -> HistoryReply {
        serde_json::from_str(text).unwrap()
    }

    fn rows() -> Vec<TopRow> {
        let good = r#"{"ready":true,"upstream":{"state":"reachable","reason":null},"slo_targets":{"chat":0.99},"seconds":[
            {"length_ms":1000,"figures":{"requests":2,"failures":{"client":1},"slos":{"chat":[2,0,0,9]}},"by_model":{"tiny":{"requests":2}}}]}"#;
        let slow = good.replace("[2,0,0,9]", "[1,1,0,9]");
        let failing = good.replace("\"client\"", "\"upstream\"");
        let gone =
            good.replace("reachable\",\"reason\":null", "unreachable\",\"reason\":\"Connection\\u001b[2J refused\"");
        let two = good.replace("{\"tiny\":{\"requests\":2}}", "{\"a\":{\"requests\":1},\"b\":{\"requests\":1}}");
        let named =
            [("good", &*good.to_owned()), ("slow", &slow), ("failing", &failing), ("gone", &gone), ("two", &two)];
        let mut rows: Vec<TopRow> =
            named.iter().flat_map(|(name, text)| TopRow::of_instance(name, &reply(text), None)).collect();
        rows.push(TopRow::unreadable("dead", "Connection refused".to_owned()));
        rows.sort_by(TopRow::cmp_worst_first);
        rows
    }

    #[test]
    fn the_worst_comes_first_and_every_mark_has_its_reason() {
        let rows = rows();
        let statuses: Vec<_> =
            rows.iter().map(|row| (row.instance.as_str(), row.model.as_deref(), row.status)).collect();
        use TopStatus::{Bad, Ok, Warning};
        let expected = [
            ("dead", None, Bad),
            ("failing", Some("tiny"), Bad),
            ("gone", Some("tiny"), Bad),
            ("slow", Some("tiny"), Warning),
            ("good", Some("tiny"), Ok),
            ("two", None, Ok),
            ("two", Some("a"), Ok),
            ("two", Some("b"), Ok),
        ];
        assert_eq!(statuses, expected);
        assert_eq!(rows[3].reason.as_deref(), Some("chat is below 99 %"));
        assert!(rows.iter().all(|row| row.reason.is_some() == (row.status != Ok)));
        let second = r#"{"length_ms":1000,"figures":{"open":[3,1,2]}}"#;
        let hung = [second; 10].join(",");
        let hung = format!(r#"{{"ready":true,"upstream":{{"state":"reachable","reason":null}},"seconds":[{hung}]}}"#);
        let hung = TopRow::of_instance("hung", &reply(&hung), None).remove(0);
        assert_eq!((hung.status, hung.reason.as_deref()), (Warning, Some("3 streams are open, and no token comes")));
    }

    #[test]
    fn the_sessions_are_those_of_all_models_with_the_share_of_their_time_in_tools() {
        let state = r#"{"version":"1","sessions":{"sessions":12,"removed":0,"model_share":0.62,
            "goodput":[{"slo":"chat","met":9,"counted":12,"share":0.75}],"latest":[]}}"#;
        let sessions = |text: &str| serde_json::from_str::<StateReply>(text).unwrap().sessions.map(TopSessions::of);
        let all = sessions(state).unwrap();
        assert_eq!((all.count, &all.goodput), (12, &[("chat".to_owned(), 0.75)].into()));
        let two = r#"{"ready":true,"upstream":{"state":"reachable","reason":null},"seconds":[
            {"length_ms":1000,"figures":{"requests":2},"by_model":{"a":{"requests":1},"b":{"requests":1}}}]}"#;
        let shown: Vec<String> =
            TopRow::of_instance("x", &reply(two), Some(all)).iter().map(|row| row.cells()[11].clone()).collect();
        assert_eq!(shown, ["12, tools 38 %", "-", "-"]);
        let without_time = sessions(r#"{"sessions":{"sessions":1,"model_share":null,"goodput":[]}}"#);
        assert_eq!(TopRow::of_instance("x", &reply(two), without_time)[0].cells()[11], "1");
        assert_eq!(sessions(r#"{"version":"1"}"#), None, "there is no capture");
    }

    #[test]
    fn a_mark_needs_no_colour_and_no_text_moves_the_cursor() {
        let (plain, coloured) = (table(&rows(), false), table(&rows(), true));
        assert!(!plain.contains('\u{1b}') && coloured.contains('\u{1b}'));
        assert!(!coloured.contains("\u{1b}[2J"));
        let marks: Vec<char> = plain.lines().skip(1).filter_map(|line| line.chars().next()).collect();
        assert_eq!(marks, ['✗', '✗', '✗', '!', '✓', '✓', '✓', '✓'], "{plain}");
        assert!(plain.contains("chat 50.0 %") && plain.contains("upstream 1"), "{plain}");
    }
}
