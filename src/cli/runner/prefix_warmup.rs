//! Warms the servers' prefix caches before a run: each prefix goes to every target, outside the figures.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::error::SetupError;
use crate::measure::record::Outcome;
use crate::measure::time::Gap;
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::plan::schedule::ScheduledRequest;
use crate::replay::result::row::CompletedRequest;
use crate::replay::sender::run::LoopMode;
use crate::replay::{Config, ReplayRun};
use crate::trace_file::row::TraceEntry;

/// Sends these rows one after another; returns a note for the user.
///
/// # Errors
/// A request failed: the caches would not be in the requested state.
pub(super) fn warm_prefixes(
    entries: &[TraceEntry],
    targets: usize,
    config: impl Fn() -> Result<Config, SetupError>,
) -> Result<String, SetupError> {
    // Row numbers select the targets in turn.
    let sends: Vec<ScheduledRequest> = (0..)
        .zip(entries.iter().flat_map(|entry| std::iter::repeat_n(entry, targets)))
        .map(|(number, entry)| ScheduledRequest { at: Gap::ZERO, number, pass: 0, entry: entry.clone() })
        .collect();
    let all = sends.len() as u64;
    let slots = Some(Arc::new(tokio::sync::Semaphore::new(1)));
    let config =
        Config { measurement_window: MeasurementWindow::default(), loop_mode: LoopMode::Closed, slots, ..config()? };
    let successes = Arc::new(AtomicU64::new(0));
    let on_completion = {
        let successes = Arc::clone(&successes);
        Box::new(move |done: &CompletedRequest, _: &TraceEntry| {
            _ = successes.fetch_add(u64::from(done.record.outcome == Outcome::Success), Relaxed);
        })
    };
    ReplayRun::start(config, move || Ok(sends.into_iter().map(Ok)), None, on_completion)?.finish();
    let done = successes.load(Relaxed);
    if done < all {
        let message = format!("--warm-prefixes: {} of {all} prefixes got no answer from the target", all - done);
        return Err(SetupError::Machine(message));
    }
    Ok(format!("{all} prefixes were sent before the run, so that the server's cache has them"))
}
