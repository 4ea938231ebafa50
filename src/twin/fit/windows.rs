//! Steps of a busy engine, from short windows instead of single steps.
//!
//! A server sends the tokens of one step one after the other, and a large batch takes longer to send than to compute, so
//! the gaps of one step are no longer alike. Over a window they are: in `w` nanoseconds an engine makes `w / step` steps,
//! and each of its sequences gets a token from each. So a step takes the time that sequences ran, summed over them,
//! divided by the tokens that they got.

use std::collections::BTreeMap;

use super::observation::{Observation, short_gap};

/// Windows are so many times as long as a short gap.
const GAPS_PER_WINDOW: u64 = 5;
/// A gap over more windows than this is a stall.
const MAX_GAP_WINDOWS: u64 = 16;
/// Share of the sequences that may end in a window: the batch is that of its mean.
const MAX_ENDED_SHARE: f64 = 0.2;

/// A step that only decodes: its sequences, their tokens of context, and its time in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecodePoint {
    pub(super) seqs: f64,
    pub(super) context: f64,
    pub(super) time: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct StepWindow {
    /// Nanoseconds that sequences ran, summed over them.
    running: f64,
    /// Gaps, or parts of gaps.
    gaps: f64,
    /// Nanoseconds times tokens of context.
    context: f64,
    ended: u32,
}

/// The mean steps of all windows in which no request waited for its first token.
pub(super) fn decode_windows(seen: Observation<'_>, front_end: f64) -> Vec<DecodePoint> {
    let Observation { requests, from, until } = seen;
    let Some(length) = short_gap(requests).map(|gap| gap.saturating_mul(GAPS_PER_WINDOW)) else { return Vec::new() };
    let mut windows: BTreeMap<u64, StepWindow> = BTreeMap::new();
    let mut prompts: Vec<(u64, u64)> = Vec::new();
    for request in requests {
        let Some((first, _)) = request.events.first() else { continue };
        prompts.push((request.at.saturating_add(front_end as u64).min(*first) / length, first / length));
        let mut context = f64::from(request.prompt_tokens);
        for pair in request.events.windows(2) {
            let [(from, tokens), (to, _)] = *pair else { continue };
            context += f64::from(tokens);
            add_gap(&mut windows, length, (from, to), context);
        }
        let last = request.events.last().map_or(*first, |(last, _)| *last);
        windows.entry(last / length).or_default().ended += 1;
    }
    prompts.sort_unstable();
    // The latest end of a prompt among those that began so far: whether one of them reaches into a window.
    let mut latest = 0;
    for (_, end) in &mut prompts {
        latest = latest.max(*end);
        *end = latest;
    }
    let has_prompt = |window: u64| {
        let started = prompts.partition_point(|(begin, _)| *begin <= window);
        started > 0 && prompts[started - 1].1 >= window
    };
    let point = |(number, window): (u64, StepWindow)| {
        let seqs = window.running / length as f64;
        let is_steady = f64::from(window.ended) <= MAX_ENDED_SHARE * seqs;
        let is_seen = number.saturating_mul(length) >= from && (number + 1).saturating_mul(length) <= until;
        (window.gaps > 0.0 && is_seen && is_steady && !has_prompt(number)).then(|| DecodePoint {
            seqs,
            context: window.context / length as f64,
            time: window.running / window.gaps,
        })
    };
    windows.into_iter().filter_map(point).collect()
}

fn add_gap(windows: &mut BTreeMap<u64, StepWindow>, length: u64, (from, to): (u64, u64), context: f64) {
    let (first, last) = (from / length, to / length);
    if last - first > MAX_GAP_WINDOWS {
        return;
    }
    if to == from {
        windows.entry(last).or_default().gaps += 1.0;
        return;
    }
    for number in first..=last {
        let part = (to.min((number + 1).saturating_mul(length)) - from.max(number * length)) as f64;
        let window = windows.entry(number).or_default();
        window.running += part;
        window.gaps += part / (to - from) as f64;
        window.context += part * context;
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::ObservedRequest;
    use super::*;
    use crate::trace_file::row::TraceEntry;

    const MILLI: u64 = 1_000_000;

    /// A stream of so many tokens every 10 ms, the first after 10 ms, each `late` milliseconds after its step.
    fn stream(at: u64, tokens: u64, late: u64) -> ObservedRequest {
        let events: Vec<(u64, u32)> = (1..=tokens).map(|step| ((at + 10 * step + late) * MILLI, 1)).collect();
        ObservedRequest {
            at: at * MILLI,
            prompt_tokens: 100,
            cached: None,
            output_tokens: tokens as u32,
            ended: events.last().unwrap().0,
            events,
            entry: TraceEntry::default(),
        }
    }

    #[test]
    fn tokens_that_are_sent_apart_show_the_steps_of_their_batch() {
        let requests: Vec<ObservedRequest> = (0..8).map(|late| stream(0, 100, late)).collect();
        let windows = decode_windows(Observation { requests: &requests, from: 0, until: u64::MAX }, 0.0);
        let whole: Vec<&DecodePoint> = windows.iter().filter(|window| window.seqs > 7.9).collect();
        assert!(whole.len() >= 17, "of a second in windows of 50 ms: {windows:?}");
        for window in whole {
            assert!((window.time / 1e7 - 1.0).abs() < 1e-6 && (window.seqs - 8.0).abs() < 1e-6, "{window:?}");
            assert!((8.0 * 100.0..8.0 * 201.0).contains(&window.context), "{window:?}");
        }
    }

    #[test]
    fn rows_at_the_end_of_time_are_windows_too() {
        let mut last = stream(0, 100, 0);
        last.at = u64::MAX - 1_000 * MILLI;
        last.events.iter_mut().for_each(|(at, _)| *at += last.at);
        let requests = [stream(0, 100, 0), last];
        let windows = decode_windows(Observation { requests: &requests, from: 0, until: u64::MAX }, f64::MAX);
        assert!(windows.iter().all(|window| window.seqs <= 1.0 + 1e-9 && window.time <= 1e7 + 1.0), "{windows:?}");
    }

    #[test]
    fn windows_with_a_prompt_or_behind_the_end_are_left_out() {
        let requests = [stream(0, 100, 0), stream(500, 50, 0)];
        let count = |until| decode_windows(Observation { requests: &requests, from: 0, until }, 0.0).len();
        // Of 0 to 1,010 ms, the windows from 0 and from 500 have prompts, and in the last one both streams end.
        assert_eq!((count(u64::MAX), count(250 * MILLI)), (18, 4));
    }
}
