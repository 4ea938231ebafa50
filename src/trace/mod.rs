//! Traces in and out: every public format is read into the rows of [`crate::capture::format`] and written from them.
//!
//! A [`Trace`] is a header and a stream of rows; nothing here holds a trace in memory. [`format::TABLE`] lists the
//! formats: how each is recognised, what it can hold, how it is read and written. What a format cannot hold is counted
//! ([`losses::Losses`]) and never dropped in silence. Of texts in the input only lengths survive; where a text is to be
//! written or sent, [`content`] makes one from block ids and lengths.
//!
//! What is done with traces: [`info`] tells what is in one, [`diff`] how far two are
//! apart, [`cut`], [`scale`], [`lengths`], [`merge`], [`anonymize`],
//! [`spread`], [`session_starts`] and [`whole_turns`] make one of others.

pub mod anonymize;
pub mod blocks;
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
pub mod merge;
pub mod output;
pub mod prompt_text;
pub mod respace;
pub mod rng;
pub mod scale;
pub mod scale_lengths;
pub mod session_starts;
pub mod session_table;
pub mod slice;
pub mod vocabulary;
pub mod whole_turns;

use crate::capture::row::{TraceEntry, TraceHeader};
use conversion_loss::ConversionLosses;
use error::{Error, TraceProblem};

/// The rows of a trace, in the order of the file.
pub type TraceEntries = Box<dyn Iterator<Item = Result<TraceEntry, Error>>>;

/// A trace that is being read.
pub struct Trace {
    /// What holds for every row.
    pub header: TraceHeader,
    /// The rows. After an error there are no more.
    pub entries: TraceEntries,
    /// What the input has and no row can hold; complete when the rows are read.
    pub losses: ConversionLosses,
}
