//! Reads every public trace format into rows of [`crate::trace_file::row`], and writes formats from such rows.
//!
//! A [`Trace`] is a header and a stream of rows; no trace is held in memory. [`format::FORMATS`] lists the formats: how
//! each is detected, which fields it holds, how it is read and written. Fields that a format cannot hold are counted
//! ([`conversion_loss::ConversionLosses`]), never dropped silently. Of input texts only the lengths survive. Where a
//! text must be written or sent, [`prompt_text`] generates one from block ids and lengths.
//!
//! Operations on traces: [`info`] summarizes one, [`diff`] compares two, [`reuse`] finds lost prefix-cache hits,
//! [`clock_offsets`] the offsets of wall clocks. [`mod@slice`], [`scale`], [`scale_lengths`], [`merge`], [`anonymize`],
//! [`respace`], [`session_starts`] and [`whole_turns`] transform them.

pub mod anonymize;
mod array_elements;
pub mod blocks;
pub mod clock_offsets;
pub mod conversion_loss;
pub mod diff;
pub mod entry_fields;
pub mod error;
mod fast_row_parser;
pub mod format;
pub mod info;
pub mod input;
mod join;
mod json;
mod json_values;
pub mod merge;
pub mod output;
pub mod prompt_file;
pub mod prompt_text;
pub mod respace;
pub mod reuse;
pub mod rng;
pub mod scale;
pub mod scale_lengths;
pub mod selection;
pub mod session_starts;
pub mod session_table;
pub mod slice;
pub mod time_shift;
pub mod vocabulary;
pub mod whole_turns;

use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;
use conversion_loss::ConversionLosses;
use error::{Error, TraceProblem};

/// The rows of a trace, in file order.
pub type TraceEntries = Box<dyn Iterator<Item = Result<TraceEntry, Error>>>;

/// A trace that is being read.
pub struct Trace {
    /// Properties of all rows.
    pub header: TraceHeader,
    /// The rows. The stream ends after an error.
    pub entries: TraceEntries,
    /// Input fields that a row cannot hold; complete once all rows have been read.
    pub losses: ConversionLosses,
}
