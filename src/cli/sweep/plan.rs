//! From what was typed to what is to be run, and what of that is done already.

use std::path::Path;

use serde_json::Value;

use super::Args;
use super::level_args::{DEFAULT_DURATION, LevelCommand};
use super::matrix;
use crate::cli::runner::flags::split_model;
use crate::cli::trace_input::{digest, ensure_rereadable};
use crate::cli::values::parse_duration;
use crate::measure::slo::criteria::Criteria;
use crate::measure::time::Gap;
use crate::replay::plan::max_load_search::MaxLoadSearch;
use crate::replay::sender::target::TargetUrl;
use crate::report::source_reader::SourceReader;
use crate::report::sweep::file::{
    CacheState, FILE, FlagValues, LoadAxis, SearchSpec, SweepFile, SweepLevel, SweepRun, SweepSpec, VERSION,
};
use crate::stats::hash::mix;
use crate::trace::rng::name_hash;
use crate::trace_file::segment_list::RUN_FILE;

/// Levels above are not looked for.
const MAX_RATE: f64 = 1e6;
const MAX_SLOTS: f64 = 65_536.0;

/// The runs of a sweep.
pub(super) struct SweepPlan {
    pub(super) plan: SweepSpec,
    /// The goals and the search for the highest load that holds them.
    pub(super) goals: Option<(Criteria, MaxLoadSearch)>,
    /// Header lines, which are written nowhere.
    headers: Vec<String>,
}

/// One run that is to be done.
#[derive(Clone, Debug)]
pub(super) struct RunSpec {
    pub(super) level: SweepLevel,
    pub(super) target: usize,
    pub(super) pass: u32,
    pub(super) sustained: bool,
}

impl SweepPlan {
    /// Reads what was typed.
    ///
    /// # Errors
    /// On contradictory flags; the text names the right ones.
    pub(super) fn of(args: &Args) -> Result<Self, String> {
        let mut flags = args.line.0.clone();
        let headers = flags.remove("header").unwrap_or_default();
        let header_names = headers.iter().filter_map(|line| Some(line.split_once(':')?.0.trim().to_ascii_lowercase()));
        let mut targets = vec![flags.remove("target").unwrap_or_default()];
        targets.extend(args.versus.iter().map(|versus| vec![versus.clone()]));
        let shown = |text: &String| {
            let (model, url) = split_model(text);
            let target = url.parse::<TargetUrl>()?;
            Ok(model.map_or_else(|| target.to_string(), |model| format!("{model}={target}")))
        };
        let targets = targets.iter().map(|list| list.iter().map(shown).collect::<Result<Vec<_>, &'static str>>());
        let targets = targets.collect::<Result<Vec<_>, _>>().map_err(|error| format!("a target: {error}"))?;
        let trace = args.trace.as_ref().map(|trace| trace.display().to_string());
        if trace.is_none() && !flags.contains_key("requests") && !flags.contains_key("duration") {
            flags.insert("duration".to_owned(), vec![DEFAULT_DURATION.to_owned()]);
        }
        let by = if args.concurrencies.is_some() { LoadAxis::Concurrency } else { LoadAxis::Rate };
        let typed = args.rates.as_ref().or(args.concurrencies.as_ref());
        let listed = typed.map(|levels| levels.list.clone()).unwrap_or_default();
        let levels = match &args.matrix {
            Some(path) => matrix::read(path, trace.is_some())?,
            None if args.find_max.is_some() => Vec::new(),
            None => listed.iter().map(|load| level(by, *load)).collect(),
        };
        let mut goals = None;
        if let Some(sought) = &args.find_max {
            let judged = flags.contains_key("slo");
            if sought.need_slos() && !judged {
                return Err("--find-max asks for goodput; remedy: define with --slo what a good request is".to_owned());
            }
            if !args.fail_if.is_empty() {
                return Err("--fail-if judges listed levels; --find-max has its own condition".to_owned());
            }
            let whole = by == LoadAxis::Concurrency;
            let start = listed.first().copied().unwrap_or(1.0);
            // One number is where to begin.
            let bound = typed.map(|levels| levels.highest).filter(|most| *most > start);
            let most = bound.unwrap_or(if whole { MAX_SLOTS } else { MAX_RATE });
            goals = Some((sought.clone(), MaxLoadSearch { start, max_level: most, integer_levels: whole }));
        }
        let sought = goals.as_ref().map(|(goals, search)| SearchSpec {
            goals: goals.to_string(),
            by,
            start: search.start,
            most: search.max_level,
            sustain: humantime::format_duration(args.sustain.into()).to_string(),
        });
        if args.versus.is_none() && (args.rounds.is_some() || args.pause != Gap::ZERO) {
            return Err("--rounds and --pause are for --versus".to_owned());
        }
        let plan = SweepSpec {
            verb: if trace.is_some() { "replay" } else { "load" }.to_owned(),
            trace_digest: match &args.trace {
                Some(trace) => {
                    ensure_rereadable(trace).and_then(|()| digest(trace)).map_err(|error| format!("{error:#}"))?
                }
                None => None,
            },
            trace,
            targets,
            header_names: header_names.collect(),
            flags,
            levels,
            search: sought,
        };
        Ok(Self { plan, goals, headers })
    }

    /// All runs of the levels that are listed. Two targets take turns as A B B A A B, so that what drifts meets both alike.
    pub(super) fn listed_runs(&self, rounds: u32) -> Vec<RunSpec> {
        let two = self.plan.targets.len() > 1;
        let turns: Vec<(usize, u32)> = match two {
            false => vec![(0, 1)],
            true => (1..=rounds)
                .flat_map(|pass| [(usize::from(pass % 2 == 0), pass), (usize::from(pass % 2 == 1), pass)])
                .collect(),
        };
        let of = |level: &SweepLevel| {
            let level = level.clone();
            turns.clone().into_iter().map(move |(target, pass)| RunSpec {
                level: level.clone(),
                target,
                pass,
                sustained: false,
            })
        };
        self.plan.levels.iter().flat_map(of).collect()
    }

    /// Seconds that a run sends, if its flags limit the time.
    pub(super) fn run_seconds(&self, run: &RunSpec) -> Option<f64> {
        let flags = self.level_flags(&self.run_entry(run), Path::new(""));
        let first = |flag: &str| flags.get(flag).and_then(|values| values.first());
        let duration = first("duration").and_then(|text| parse_duration(text).ok()).map(Gap::as_secs);
        let by_requests = self.requests(run).zip(run.level.rate).map(|(requests, rate)| requests as f64 / rate);
        match (duration, by_requests) {
            (Some(duration), Some(by_requests)) => Some(duration.min(by_requests)),
            (duration, by_requests) => duration.or(by_requests.filter(|_| self.plan.trace.is_none())),
        }
    }

    /// Requests that end a run, if its flags limit them.
    pub(super) fn requests(&self, run: &RunSpec) -> Option<u64> {
        self.level_flags(&self.run_entry(run), Path::new("")).get("requests")?.first()?.parse().ok()
    }

    /// The run of a search.
    pub(super) fn search_run(&self, load: f64, pass: u32, sustained: bool) -> RunSpec {
        let by = self.plan.search.as_ref().map_or(LoadAxis::Rate, |sought| sought.by);
        RunSpec { level: level(by, load), target: 0, pass, sustained }
    }

    /// The sweep file's entry of a completed run.
    pub(super) fn run_entry(&self, wish: &RunSpec) -> SweepRun {
        let RunSpec { level, target, pass, sustained } = wish;
        let two = self.plan.targets.len() > 1;
        let side = if two { ["-a", "-b"][(*target).min(1)] } else { "" };
        let again = if two || *pass > 1 { format!("-{pass}") } else { String::new() };
        let long = if *sustained { "-sustained" } else { "" };
        let given = self.plan.flags.get("seed").and_then(|seed| seed.first()?.parse().ok()).unwrap_or(0);
        // New texts in every pass of every level, or a server's cache would know them; the same for A and B.
        let seed = mix(given ^ name_hash(&format!("{}#{pass}", level.name)));
        let mut run = SweepRun {
            folder: format!("runs/{}{side}{again}{long}", level.name),
            level: level.clone(),
            target: *target,
            pass: *pass,
            sustained: *sustained,
            seed,
            digest: String::new(),
        };
        let of = serde_json::to_vec(&(&run, &self.plan.flags, &self.plan.targets[*target], &self.plan.trace_digest));
        run.digest = format!("blake3:{}", blake3::hash(&of.unwrap_or_default()).to_hex());
        run
    }

    /// The command line of a run.
    pub(super) fn level_flags(&self, run: &SweepRun, folder: &Path) -> FlagValues {
        let mut flags = self.plan.flags.clone();
        flags.extend(run.level.flags.clone());
        // One of these flags ends a level: the level's own replaces the sweep's.
        let ends = ["requests", "duration"].map(|flag| run.level.flags.contains_key(flag));
        match ends {
            [true, false] => _ = flags.remove("duration"),
            [false, true] => _ = flags.remove("requests"),
            _ => {}
        }
        flags.insert("target".to_owned(), self.plan.targets[run.target].clone());
        flags.insert("seed".to_owned(), vec![run.seed.to_string()]);
        if !self.headers.is_empty() {
            flags.insert("header".to_owned(), self.headers.clone());
        }
        flags.insert("out".to_owned(), vec![folder.join(&run.folder).display().to_string()]);
        if let Some(rate) = run.level.rate {
            flags.insert("rate".to_owned(), vec![rate.to_string()]);
        }
        if let Some(slots) = run.level.concurrency {
            flags.insert("concurrency".to_owned(), vec![slots.to_string()]);
            if self.plan.trace.is_some() {
                flags.insert("as-fast-as-possible".to_owned(), Vec::new());
            }
        }
        if run.level.cache == CacheState::Warm {
            flags.insert("warm-prefixes".to_owned(), Vec::new());
        }
        // A flag without a value is one that takes none: limits on gaps bring no SLO along.
        for slo in self.goals.iter().flat_map(|(goals, _)| goals.slos()) {
            flags.entry("slo".to_owned()).or_default().push(slo.to_string());
        }
        if let Some(sought) = self.plan.search.as_ref().filter(|_| run.sustained) {
            flags.remove("requests");
            flags.insert("duration".to_owned(), vec![sought.sustain.clone()]);
            if self.plan.trace.is_some() {
                flags.insert("loop".to_owned(), Vec::new());
            }
        }
        flags
    }

    /// Reads a command line.
    pub(super) fn parse_level(&self, flags: &FlagValues, level: &SweepLevel) -> Result<LevelCommand, String> {
        LevelCommand::read(self.plan.trace.as_deref(), flags).map_err(|error| format!("{}: {error}", level.name))
    }

    /// Loads the folder's sweep if it has the same plan, or creates one.
    ///
    /// # Errors
    /// If it holds another sweep, or runs that belong to no sweep.
    pub(super) fn load_or_create(&self, folder: &Path) -> Result<SweepFile, String> {
        let shown = folder.display();
        let Some(mut file) = SweepFile::read(folder)? else {
            if folder.join("runs").exists() {
                return Err(format!("{shown} holds runs and no {FILE}; name another --out"));
            }
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let plan = self.plan.clone();
            return Ok(SweepFile {
                streamgauge_sweep: VERSION,
                version,
                plan,
                runs: Vec::new(),
                goals: None,
                goodput: None,
                answer: None,
                ended_at: None,
            });
        };
        let plans = [&file.plan, &self.plan].map(|plan| serde_json::to_value(plan).unwrap_or_default());
        if let Some(difference) = first_difference("plan", &plans[0], &plans[1]) {
            return Err(format!(
                "{shown} is of a sweep with another plan: {difference}. Name another --out, or type what it was"
            ));
        }
        file.runs.retain(|run| folder.join(&run.folder).join(RUN_FILE).is_file());
        // An invalid run is repeated, because its cause may be gone. A search resumes from the last conclusive run.
        let is_void = |run: &SweepRun| {
            SourceReader::open(&folder.join(&run.folder)).is_ok_and(|opened| !opened.source.not_valid.is_empty())
        };
        // A search that this machine ended goes on, maybe from another machine.
        file.answer = file.answer.filter(|answer| answer.not_measured.is_none());
        file.ended_at = None;
        match (&self.goals, file.answer) {
            (None, _) => file.runs.retain(|run| !is_void(run)),
            (Some(_), None) => file.runs.retain(|run| !is_void(run)),
            (Some(_), Some(_)) => {}
        }
        Ok(file)
    }
}

fn level(by: LoadAxis, load: f64) -> SweepLevel {
    let (rate, slots) = match by {
        LoadAxis::Rate => (Some(load), None),
        LoadAxis::Concurrency => (None, Some(load as u32)),
    };
    SweepLevel { name: SweepLevel::default_name(by, load), rate, concurrency: slots, ..SweepLevel::default() }
}

/// The first place where two values are not alike, in words.
fn first_difference(place: &str, was: &Value, is: &Value) -> Option<String> {
    let none = Value::Null;
    match (was, is) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let mut parts = keys.map(|key| (key, a.get(key).unwrap_or(&none), b.get(key).unwrap_or(&none)));
            parts.find_map(|(key, was, is)| first_difference(&format!("{place}.{key}"), was, is))
        }
        (Value::Array(a), Value::Array(b)) => {
            let parts =
                (0..a.len().max(b.len())).map(|at| (at, a.get(at).unwrap_or(&none), b.get(at).unwrap_or(&none)));
            parts.into_iter().find_map(|(at, was, is)| first_difference(&format!("{place}[{at}]"), was, is))
        }
        _ if was == is => None,
        _ => Some(format!("{place} was {was} and is {is}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_is_named_with_its_place() {
        let was = json!({"flags": {"isl": ["128"]}, "levels": [{"rate": 1.0}]});
        let difference = |is: Value| first_difference("plan", &was, &is);
        assert_eq!(difference(was.clone()), None);
        let changed = difference(json!({"flags": {"isl": ["256"]}, "levels": [{"rate": 1.0}]}));
        assert_eq!(changed.as_deref(), Some("plan.flags.isl[0] was \"128\" and is \"256\""));
        let more = difference(json!({"flags": {"isl": ["128"]}, "levels": [{"rate": 1.0}, {"rate": 2.0}]}));
        assert_eq!(more.as_deref(), Some("plan.levels[1] was null and is {\"rate\":2.0}"));
        let less = difference(json!({"levels": [{"rate": 1.0}]}));
        assert_eq!(less.as_deref(), Some("plan.flags was {\"isl\":[\"128\"]} and is null"));
    }
}
