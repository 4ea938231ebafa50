//! The cost of context, from steps of equal batches.
//!
//! Sequences bring their context with them, and the cost of a further one is no constant: it bends with the size of the
//! batch. So over all steps, context explains what the bend leaves. Steps with equally many sequences differ in context
//! alone.

use std::collections::BTreeMap;

use super::robust::{COLUMNS, Point, ROUNDS, fit_plane, median, stride};
use super::windows::DecodePoint;

/// A cost is accepted if it is so many standard errors: an accidental one would be multiplied by longer contexts. The
/// residual does not decide: it is mostly the machine's noise, also where longer contexts would double a step.
const MIN_ERRORS: f64 = 3.0;

/// Nanoseconds per token of context in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextCost {
    /// 0 if the points do not show it.
    pub(super) nanos: f64,
    /// Standard error; infinite if the points do not determine it.
    pub(super) error: f64,
    /// The cost that the points suggest, whether they show it or not.
    suggested: f64,
}

impl ContextCost {
    pub(super) fn of(points: &[DecodePoint]) -> Self {
        let mut batches: BTreeMap<u64, Vec<&DecodePoint>> = BTreeMap::new();
        for point in points.iter().step_by(stride(points.len())) {
            batches.entry(point.seqs.round() as u64).or_default().push(point);
        }
        let differences: Vec<Point> = batches.values().flat_map(|batch| differences(batch)).collect();
        let unknown = Self { nanos: 0.0, error: f64::INFINITY, suggested: 0.0 };
        let Some(plane) = fit_plane(&differences, ROUNDS) else { return unknown };
        let (suggested, error) = (plane.coefficients[2], plane.errors[2]);
        let is_shown = suggested > MIN_ERRORS * error;
        Self { nanos: if is_shown { suggested } else { 0.0 }, error, suggested }
    }

    /// The least and the greatest cost that explain the points about as well.
    pub(super) fn limits(self) -> [Self; 2] {
        let error = if self.error.is_finite() { self.error } else { 0.0 };
        let least = if self.nanos > 0.0 { self.nanos - 2.0 * error } else { 0.0 };
        [least, self.suggested + 2.0 * error].map(|nanos| Self { nanos, ..self })
    }
}

/// The points of one batch as differences to its typical one. The mean of a window's sequences is no whole number, so they
/// differ too.
fn differences(batch: &[&DecodePoint]) -> Vec<Point> {
    let mean = |of: fn(&DecodePoint) -> f64| batch.iter().map(|point| of(point)).sum::<f64>() / batch.len() as f64;
    let (seqs, context) = (mean(|point| point.seqs), mean(|point| point.context));
    let typical = median(batch.iter().map(|point| point.time)).unwrap_or_default();
    let difference = |point: &&DecodePoint| {
        let mut columns = [0.0; COLUMNS];
        (columns[1], columns[2]) = (point.seqs - seqs, point.context - context);
        (columns, point.time - typical)
    };
    batch.iter().map(difference).collect()
}
