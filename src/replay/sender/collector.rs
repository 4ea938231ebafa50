//! The collector thread: it passes each record to the callback of the run, and writes it as a row.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use super::config::{CompletionCallback, Config};
use super::target::TargetUrl;
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};
use crate::replay::result::output::{RunOutput, RunWriter};
use crate::replay::result::row::CompletedRequest;

/// A kill loses at most the rows of one interval.
const FLUSH_INTERVAL: Gap = Gap::from_millis(1_000);

/// Passes on records and writes their rows until the last sending thread has ended.
pub(in crate::replay) fn collect(
    records: &Receiver<Box<CompletedRequest>>,
    config: &Config,
    begin: Stamp,
    output: Option<RunOutput>,
    mut on_completion: CompletionCallback,
) -> io::Result<()> {
    let places: Vec<String> = config.targets.iter().map(TargetUrl::authority).collect();
    let mut output = output.map(|output| output.begin(Clock::Monotonic.unix_nanos(begin))).transpose()?;
    let (mut written, mut at) = (Ok(()), Clock::Monotonic.now());
    loop {
        match records.recv_timeout(FLUSH_INTERVAL.into()) {
            Ok(done) => {
                let row = done.row(begin, &places[done.target % places.len()]);
                // The callback gets every record, even if the file fails.
                on_completion(&done, &row);
                if let Some(output) = &mut output {
                    written = written.and(output.row(row, &done.gaps));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let now = Clock::Monotonic.now();
        if let Some(output) = output.as_mut().filter(|_| now.since(at) >= FLUSH_INTERVAL) {
            written = written.and(output.flush());
            at = now;
        }
    }
    written.and_then(|()| output.map_or(Ok(()), RunWriter::end))
}
