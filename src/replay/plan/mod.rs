//! The requests of a run and their times: decided before the first request, from the trace and the flags alone.

pub mod max_load_search;
pub mod measurement_window;
pub mod schedule;
pub mod synth;
pub mod trace_source;
