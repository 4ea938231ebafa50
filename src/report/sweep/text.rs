//! A sweep for people: a row for each level, where the SLO ends, and a picture of latency against load.

use super::super::distribution::name_of;
use super::super::draw::{is_wide, printed, scatter, value};
use super::super::metric::{Metric, Unit};
use super::super::text::{Screen, aligned};
use super::{Difference, Doubt, Point, Sweep, is_of};

/// Columns of the names of figures.
const LABEL: usize = 13;
/// Lines of the picture.
const HEIGHT: usize = 10;
/// Columns of the picture.
const WIDTH: usize = 60;

/// The whole sweep.
pub fn render(sweep: &Sweep, screen: Screen) -> String {
    let mut text = String::new();
    for (name, told) in lines(sweep) {
        text += format!("{name:<LABEL$}{}", printed(&told)).trim_end();
        text.push('\n');
    }
    let table = table(sweep);
    if table.len() > 1 {
        text += &format!("\n{}", with_line(sweep, &aligned(&table), screen));
    }
    text += &picture(sweep, screen);
    if let Some(table) = differences(sweep) {
        text += &format!("\n{}", aligned(&table));
    }
    for doubt in &sweep.warnings {
        text += &format!("\nwarning: {}\n  advice: {}\n", printed(&told(doubt)), doubt.told.advice);
    }
    if screen.plain { text.replace('µ', "u") } else { text }
}

/// A doubt with the levels that it is about.
pub(super) fn told(doubt: &Doubt) -> String {
    let more = match &doubt.levels[1..] {
        [] => String::new(),
        more => format!("; likewise {}", more.join(", ")),
    };
    format!("{} ({}{more})", doubt.told.text, doubt.levels[0])
}

/// What is to be said beside the table.
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
            point.level.hypothesis.as_ref().map(|said| ("hypothesis", format!("{}: {said}", point.level.name))),
        );
    }
    lines.extend(sweep.goals.as_ref().map(|goals| ("SLO", goals.clone())));
    lines.extend(answer(sweep).map(|answer| ("answer", answer)));
    if sweep.levels.iter().any(|point| point.front) {
        lines.push(("Pareto front", named(sweep, |point| point.front) + ": output tokens/s against tokens/s per user"));
    }
    if sweep.levels.iter().any(|point| point.knee) {
        lines.push(("knee", named(sweep, |point| point.knee) + ": the most requests/s for their mean E2E (power)"));
    }
    lines
}

fn named(sweep: &Sweep, which: fn(&Point) -> bool) -> String {
    let of = |point: &Point| match point.target {
        Some(target) => format!("{} ({target})", point.level.name),
        None => point.level.name.clone(),
    };
    sweep.levels.iter().filter(|point| which(point)).map(of).collect::<Vec<_>>().join(", ")
}

/// What a search found, in words.
fn answer(sweep: &Sweep) -> Option<String> {
    let sought = sweep.plan.search.as_ref()?;
    let Some(answer) = sweep.answer else {
        return Some("none yet: the search has not ended; start it again to go on".to_owned());
    };
    let why = |level: f64| {
        let point = sweep.levels.iter().find(|point| point.level.load() == level);
        match point {
            Some(Point { not_valid, .. }) if !not_valid.is_empty() => {
                format!(", which is not valid: {}", not_valid.join("; "))
            }
            Some(Point { growth: Some(growth), .. }) => {
                format!(", where the server is saturated: {:.2} requests more in flight each second", growth.per_second)
            }
            _ => String::new(),
        }
    };
    let missed = match answer.missed {
        Some(missed) => format!("{} does not{}", sought.by.told(missed), why(missed)),
        None => "no more was allowed".to_owned(),
    };
    let doubt = if answer.sure { "" } else { ", by what was seen: too few requests to be sure" };
    Some(match answer.met {
        Some(met) => format!("{} meets it, for {}{doubt}; {missed}", sought.by.told(met), sought.sustain),
        None => format!("no level meets it: even {missed}"),
    })
}

/// The table; its first row is its head.
pub(super) fn table(sweep: &Sweep) -> Vec<Vec<String>> {
    let points = &sweep.levels;
    let named = points.iter().any(|point| !point.level.is_usual());
    let targets = sweep.plan.targets.len() > 1;
    let metrics = [Metric::TtftFromPlanned, Metric::Itl, Metric::Tpot, Metric::E2eFromPlanned];
    let metrics: Vec<(Metric, f64)> =
        metrics.into_iter().flat_map(|metric| sweep.shown.iter().map(move |percent| (metric, *percent))).collect();
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
        format!("{name} {}", name_of(*percent))
    }));
    head.extend(["tok/s".to_owned(), "tok/s/user".into()]);
    head.extend(slos.iter().map(|slo| (*slo).to_owned()));
    head.extend(sweep.goals.as_ref().map(|_| "SLO".to_owned()));
    head.push(String::new());
    let dash = || "-".to_owned();
    let row = |point: &Point| {
        let mut row = Vec::new();
        row.extend(named.then(|| point.level.name.clone()));
        row.extend([point.level.offered(), format!("{:.2}", point.summary.throughput.requests)]);
        row.extend(targets.then(|| point.target.unwrap_or_default().to_owned()));
        row.extend(metrics.iter().map(|(metric, percent)| {
            point.percentile(*metric, *percent).map_or_else(dash, |of| value(of, Unit::Time))
        }));
        row.push(value(point.summary.throughput.output_tokens, Unit::Rate));
        row.push(point.median(Metric::UserRate).map_or_else(dash, |of| value(of, Unit::Rate)));
        let share = |slo: &&str| {
            let of = point.summary.goodput.iter().find(|of| of.slo == **slo)?;
            Some(format!("{:.1} %", of.share? * 100.0))
        };
        row.extend(slos.iter().map(|slo| share(slo).unwrap_or_else(dash)));
        row.extend(sweep.goals.as_ref().map(|_| if point.meets == Some(true) { "met" } else { "missed" }.to_owned()));
        row.push(marks(point));
        row
    };
    std::iter::once(head).chain(points.iter().map(row)).collect()
}

fn marks(point: &Point) -> String {
    let failed = point.summary.requests - point.summary.outcomes.get("success").copied().unwrap_or(0);
    let marks = [
        point.front.then(|| "front".to_owned()),
        point.knee.then(|| "knee".to_owned()),
        point.sustained.then(|| "sustained".to_owned()),
        point.growth.map(|growth| format!("saturated +{:.2}/s", growth.per_second)),
        (failed > 0).then(|| format!("{failed} failed")),
        (!point.not_valid.is_empty()).then(|| "not valid".to_owned()),
    ];
    marks.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The table with a line below the last level of each series that meets the SLO, as all before it do.
fn with_line(sweep: &Sweep, table: &str, screen: Screen) -> String {
    let mut lines: Vec<String> = table.lines().map(str::to_owned).collect();
    let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let points = &sweep.levels;
    let begins = |at: usize| at == 0 || !is_of(&points[at - 1], &points[at]);
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

/// TTFT at its 99th percentile, or E2E where nothing streams, against the load that was carried.
fn picture(sweep: &Sweep, screen: Screen) -> String {
    let metrics = [Metric::TtftFromPlanned, Metric::E2eFromPlanned];
    let drawn = |metric: Metric| {
        let mark = |point: &Point| match point.target.and_then(|target| target.chars().next()) {
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
        let of =
            |point: &Point| Some((point.summary.throughput.requests, point.percentile(metric, 99.0)?, mark(point)));
        (metric, sweep.levels.iter().filter_map(of).collect::<Vec<_>>())
    };
    let Some((metric, points)) = metrics.map(drawn).into_iter().find(|(_, points)| points.len() > 2) else {
        return String::new();
    };
    let most = |of: fn(&(f64, f64, char)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (right, top) = (most(|point| point.0), most(|point| point.1));
    let least = points.iter().map(|point| point.1).fold(top, f64::min);
    let width = screen.width.saturating_sub(LABEL).min(WIDTH);
    let (bottom, scale) = if is_wide(least, top) { (least, ", logarithmic") } else { (0.0, "") };
    let knee = if points.iter().any(|point| point.2 == '◆' || point.2 == '#') {
        if screen.plain { "; # is the knee" } else { "; ◆ is the knee" }
    } else {
        ""
    };
    let mut text = format!("\n{} p99{scale}, against requests/s{knee}\n", metric.label(true));
    for (at, line) in scatter(&points, width, HEIGHT).iter().enumerate() {
        let label = match at {
            0 => value(top, Unit::Time),
            _ if at + 1 == HEIGHT => value(bottom, Unit::Time),
            _ => String::new(),
        };
        let edge = if screen.plain { '|' } else { '│' };
        text += format!("{label:>room$} {edge}{line}", room = LABEL - 2).trim_end();
        text.push('\n');
    }
    let end = format!("{right:.2}");
    text + &format!("{:>LABEL$}0{end:>rest$}\n", "", rest = width.saturating_sub(1))
}

/// The table of two targets held against each other.
pub(super) fn differences(sweep: &Sweep) -> Option<Vec<Vec<String>>> {
    let passes = sweep.differences.iter().map(|of| of.pairs.len()).max()?;
    let mut head = vec!["B against A".to_owned(), String::new(), "A".into(), "B".into(), "change".into()];
    head.extend((1..=passes).map(|pass| format!("pass {pass}")));
    let percent = |change: &f64| format!("{:+.1} %", change * 100.0);
    let row = |of: &Difference| {
        let metric = Metric::ALL.into_iter().find(|metric| metric.key() == of.metric);
        let (name, unit) = metric.map_or((of.metric, Unit::Rate), |metric| (metric.label(true), metric.unit()));
        let mut row = vec![of.level.clone(), format!("{name} {}", of.stat)];
        row.extend([value(of.a, unit), value(of.b, unit), percent(&of.change)]);
        row.extend((0..passes).map(|pass| of.pairs.get(pass).map_or("-".to_owned(), percent)));
        row
    };
    Some(std::iter::once(head).chain(sweep.differences.iter().map(row)).collect())
}
