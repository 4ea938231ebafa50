//! A sweep as text: one row per level, a line where the SLO ends, and a plot of latency against load.

use super::super::ascii_plot::{format_percent, format_value, needs_log_scale, replace_unprintable, scatter};
use super::super::distribution::percentile_name;
use super::super::metric::{MetricUnit, ReportMetric};
use super::super::text_layout::{LABEL, TextLayout, aligned, named_lines};
use super::expectation::ExpectationResult;
use super::level_summary::{LevelSummary, same_series};
use super::objective_limit::ObjectiveLimit;
use super::operating_point::OperatingPoint;
use super::{LevelComparisons, LevelWarning, Sweep};

/// Lines of the plot.
const HEIGHT: usize = 10;
/// Columns of the plot.
const WIDTH: usize = 60;

/// Renders the sweep.
pub fn render(sweep: &Sweep, screen: TextLayout) -> String {
    let mut text = named_lines(sweep.context.lines(), LABEL) + "\n" + &named_lines(lines(sweep), LABEL);
    let table = table(sweep);
    if table.len() > 1 {
        text += &format!("\n{}", with_slo_line(sweep, &aligned(&table), screen));
    }
    text += &latency_plot(sweep, screen);
    for table in more_tables(sweep) {
        text += &format!("\n{}", aligned(&table));
    }
    for doubt in &sweep.warnings {
        text +=
            &format!("\nwarning: {}\n  advice: {}\n", replace_unprintable(&warning_text(doubt)), doubt.warning.advice);
    }
    if screen.plain { text.replace('µ', "u") } else { text }
}

/// Formats a warning with its levels.
pub(super) fn warning_text(doubt: &LevelWarning) -> String {
    let more = match &doubt.levels[1..] {
        [] => String::new(),
        more => format!("; likewise {}", more.join(", ")),
    };
    format!("{} ({}{more})", doubt.warning.text, doubt.levels[0])
}

/// Returns the named lines around the table.
pub(super) fn lines(sweep: &Sweep) -> Vec<(&'static str, String)> {
    let plan = &sweep.plan;
    let runs: u32 = sweep.levels.iter().map(|point| point.runs).sum();
    let what = plan.trace.clone().unwrap_or_else(|| plan.verb.clone());
    let to: Vec<String> = plan.targets.iter().map(|list| list.join(", ")).collect();
    let mut lines = vec![(
        "sweep",
        format!(
            "{}: {runs} runs of {what} at {}",
            sweep.path,
            to.join(" (A) and ") + if to.len() > 1 { " (B)" } else { "" }
        ),
    )];
    let typed = |value: &String| if value.contains(' ') { format!(" '{value}'") } else { format!(" {value}") };
    let flag =
        |(flag, values): (&String, &Vec<String>)| format!("--{flag}{}", values.iter().map(typed).collect::<String>());
    let flags: Vec<String> = plan.flags.iter().map(flag).collect();
    if !flags.is_empty() {
        lines.push(("", flags.join(" ")));
    }
    for point in &sweep.levels {
        lines.extend(
            point.level.hypothesis.as_ref().map(|text| ("hypothesis", format!("{}: {text}", point.level.name))),
        );
    }
    lines.extend(sweep.goals.as_ref().map(|goals| ("SLO", goals.clone())));
    lines.extend(search_outcome(sweep).map(|answer| ("answer", answer)));
    lines.extend(list("expectation", sweep.expectations.iter().map(ExpectationResult::text)));
    lines.extend(list("objectives", sweep.objectives.iter().map(ObjectiveLimit::text)));
    if sweep.levels.iter().any(|point| point.front) {
        lines.push((
            "Pareto front",
            level_names(sweep, |point| point.front) + ": output tokens/s against tokens/s per user",
        ));
    }
    if sweep.levels.iter().any(|point| point.knee) {
        lines.push((
            "knee",
            level_names(sweep, |point| point.knee) + ": the most requests/s for their mean E2E (power)",
        ));
    }
    lines.extend(sweep.operating_points.iter().map(OperatingPoint::line));
    if let Some(targets) = &sweep.targets {
        lines.extend(list("B against A", targets.levels.iter().map(LevelComparisons::verdict_text)));
        lines.push(("winner", targets.winner_text(SIDES)));
    }
    let not_measured: Vec<&LevelSummary> = sweep.levels.iter().filter(|level| level.not_measured).collect();
    lines.extend(list(
        "not measured",
        not_measured.iter().map(|level| format!("{}: {}", level.name(), level.not_valid.join("; "))),
    ));
    if let Some(level) = &sweep.ended_at {
        lines.push(("ended", format!("at {level}, the second level that missed; --all runs the rest")));
    }
    lines
}

/// Lines of which only the first has the label.
fn list(label: &'static str, lines: impl Iterator<Item = String>) -> impl Iterator<Item = (&'static str, String)> {
    lines.enumerate().map(move |(at, line)| (if at == 0 { label } else { "" }, line))
}

fn level_names(sweep: &Sweep, which: fn(&LevelSummary) -> bool) -> String {
    sweep.levels.iter().filter(|point| which(point)).map(LevelSummary::name).collect::<Vec<_>>().join(", ")
}

/// Describes the result of a search.
fn search_outcome(sweep: &Sweep) -> Option<String> {
    let sought = sweep.plan.search.as_ref()?;
    let Some(answer) = sweep.answer else {
        return Some("none yet: the search has not ended; start it again to go on".to_owned());
    };
    let why = |level: f64| {
        let point = sweep.levels.iter().find(|point| point.level.load() == level);
        match point {
            Some(LevelSummary { not_valid, .. }) if !not_valid.is_empty() => {
                format!(", which is not valid: {}", not_valid.join("; "))
            }
            Some(LevelSummary { growth: Some(growth), .. }) => {
                format!(", where the server is saturated: {:.2} requests more in flight each second", growth.per_second)
            }
            _ => String::new(),
        }
    };
    let above = match (answer.not_measured, answer.missed) {
        (Some(level), _) => {
            format!("this machine could not send {}, so more is not measured", sought.by.describe(level))
        }
        (None, Some(missed)) => format!("{} does not{}", sought.by.describe(missed), why(missed)),
        (None, None) => "no more was allowed".to_owned(),
    };
    let interval = match (answer.low, answer.high) {
        (Some(low), Some(high)) => {
            format!("; 95 % interval {} to {}", sought.by.describe(low), sought.by.describe(high))
        }
        (Some(low), None) => format!("; 95 % interval from {} on", sought.by.describe(low)),
        (None, Some(high)) => format!("; 95 % interval up to {}", sought.by.describe(high)),
        (None, None) => String::new(),
    };
    let sure = if answer.sure { "" } else { ", not sure" };
    Some(match answer.met {
        Some(met) => format!("{} meets it, for {}{sure}; {above}{interval}", sought.by.describe(met), sought.sustain),
        None if answer.missed.is_none() => above,
        None => format!("no level meets it: even {above}"),
    })
}

/// Name and value of a column that only scraped servers have.
type ServerColumn = (&'static str, fn(&LevelSummary) -> Option<f64>);

/// Builds the table. The first row is the header.
pub(super) fn table(sweep: &Sweep) -> Vec<Vec<String>> {
    let points = &sweep.levels;
    let named = points.iter().any(|point| !point.level.has_default_name());
    let targets = sweep.plan.targets.len() > 1;
    let metrics = [ReportMetric::TtftFromPlanned, ReportMetric::Itl, ReportMetric::Tpot, ReportMetric::E2eFromPlanned];
    let metrics: Vec<(ReportMetric, f64)> = metrics
        .into_iter()
        .flat_map(|metric| sweep.percentiles.iter().map(move |percent| (metric, *percent)))
        .collect();
    let metrics: Vec<_> = metrics
        .into_iter()
        .filter(|(metric, percent)| points.iter().any(|point| point.percentile(*metric, *percent).is_some()))
        .collect();
    let slos: Vec<&str> =
        points.first().map(|point| point.summary.goodput.iter().map(|of| &*of.slo).collect()).unwrap_or_default();
    let mut head = Vec::new();
    head.extend(named.then(|| "level".to_owned()));
    head.extend(["offered".to_owned(), "req/s".into()]);
    head.extend(targets.then(|| "target".to_owned()));
    head.extend(metrics.iter().map(|(metric, percent)| {
        let name = metric.label(false).trim_end_matches(" from planned");
        format!("{name} {}", percentile_name(*percent))
    }));
    head.extend(["prompt tok/s".to_owned(), "tok/s".into(), "tok/s/user".into(), "failed".into()]);
    let server_columns: [ServerColumn; 2] =
        [("KV usage", |level| level.servers.kv_usage), ("GPU", |level| level.servers.gpu_utilization)];
    let server_columns: Vec<_> =
        server_columns.into_iter().filter(|(_, of)| points.iter().any(|point| of(point).is_some())).collect();
    head.extend(server_columns.iter().map(|(name, _)| (*name).to_owned()));
    head.extend(slos.iter().map(|slo| (*slo).to_owned()));
    head.extend(sweep.goals.as_ref().map(|_| "SLO".to_owned()));
    head.push(String::new());
    let dash = || "-".to_owned();
    let row = |point: &LevelSummary| {
        let mut row = Vec::new();
        row.extend(named.then(|| point.level.name.clone()));
        row.extend([point.level.offered(), format!("{:.2}", point.summary.throughput.requests)]);
        row.extend(targets.then(|| point.target.unwrap_or_default().to_owned()));
        row.extend(metrics.iter().map(|(metric, percent)| {
            point.percentile(*metric, *percent).map_or_else(dash, |of| format_value(of, MetricUnit::Time))
        }));
        let throughput = &point.summary.throughput;
        row.extend([throughput.input_tokens, throughput.output_tokens].map(|of| format_value(of, MetricUnit::Rate)));
        row.push(point.median(ReportMetric::UserRate).map_or_else(dash, |of| format_value(of, MetricUnit::Rate)));
        row.push(point.failed().to_string());
        row.extend(server_columns.iter().map(|(_, of)| of(point).map_or_else(dash, format_percent)));
        let share = |slo: &&str| {
            let of = point.summary.goodput.iter().find(|of| of.slo == **slo)?;
            of.share.map(format_percent)
        };
        row.extend(slos.iter().map(|slo| share(slo).unwrap_or_else(dash)));
        row.extend(sweep.goals.as_ref().map(|_| slo_cell(point)));
        row.push(marks(point));
        row
    };
    std::iter::once(head).chain(points.iter().map(row)).collect()
}

fn slo_cell(point: &LevelSummary) -> String {
    let word = match point.meets {
        _ if point.not_measured => return "not measured".to_owned(),
        Some(true) => "met",
        Some(false) => "missed",
        None => return "-".to_owned(),
    };
    if point.sure == Some(true) { word.to_owned() } else { format!("{word}, not sure") }
}

fn marks(point: &LevelSummary) -> String {
    let marks = [
        point.front.then(|| "front".to_owned()),
        point.knee.then(|| "knee".to_owned()),
        point.sustained.then(|| "sustained".to_owned()),
        point.growth.map(|growth| format!("saturated +{:.2}/s", growth.per_second)),
        (!point.not_valid.is_empty()).then(|| "not valid".to_owned()),
    ];
    marks.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Draws a line below the last level of each series that meets the SLO, if all lower levels do too.
fn with_slo_line(sweep: &Sweep, table: &str, screen: TextLayout) -> String {
    let mut lines: Vec<String> = table.lines().map(str::to_owned).collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let points = &sweep.levels;
    let begins = |at: usize| at == 0 || !same_series(&points[at - 1], &points[at]);
    let missed = |at: usize| points[at].meets == Some(false);
    let first_missed = |at: usize| missed(at) && (begins(at) || points[at - 1].meets == Some(true));
    let alone = |at: usize| begins(at) && (at + 1 == points.len() || begins(at + 1));
    let rule = if screen.plain { '-' } else { '─' };
    for at in (0..points.len()).rev().filter(|at| first_missed(*at) && !alone(*at)) {
        let words = format!("{rule}{rule} SLO ");
        let rest: String = std::iter::repeat_n(rule, width.saturating_sub(words.chars().count())).collect();
        lines.insert(at + 1, words + &rest);
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Plots TTFT p99 (E2E if nothing streams) against the achieved load.
fn latency_plot(sweep: &Sweep, screen: TextLayout) -> String {
    let metrics = [ReportMetric::TtftFromPlanned, ReportMetric::E2eFromPlanned];
    let drawn = |metric: ReportMetric| {
        let mark = |point: &LevelSummary| match point.target.and_then(|target| target.chars().next()) {
            Some(target) => target,
            None if point.knee => {
                if screen.plain {
                    '#'
                } else {
                    '◆'
                }
            }
            None => {
                if screen.plain {
                    'o'
                } else {
                    '●'
                }
            }
        };
        let of = |point: &LevelSummary| {
            Some((point.summary.throughput.requests, point.percentile(metric, 99.0)?, mark(point)))
        };
        (metric, sweep.levels.iter().filter_map(of).collect::<Vec<_>>())
    };
    let Some((metric, points)) = metrics.map(drawn).into_iter().find(|(_, points)| points.len() > 2) else {
        return String::new();
    };
    let most = |of: fn(&(f64, f64, char)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (right, top) = (most(|point| point.0), most(|point| point.1));
    let least = points.iter().map(|point| point.1).fold(top, f64::min);
    let width = screen.width.saturating_sub(LABEL).min(WIDTH);
    let (bottom, scale) = if needs_log_scale(least, top) { (least, ", logarithmic") } else { (0.0, "") };
    let knee = if points.iter().any(|point| point.2 == '◆' || point.2 == '#') {
        if screen.plain { "; # is the knee" } else { "; ◆ is the knee" }
    } else {
        ""
    };
    let mut text = format!("\n{} p99{scale}, against requests/s{knee}\n", metric.label(true));
    for (at, line) in scatter(&points, width, HEIGHT).iter().enumerate() {
        let label = match at {
            0 => format_value(top, MetricUnit::Time),
            _ if at + 1 == HEIGHT => format_value(bottom, MetricUnit::Time),
            _ => String::new(),
        };
        let edge = if screen.plain { '|' } else { '│' };
        text += format!("{label:>room$} {edge}{line}", room = LABEL - 2).trim_end();
        text.push('\n');
    }
    let end = format!("{right:.2}");
    text + &format!("{:>LABEL$}0{end:>rest$}\n", "", rest = width.saturating_sub(1))
}

/// Names of the two targets in a comparison.
const SIDES: [&str; 2] = ["A", "B"];

/// The tables below the levels: warm against cold, open and closed loops, B against A.
pub(super) fn more_tables(sweep: &Sweep) -> Vec<Vec<Vec<String>>> {
    let pairs = sweep.cache_pairs.iter().map(|pair| pair.table());
    let curves = sweep.loop_curves.iter().map(|curve| curve.table());
    let compared = sweep.targets.iter().flat_map(|targets| &targets.levels);
    pairs.chain(curves).chain(compared.map(|level| LevelComparisons::table(level, SIDES))).collect()
}
