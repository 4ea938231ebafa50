//! Runs the levels of a sweep one after the other.

use std::fs;
use std::thread;

use anyhow::Context as _;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::Args;
use super::forecast::time_left;
use super::plan::{RunSpec, SweepPlan};
use crate::cli::exit_code::EXIT_INVALID_RUN;
use crate::cli::runner::execute;
use crate::cli::signals::StopSignals;
use crate::cli::terminal::eprint_line;
use crate::clock::Clock;
use crate::measure::slo::criteria::Criteria;
use crate::measure::time::Gap;
use crate::replay::plan::max_load_search::{LevelTrial, MaxLoadSearch, SearchStep};
use crate::report::sweep::file::{FlagValues, SearchOutcome, SweepFile};
use crate::report::sweep::{LevelResult, read_run};
use crate::trace_file::segment_list::RUN_FILE;

/// Why no more is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepStop {
    /// All is done.
    Done,
    /// A signal stopped the sweep.
    Stopped,
    /// A run could not be made; the exit code.
    Failed(u8),
}

/// A sweep that goes on.
pub(super) struct SweepRunner<'a> {
    pub(super) args: &'a Args,
    pub(super) outline: &'a SweepPlan,
    pub(super) file: SweepFile,
    pub(super) runtime: Runtime,
    pub(super) stop: StopSignals,
}

impl SweepRunner<'_> {
    /// Runs every level that is listed, or those up to the second that misses the SLO.
    pub(super) fn run_listed(&mut self) -> anyhow::Result<SweepStop> {
        let wishes = self.outline.listed_runs(self.args.rounds());
        let left = |at: usize| time_left(wishes[at..].iter().map(|run| self.outline.run_seconds(run)), self.args.pause);
        let left: Vec<Option<String>> = (0..wishes.len()).map(left).collect();
        let mut missed: Vec<String> = Vec::new();
        for (at, wish) in wishes.iter().enumerate() {
            let left = left[at].as_ref().map_or_else(String::new, |left| format!(", {left}"));
            let place = format!("{} of {}{left}", at + 1, wishes.len());
            let is_new = !self.is_done(wish);
            let mut measured = match self.run_once(wish, &place)? {
                Ok(measured) => measured,
                Err(over) => return Ok(over),
            };
            if self.misses(&mut measured) {
                missed.push(wish.level.name.clone());
            }
            if missed.len() > 1 && !self.args.all && self.args.versus.is_none() && at + 1 < wishes.len() {
                eprint_line(&format!("{}: the second level that misses the SLO; --all runs the rest", wish.level.name));
                self.file.ended_at = Some(wish.level.name.clone());
                self.file.write(&self.args.out).context("cannot write sweep.json")?;
                break;
            }
            if is_new && at + 1 < wishes.len() && self.args.pause > Gap::ZERO && !self.pause() {
                return Ok(SweepStop::Stopped);
            }
        }
        Ok(SweepStop::Done)
    }

    /// True if a level of --rates or --concurrencies misses the SLO. The rows of a matrix are no ascending load.
    fn misses(&self, measured: &mut LevelResult) -> bool {
        if self.args.matrix.is_some() || !measured.not_valid().is_empty() {
            return false;
        }
        let goals = self.file.listed_goals();
        let seen = measured.goal_results(&goals);
        let is_missed = measured.growth.is_some() || seen.iter().any(|seen| !seen.is_currently_met());
        !seen.is_empty() && is_missed
    }

    /// Waits between two runs; `false` if a signal stopped the sweep.
    fn pause(&mut self) -> bool {
        let (clock, pause) = (Clock::Monotonic, self.args.pause);
        let stop = &mut self.stop;
        self.runtime.block_on(async {
            tokio::select! {
                () = clock.sleep(pause) => true,
                () = stop.wait() => false,
            }
        })
    }

    fn is_done(&self, wish: &RunSpec) -> bool {
        let digest = self.outline.run_entry(wish).digest;
        self.file.runs.iter().any(|done| done.digest == digest)
    }

    /// Runs what the search asks for.
    pub(super) fn search(&mut self, goals: &Criteria, search: &MaxLoadSearch) -> anyhow::Result<SweepStop> {
        let mut trials: Vec<LevelTrial> = Vec::new();
        let mut answered = 0.0;
        loop {
            let (level, sustained) = match search.next(&trials) {
                SearchStep::Measure(level) => (level, false),
                SearchStep::Sustain(level) => (level, true),
                SearchStep::End(found) => {
                    if found.met.is_none() && !trials.iter().any(|trial| trial.valid) {
                        eprint_line("error: no run is valid, so nothing is known of the server");
                        return Ok(SweepStop::Failed(EXIT_INVALID_RUN));
                    }
                    self.file.answer = Some(SearchOutcome {
                        met: found.met,
                        missed: found.missed,
                        not_measured: found.not_measured,
                        low: found.low,
                        high: found.high,
                        sure: found.confident,
                    });
                    self.file.write(&self.args.out).context("cannot write sweep.json")?;
                    return Ok(SweepStop::Done);
                }
            };
            let pass = trials.iter().filter(|trial| trial.level == level).count() as u32 + 1;
            let wish = self.outline.search_run(level, pass, sustained);
            let place = if sustained {
                "the answer so far, for longer".to_owned()
            } else {
                let most = search.bounds().trials;
                let left = (trials.len()..most).map(|_| self.outline.run_seconds(&wish));
                let left = time_left(left, Gap::ZERO).map_or_else(String::new, |left| format!(", {left} at most"));
                format!("try {} of at most {most}{left}", trials.len() + 1)
            };
            let mut measured = match self.run_once(&wish, &place)? {
                Ok(measured) => measured,
                Err(over) => return Ok(over),
            };
            let seen = measured.goal_results(goals);
            let silent = measured.successes_per_second() == 0.0;
            // A server without any response, after a lower level that had some, is overloaded.
            let drowned = silent && answered > 0.0 && level > answered;
            if !drowned && (silent || seen.iter().any(|seen| seen.of == 0.0)) {
                eprint_line("error: no request can be judged: none was answered in full, or no objective is for them");
                return Ok(SweepStop::Failed(EXIT_INVALID_RUN));
            }
            if !silent {
                answered = level.max(answered);
            }
            let saturated = drowned || measured.growth.is_some();
            let valid = drowned || measured.not_valid().is_empty();
            trials.push(LevelTrial { level, seen, saturated, valid, sustained });
        }
    }

    /// One run, if it is not done yet.
    fn run_once(&mut self, wish: &RunSpec, place: &str) -> anyhow::Result<Result<LevelResult, SweepStop>> {
        let run = self.outline.run_entry(wish);
        let folder = self.args.out.join(&run.folder);
        if self.file.runs.iter().any(|done| done.digest == run.digest) {
            return Ok(Ok(read_run(&folder, &[], &self.file.listed_goals())?));
        }
        // Remove the files of an incomplete run: this folder is the sweep's own.
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        eprint_line(&format!("{} ({place})", run.folder.trim_start_matches("runs/")));
        if let Some(over) = self.send(&self.outline.level_flags(&run, &self.args.out), wish)? {
            return Ok(Err(over));
        }
        // Without it the next start would not know the run, and a report not its warm-up.
        anyhow::ensure!(folder.join(RUN_FILE).is_file(), "the sweep ends: {} has no {RUN_FILE}", folder.display());
        self.file.runs.push(run);
        self.file.write(&self.args.out).context("cannot write sweep.json")?;
        let measured = read_run(&folder, &[], &self.file.listed_goals())?;
        let grown = measured.growth.map_or(String::new(), |growth| {
            format!(": saturated, {:.2} requests more in flight each second", growth.per_second)
        });
        eprint_line(&format!("{}: {:.2} requests/s{grown}", wish.level.name, measured.successes_per_second()));
        Ok(Ok(measured))
    }

    /// Sends what a command line asks for; what it gives back ends the sweep.
    fn send(&mut self, flags: &FlagValues, wish: &RunSpec) -> anyhow::Result<Option<SweepStop>> {
        let typed = self.outline.parse_level(flags, &wish.level).map_err(anyhow::Error::msg)?;
        let (ready, waiting) = oneshot::channel();
        // A separate task, because it may wait long for a server; a signal abandons it.
        let prepare = move || ready.send((typed.prepare(), typed)).is_ok();
        thread::Builder::new().name("prepare".to_owned()).spawn(prepare).context("cannot start a thread")?;
        let waited = self.runtime.block_on(async {
            tokio::select! {
                prepared = waiting => Some(prepared),
                () = self.stop.wait() => None,
            }
        });
        let Some(prepared) = waited else { return Ok(Some(SweepStop::Stopped)) };
        let (prepared, typed) = prepared.context("the preparation of a run has panicked")?;
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => {
                let (message, code) = refused.message_and_exit_code();
                eprint_line(&message);
                return Ok(Some(SweepStop::Failed(code)));
            }
        };
        let sent = self.runtime.block_on(execute(typed.sending(), prepared, &mut self.stop))?;
        sent.print_invalid();
        Ok(sent.ended.stopped.then_some(SweepStop::Stopped))
    }
}
