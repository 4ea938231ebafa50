//! Notes on stderr: the detected format of a trace, and its losses.

use std::borrow::Cow;
use std::path::Path;

use crate::cli::terminal::eprint_line;
use crate::measure::time::Gap;
use crate::trace::conversion_loss::ConversionLosses;
use crate::trace::format::{ConversionSummary, TraceFormat};
use crate::trace::scale::RateScale;
use crate::trace_file::header::{BlockIds, BlockScope, BlockUnit, LastBlock, TraceHeader, TurnContent};

/// The user's name of it.
pub(super) fn display_name(path: &Path) -> Cow<'_, str> {
    if path == Path::new("-") { "stdin".into() } else { path.to_string_lossy() }
}

/// The detected format and its evidence, and the trace's times and ids.
pub(in crate::cli) fn format_note(path: &Path, format: &TraceFormat, by: Option<&str>, header: &TraceHeader) -> String {
    let by = by.map(|by| format!(" ({by})")).unwrap_or_default();
    let blocks = describe_blocks(header).map(|blocks| format!("; {blocks}")).unwrap_or_default();
    let turns = if header.turns == TurnContent::Delta { "; later turns hold only what was added" } else { "" };
    let name = display_name(path);
    format!("note: {name} is taken as {}{by}; times in {}{blocks}{turns}", format.name, format.time_unit)
}

/// That prompts are made of turns which hold only what was added.
pub(in crate::cli) const WHOLE_TURNS_NOTE: &str =
    "note: prompts are made whole: each has the prompts and answers before it in its session";

/// That the rows are a sample, whose load is a part of production's.
pub(in crate::cli) fn sample_note(header: &TraceHeader, remedy: impl FnOnce(f64) -> String) -> Option<String> {
    let share = header.sample?;
    let shown = |number: f64| (number * 1e4).round() / 1e4;
    let remedy = remedy(shown(1.0 / share));
    Some(format!(
        "note: the rows are {} % of the sessions, so the load is that part of production's; {remedy}",
        shown(share * 100.0)
    ))
}

/// Describes the block ids of a trace.
pub(super) fn describe_blocks(header: &TraceHeader) -> Option<String> {
    let blocks = header.blocks.as_ref()?;
    let unit = match blocks.unit {
        BlockUnit::Tokens => "tokens",
        BlockUnit::Bytes => "bytes",
    };
    let ids = match blocks.ids {
        BlockIds::Chained => "chained ids",
        BlockIds::Single => "ids of single blocks",
    };
    let last = match blocks.last {
        LastBlock::Kept => "a partial last block has one",
        LastBlock::Dropped => "a partial last block has none",
    };
    let scope = match blocks.scope {
        BlockScope::Trace => "",
        BlockScope::Session => ", equal within a session only",
    };
    Some(format!("blocks of {} {unit}, {ids}, {last}{scope}", blocks.size))
}

/// Prints the input's fields that a row cannot hold.
pub(super) fn print_losses(losses: &ConversionLosses) {
    losses.unconverted_note().iter().for_each(|note| eprint_line(note));
}

/// Prints the number of rows written, and the fields that the format cannot hold.
pub(super) fn print_conversion(converted: &ConversionSummary, format: &TraceFormat) {
    let lost = converted.losses.summary(&format!("{} has no place for", format.name));
    lost.iter().for_each(|note| eprint_line(note));
    converted.notes.iter().for_each(|note| eprint_line(&format!("note: {note}")));
    eprint_line(&format!("note: {} requests written as {}", converted.written, format.name));
}

/// By how much copies that span so many nanoseconds together stay behind the rate that was asked for, where that is more
/// than a twentieth.
pub(super) fn print_scale_shortfall(scale: RateScale, span: u64) {
    let (factor, reached) = (scale.factor, scale.effective_factor(span));
    if span > 0 && reached < 0.95 * factor {
        let (later, span) = (Gap::from_nanos(scale.last_copy_offset()), Gap::from_nanos(span));
        eprint_line(&format!(
            "note: the last copy begins {later} after the first, and together they span {span}: over all of that the \
             rate is {reached:.2}x and not {factor}x; a shorter --offset comes nearer"
        ));
    }
}
