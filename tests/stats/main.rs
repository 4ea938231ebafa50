//! How often intervals contain the truth, and how often tests are wrong, in simulated runs whose truth is known.
//!
//! `cargo test --release --test stats -- --nocapture` prints every rate; `tests/run bounds` runs it too. Debug builds take
//! fewer and shorter runs.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]
#![expect(clippy::print_stderr, reason = "the rates are the results")]

mod detection;
mod intervals;
mod latency_processes;
mod properties;

/// Simulated runs of each case.
const RUNS: u64 = if cfg!(debug_assertions) { 400 } else { 1_000 };

/// Calls `of` for every item on two threads, and returns the results in order.
fn parallel<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let half = |first: usize| items.iter().skip(first).step_by(2).map(&of).collect::<Vec<R>>();
    let (even, odd) = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        (half(0), other.join().unwrap())
    });
    let (mut even, mut odd) = (even.into_iter(), odd.into_iter());
    (0..items.len()).filter_map(|n| if n % 2 == 0 { even.next() } else { odd.next() }).collect()
}
