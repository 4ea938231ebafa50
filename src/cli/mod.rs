//! The command line: one file per verb.
//!
//! stdout carries data, stderr carries messages. Exit codes are 0 (success), 1 (failure) and 2 (wrong usage or
//! configuration); a verb may have more.

mod compare;
mod completions;
mod config;
mod demo;
mod descriptors;
mod doctor;
mod effective_config;
mod exit_code;
mod help;
pub mod inspect;
mod load;
pub mod logging;
mod manual;
mod parallel;
mod plan;
mod production;
mod proxy;
mod replay;
mod report;
pub mod runner;
mod running_config;
mod schema;
mod service_manager;
mod signals;
mod sim;
mod status_block;
mod successor;
mod sweep;
mod terminal;
mod tool_report;
mod top;
mod trace;
mod trace_input;
mod twin;
mod values;
mod verb_help;

use std::process::ExitCode;

use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use exit_code::EXIT_USAGE;
use terminal::eprint_line;

use crate::config::{ConfigError, RawSettings};
use crate::proxy::StartError;

/// Version with the commit and the target of the build.
const LONG_VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("STREAMGAUGE_BUILD"), ", ", env!("STREAMGAUGE_TARGET"), ")");

/// Measure the token streams of LLM inference servers without changing them
///
/// A reverse proxy in front of an OpenAI-compatible server forwards every byte unchanged and timestamps every streamed
/// token on arrival. It exports time to first token, inter-token latency and goodput as Prometheus metrics, OTLP metrics
/// and OTLP traces. A load generator replays traces or sends synthetic load, and a report evaluates the results.
#[derive(Parser)]
#[command(name = "streamgauge", version, long_version = LONG_VERSION, propagate_version = true, max_term_width = 110)]
#[command(disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Demo(demo::Args),
    Proxy(Box<proxy::Args>),
    Inspect(inspect::Args),
    Replay(Box<replay::Args>),
    Load(Box<load::Args>),
    Sweep(Box<sweep::Args>),
    Report(report::Args),
    Compare(compare::Args),
    Plan(plan::Args),
    /// A capture is a trace, so its verbs have both names.
    #[command(visible_alias = "capture")]
    Trace(Box<trace::Args>),
    Twin(twin::Args),
    Sim(Box<sim::Args>),
    Config(config::Args),
    Doctor(Box<doctor::Args>),
    Schema(schema::Args),
    Top(top::Args),
    Completions(completions::Args),
    Help(manual::Args),
}

/// Parses the command line, runs the verb, and gives the process's exit code.
pub fn main() -> ExitCode {
    let cli = match command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let kin = std::env::args_os()
                .nth(1)
                .is_some_and(|verb| runner::flag_aliases::VERBS_WITH_ALIASES.iter().any(|kin| verb == *kin));
            if let Some(answer) = runner::flag_aliases::suggest(&error).filter(|_| kin) {
                eprint_line(&answer);
                return ExitCode::from(EXIT_USAGE);
            }
            // Help and version come here too, and go to stdout. A closed pipe leaves no output for an error.
            error.print().ok();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE));
        }
    };
    let done = match cli.verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Proxy(args) => proxy::run(*args),
        Verb::Inspect(args) => inspect::run(&args),
        Verb::Replay(args) => replay::run(&args),
        Verb::Load(args) => load::run(&args),
        Verb::Sweep(args) => sweep::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Compare(args) => compare::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Trace(args) => trace::run(&args),
        Verb::Twin(args) => twin::run(&args),
        Verb::Sim(args) => sim::run(*args),
        Verb::Config(args) => config::run(args),
        Verb::Doctor(args) => doctor::run(*args),
        Verb::Schema(args) => schema::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Completions(args) => completions::run(&args),
        Verb::Help(args) => manual::run(&args),
    };
    done.unwrap_or_else(|error| {
        eprint_line(&format!("error: {error:#}"));
        if is_config_error(&error) { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
    })
}

/// True if something in the configuration has to change before the same command can succeed.
fn is_config_error(error: &anyhow::Error) -> bool {
    let start = error.downcast_ref::<StartError>();
    error.is::<ConfigError>() || start.is_some_and(StartError::is_config_error)
}

/// The whole command line.
fn command() -> Command {
    let with_defaults = RawSettings::add_defaults_to_help;
    help::add(Cli::command().mut_subcommand("proxy", with_defaults).mut_subcommand("doctor", with_defaults))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
