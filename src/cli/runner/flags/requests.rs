//! Flags for the requests of a run.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::runner::body_args::BodyArgs;
use crate::cli::values::{parse_duration, percent};
use crate::replay::ClientAbort;
use crate::replay::request::encoder::CancelPolicy;
use crate::replay::request::template::ExactOutput;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RequestArgs {
    /// Send all requests in this dialect, e.g. openai.completions [default: the trace's, or openai.chat]
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    pub(in crate::cli) dialect: Option<String>,

    /// Build prompts from words that are one token in this tokenizer.json, for exact lengths
    ///
    /// Without it, the command asks the server's /tokenize endpoint, if there is one.
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub(in crate::cli) tokenizer: Option<PathBuf>,

    /// Shorten prompts by the N tokens that the server's chat template adds
    ///
    /// `auto` measures the overhead with two short requests before the run, and also corrects for words of more than one
    /// token. With a number, no calibration request is sent, not even to /tokenize.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = overhead, help_heading = "Requests")]
    pub(in crate::cli) prompt_overhead: PromptOverheadArg,

    /// Request responses of exactly the planned length, with `ignore_eos` and `min_tokens`
    ///
    /// `auto` omits these fields for public APIs, which reject them.
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = "Requests")]
    pub(in crate::cli) exact_output: ExactOutputArg,

    /// Seed for prompt text and random draws
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Requests")]
    pub(in crate::cli) seed: u64,

    #[command(flatten)]
    pub(in crate::cli) body: BodyArgs,

    /// Disconnect this share of clients early, e.g. 20% [default: none]
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "cancel_after", help_heading = "Requests")]
    pub(in crate::cli) cancel_rate: Option<f64>,

    /// Disconnect the clients of --cancel-rate this long after sending, e.g. 2s, or after N tokens, e.g. 10tok
    #[arg(long, value_name = "DURATION|Ntok", value_parser = client_abort, requires = "cancel_rate", help_heading = "Requests")]
    pub(in crate::cli) cancel_after: Option<ClientAbort>,
}

/// Tokens that the server adds to every prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum PromptOverheadArg {
    Auto,
    Tokens(u64),
}

/// Command-line form of [`ExactOutput`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum ExactOutputArg {
    Auto,
    On,
    Off,
}

impl From<ExactOutputArg> for ExactOutput {
    fn from(exact: ExactOutputArg) -> Self {
        match exact {
            ExactOutputArg::Auto => Self::Auto,
            ExactOutputArg::On => Self::On,
            ExactOutputArg::Off => Self::Off,
        }
    }
}

impl RequestArgs {
    /// Injected client aborts.
    pub(in crate::cli) fn cancel(&self) -> Option<CancelPolicy> {
        Some(CancelPolicy { rate: self.cancel_rate?, after: self.cancel_after? })
    }
}

fn overhead(text: &str) -> Result<PromptOverheadArg, &'static str> {
    match text {
        "auto" => Ok(PromptOverheadArg::Auto),
        _ => text.parse().map(PromptOverheadArg::Tokens).map_err(|_| "expected a number of tokens, or auto"),
    }
}

fn client_abort(text: &str) -> Result<ClientAbort, String> {
    match text.strip_suffix("tok") {
        Some(number) => match number.trim().parse() {
            Ok(tokens) if tokens > 0 => Ok(ClientAbort::Tokens(tokens)),
            _ => Err("expected a number of tokens above 0".into()),
        },
        None => parse_duration(text).map(ClientAbort::After).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Gap;

    #[test]
    fn numbers_are_tokens_and_times_have_units() {
        assert_eq!((overhead("auto"), overhead("7")), (Ok(PromptOverheadArg::Auto), Ok(PromptOverheadArg::Tokens(7))));
        assert_eq!(client_abort("10tok"), Ok(ClientAbort::Tokens(10)));
        assert_eq!(client_abort("500ms"), Ok(ClientAbort::After(Gap::from_millis(500))));
        assert!(client_abort("0tok").is_err() && percent("101%").is_err());
    }
}
