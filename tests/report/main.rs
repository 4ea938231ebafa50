//! Results of runs: `streamgauge report`, and the files of other tools.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

mod compare;
mod fidelity;
mod llmd;
mod out_formats;
mod peer_files;
mod plan;
mod results;
mod sweeps;
mod tool_definitions;
