//! Parse, run, exit code; nothing else.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// A request's record is made on one thread and freed on another, which glibc's allocator does poorly: it made a short
/// request a tenth dearer.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    streamgauge::cli::main()
}
