//! Where rows come from: a trace in any format that [`crate::trace`] reads.

use std::path::Path;

use super::schedule::{RowError, Rows};
use crate::capture::format::Header;
use crate::trace::format::{Options, recognised};
use crate::trace::input::Source;

/// Opens a trace, whose format its content tells.
///
/// # Errors
/// When it cannot be read, or its format is not known.
pub fn open(path: &Path) -> Result<(Header, Rows), RowError> {
    let source = Source::open(path)?;
    let shown = path.display();
    let format = recognised(&source).ok_or_else(|| {
        format!("{shown}: no known format of traces; `streamgauge trace convert` can be told which it is")
    })?;
    let read = format.read.ok_or_else(|| format!("{shown}: {} cannot be read: {}", format.name, format.but))?;
    let trace = read(source, &Options::default())?;
    Ok((trace.header, Box::new(trace.entries.map(|row| row.map_err(RowError::from)))))
}
