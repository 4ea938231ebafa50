//! Traces: formats, conversions, and the verbs of `streamgauge trace`.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

mod clocks;
mod foreign_formats;
mod formats;
mod properties;
mod reuse;
mod units;
mod verbs;
mod whole_turns;
