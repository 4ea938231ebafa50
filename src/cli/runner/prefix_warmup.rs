//! Warms the servers' prefix caches before a run: each prefix goes to every target, outside the figures.

use super::plan::SetupError;
use crate::measure::time::Gap;
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::plan::schedule::ScheduledRequest;
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
    let slots = Some(std::sync::Arc::new(tokio::sync::Semaphore::new(1)));
    let config =
        Config { measurement_window: MeasurementWindow::default(), loop_mode: LoopMode::Closed, slots, ..config()? };
    let summary = ReplayRun::start(config, move || Ok(sends.into_iter().map(Ok)), None)?.finish().summary;
    let done = summary.outcomes.get("success").copied().unwrap_or(0);
    if done < all {
        let said = format!("--warm-prefixes: {} of {all} prefixes got no answer from the target", all - done);
        return Err(SetupError::Machine(said));
    }
    Ok(format!("{all} prefixes were sent before the run, so that the server's cache has them"))
}
