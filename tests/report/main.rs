//! Results of runs: `streamgauge report`, and the files of other tools.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

mod aiperf_time_slices;
mod breakdowns;
mod checklist;
mod compare;
mod diagnosis;
mod diagnosis_by_server;
mod engine_facts;
mod fidelity;
mod figures;
mod llmd;
mod out_formats;
mod peer_files;
mod plan;
mod results;
mod sessions;
mod sweep_levels;
mod sweeps;
mod time_course;
mod tool_definitions;
