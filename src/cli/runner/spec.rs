//! The specification of a run: what a verb wants to be sent.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::measure::time::Gap;
use crate::replay::plan::schedule::{ReplayPlan, RowError, TraceRows};
use crate::replay::sender::run::{LoopMode, SessionMode};
use crate::report::context::LoadDescription;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

/// Set if slots, and not planned times, decided when requests were sent.
pub(super) const CLOSED_LOOP_KEY: &str = "closed_loop";

/// Planned requests and length, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlannedTotal {
    pub(super) requests: Option<u64>,
    pub(super) length: Option<Gap>,
}

/// Opens the rows to send; called once per pass.
pub(super) type RowSource = Arc<dyn Fn() -> Result<TraceRows, RowError> + Send + Sync>;

/// A workload, as a verb specifies it.
pub(in crate::cli) struct WorkloadSpec {
    /// Path of the trace; `None` for synthetic load.
    pub(in crate::cli) trace: Option<String>,
    /// The load, as the flags describe it.
    pub(in crate::cli) load: LoadDescription,
    /// The trace file, if it contains the captured results of its requests.
    pub(in crate::cli) production: Option<PathBuf>,
    /// Digest of the trace file.
    pub(in crate::cli) digest: Option<String>,
    pub(in crate::cli) header: TraceHeader,
    pub(in crate::cli) plan: ReplayPlan,
    /// Run time per trace time between turns.
    pub(in crate::cli) pause_stretch: f64,
    /// Sent before the run to fill prefix caches; excluded from the figures.
    pub(in crate::cli) warmup_rows: Vec<TraceEntry>,
    pub(in crate::cli) open_rows: RowSource,
    /// Real prompts, in the order of the rows.
    pub(in crate::cli) texts: Option<Arc<[String]>>,
    /// Mean over the rows that have both values.
    pub(in crate::cli) tokens_per_byte: Option<f64>,
    pub(in crate::cli) arrivals: LoopMode,
    /// Requested rates, or null.
    pub(in crate::cli) offered_rates: Value,
    pub(in crate::cli) slots: Option<u32>,
    pub(in crate::cli) sessions: SessionMode,
    /// Notes for the user before the start.
    pub(in crate::cli) notes: Vec<String>,
}
