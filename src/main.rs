//! Parse, run, exit code; nothing else.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    streamgauge::cli::main()
}
