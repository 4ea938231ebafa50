//! Values for another tool's file, in that tool's unit.

use crate::stats::samples::percentile;

/// Values in request order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ToolColumn(pub(super) Vec<f64>);

/// Statistics of a column; all zero for an empty one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ColumnStats {
    sorted: Vec<f64>,
}

impl ToolColumn {
    pub(super) fn stats(&self) -> ColumnStats {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        ColumnStats { sorted }
    }
}

impl ColumnStats {
    pub(super) fn count(&self) -> usize {
        self.sorted.len()
    }

    pub(super) fn sum(&self) -> f64 {
        self.sorted.iter().sum()
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum() / self.count().max(1) as f64
    }

    pub(super) fn std(&self) -> f64 {
        let mean = self.mean();
        (self.sorted.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / self.count().max(1) as f64).sqrt()
    }

    pub(super) fn percentile(&self, percent: f64) -> f64 {
        percentile(self.count() as u64, percent, |rank| self.sorted[rank as usize]).unwrap_or_default()
    }

    /// Returns the value at a rank, from 0.
    pub(super) fn value_at_rank(&self, rank: usize) -> f64 {
        self.sorted.get(rank).copied().unwrap_or_default()
    }

    pub(super) fn min(&self) -> f64 {
        self.percentile(0.0)
    }

    pub(super) fn max(&self) -> f64 {
        self.percentile(100.0)
    }
}
