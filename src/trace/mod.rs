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
pub mod chance;
pub mod content;
pub mod cut;
pub mod diff;
pub mod error;
pub mod fields;
pub mod format;
pub mod info;
pub mod input;
mod join;
mod json;
pub mod lengths;
pub mod losses;
pub mod merge;
pub mod output;
mod plain;
pub mod scale;
pub mod session_starts;
pub mod sessions;
pub mod spread;
pub mod whole_turns;
pub mod words;

use crate::capture::format::{Entry, Header};
use error::{Error, Problem};
use losses::Losses;

/// The rows of a trace, in the order of the file.
pub type Entries = Box<dyn Iterator<Item = Result<Entry, Error>>>;

/// A trace that is being read.
pub struct Trace {
    /// What holds for every row.
    pub header: Header,
    /// The rows. After an error there are no more.
    pub entries: Entries,
    /// What the input has and no row can hold; complete when the rows are read.
    pub losses: Losses,
}
