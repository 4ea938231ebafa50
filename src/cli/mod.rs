//! What a user may type: one file per verb.
//!
//! stdout is data, stderr is talk.

pub mod inspect;
mod sim;

use std::io::{Write, stderr};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures the token streams of LLM inference servers and does not change them.
#[derive(Debug, Parser)]
#[command(name = "streamgauge", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Sim(sim::Args),
}

/// Parses the command line, runs the verb, and gives the process's exit code: 0 done, 1 failed, 2 wrong usage.
pub fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Sim(args) => sim::run(args),
    };
    done.unwrap_or_else(|error| {
        // If stderr is gone, the exit code still tells.
        writeln!(stderr(), "error: {error:#}").ok();
        ExitCode::FAILURE
    })
}
