//! The command line of a level: that of `streamgauge load`, or of `replay` with a trace. A user can so repeat a level by
//! hand, and a sweep has every flag of both.

use clap::builder::Resettable;
use clap::{ArgMatches, Args as _, Command, FromArgMatches, Id, parser::ValueSource};

use crate::cli::runner::flags::RunnerArgs;
use crate::cli::runner::{PreparedRun, SetupError, WorkloadSpec, prepare};
use crate::cli::{load, replay};
use crate::report::sweep::file::FlagValues;

/// Duration of a level of `load` without a flag.
pub(super) const DEFAULT_DURATION: &str = "30s";
/// Flags that a sweep sets itself, or that apply to a single run.
const EXCLUDED_FLAGS: [&str; 13] = [
    "as-fast-as-possible",
    "concurrency",
    "fail-if",
    "json",
    "loop",
    "out",
    "rate",
    "shard",
    "speed",
    "stages",
    "start-at",
    "trace",
    "upload",
];
/// Runner flags that a row of a matrix may have: they change the load, not its target or its evaluation.
const MATRIX_ROW_FLAGS: [&str; 9] = [
    "rate",
    "concurrency",
    "warmup",
    "cooldown",
    "dialect",
    "cancel-rate",
    "cancel-after",
    "connections",
    "exact-output",
];

/// The flags of `load` and `replay` on the command line.
#[derive(Clone, Debug, Default)]
pub(super) struct LevelArgs(pub(super) FlagValues);

fn load_command() -> Command {
    load::Args::augment_args(Command::new("streamgauge load").no_binary_name(true))
}

fn replay_command() -> Command {
    replay::Args::augment_args(Command::new("streamgauge replay").no_binary_name(true))
}

fn names(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter_map(|arg| arg.get_long())
}

impl clap::Args for LevelArgs {
    fn augment_args(mut command: Command) -> Command {
        let (load, replay) = (load_command(), replay_command());
        for arg in load.get_arguments().chain(replay.get_arguments()) {
            let (Some(name), known) = (arg.get_long(), names(&load).collect::<Vec<_>>()) else { continue };
            let there = names(&command).any(|other| other == name);
            if there || EXCLUDED_FLAGS.contains(&name) {
                continue;
            }
            // The level's own command line reports conflicts and missing flags.
            let mut arg = arg.clone().conflicts_with(Resettable::<Id>::Reset).requires(Resettable::<Id>::Reset);
            if name == "duration" {
                let usual = format!("[default: {DEFAULT_DURATION}, or to the end of --requests or of the TRACE]");
                arg = arg.help(format!("Send for this time at each level {usual}"));
            }
            if !known.contains(&name) {
                arg = arg.help_heading("With a TRACE");
            }
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LevelArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = FlagValues::new();
        let (load, replay) = (load_command(), replay_command());
        for arg in load.get_arguments().chain(replay.get_arguments()) {
            let (id, Some(name)) = (arg.get_id().as_str(), arg.get_long()) else { continue };
            if EXCLUDED_FLAGS.contains(&name) || matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let texts = matches.get_raw(id).into_iter().flatten().map(|text| text.to_string_lossy().into_owned());
            let takes = arg.get_action().takes_values();
            flags.insert(name.to_owned(), if takes { texts.collect() } else { Vec::new() });
        }
        Ok(Self(flags))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flags that a row of a matrix may have, each with whether it takes a value.
pub(super) fn matrix_row_flags(with_trace: bool) -> Vec<(String, bool)> {
    let of_sending = RunnerArgs::augment_args(Command::new(""));
    let command = if with_trace { replay_command() } else { load_command() };
    let fits = |name: &str| {
        MATRIX_ROW_FLAGS.contains(&name) || !EXCLUDED_FLAGS.contains(&name) && names(&of_sending).all(|of| of != name)
    };
    let flag = |arg: &clap::Arg| Some((arg.get_long()?.to_owned(), arg.get_action().takes_values()));
    command.get_arguments().filter_map(flag).filter(|(name, _)| fits(name)).collect()
}

/// A level's command line, read.
pub(super) enum LevelCommand {
    Load(Box<load::Args>),
    Replay(Box<replay::Args>),
}

impl LevelCommand {
    /// Reads flags with their values.
    pub(super) fn read(trace: Option<&str>, flags: &FlagValues) -> Result<Self, String> {
        let mut line: Vec<String> = Vec::new();
        for (flag, values) in flags {
            line.extend(values.iter().map(|value| format!("--{flag}={value}")));
            line.extend(values.is_empty().then(|| format!("--{flag}")));
        }
        line.extend(trace.into_iter().flat_map(|trace| ["--".to_owned(), trace.to_owned()]));
        let message_of = |error: clap::Error| {
            let text = error.to_string();
            let message = text.split("\n\nUsage").next().unwrap_or(&text);
            message.trim_start_matches("error: ").split("\n\nFor more").next().unwrap_or(message).trim().to_owned()
        };
        let (command, is_load) = if trace.is_some() { (replay_command(), false) } else { (load_command(), true) };
        let matches = command.try_get_matches_from(line).map_err(message_of)?;
        Ok(match is_load {
            true => Self::Load(Box::new(load::Args::from_arg_matches(&matches).map_err(message_of)?)),
            false => Self::Replay(Box::new(replay::Args::from_arg_matches(&matches).map_err(message_of)?)),
        })
    }

    pub(super) fn sending(&self) -> &RunnerArgs {
        match self {
            Self::Load(args) => &args.sending,
            Self::Replay(args) => &args.sending,
        }
    }

    fn workload_spec(&self) -> anyhow::Result<WorkloadSpec> {
        match self {
            Self::Load(args) => args.workload_spec(),
            Self::Replay(args) => args.workload_spec(),
        }
    }

    /// Everything that its run needs.
    pub(super) fn prepare(&self) -> Result<PreparedRun, SetupError> {
        prepare(self.sending(), self.workload_spec().map_err(SetupError::Usage)?)
    }
}
