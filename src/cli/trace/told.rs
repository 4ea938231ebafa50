//! What is said on stderr: what a trace was taken for, and what was lost.

use std::borrow::Cow;
use std::path::Path;

use crate::capture::format::{BlockIds, BlockUnit, Header, LastBlock, Scope, Turns};
use crate::cli::say;
use crate::measure::time::Gap;
use crate::trace::format::{Converted, Format};
use crate::trace::losses::Losses;
use crate::trace::scale::Scale;

/// What a user calls it.
pub(super) fn name(path: &Path) -> Cow<'_, str> {
    if path == Path::new("-") { "stdin".into() } else { path.to_string_lossy() }
}

/// What a file is taken for, by what, and what its times and ids are.
pub(in crate::cli) fn taken_as(path: &Path, format: &Format, by: Option<&str>, header: &Header) -> String {
    let by = by.map(|by| format!(" ({by})")).unwrap_or_default();
    let blocks = blocks(header).map(|blocks| format!("; {blocks}")).unwrap_or_default();
    let turns = if header.turns == Turns::Delta { "; later turns hold only what was added" } else { "" };
    let name = name(path);
    format!("note: {name} is taken as {}{by}; times in {}{blocks}{turns}", format.name, format.times)
}

/// That prompts are made of turns which hold only what was added.
pub(in crate::cli) const MADE_WHOLE: &str =
    "note: prompts are made whole: each has the prompts and answers before it in its session";

/// What the block ids of a trace are.
pub(super) fn blocks(header: &Header) -> Option<String> {
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
        Scope::Trace => "",
        Scope::Session => ", equal within a session only",
    };
    Some(format!("blocks of {} {unit}, {ids}, {last}{scope}", blocks.size))
}

/// What the input has and a row cannot hold.
pub(super) fn unread(losses: &Losses) {
    losses.unread().iter().for_each(|note| say(note));
}

/// What was written, and what the format has no place for.
pub(super) fn converted(converted: &Converted, format: &Format) {
    let lost = converted.lost.note(&format!("{} has no place for", format.name));
    lost.iter().for_each(|note| say(note));
    converted.notes.iter().for_each(|note| say(&format!("note: {note}")));
    say(&format!("note: {} requests written as {}", converted.written, format.name));
}

/// By how much copies that span so many nanoseconds together stay behind the rate that was asked for, where that is more
/// than a twentieth.
pub(super) fn scaled(scale: Scale, span: u64) {
    let (asked, reached) = (scale.factor, scale.reached(span));
    if span > 0 && reached < 0.95 * asked {
        let (later, span) = (Gap::from_nanos(scale.last_begins()), Gap::from_nanos(span));
        say(&format!(
            "note: the last copy begins {later} after the first, and together they span {span}: over all of that the \
             rate is {reached:.2}x and not {asked}x; a shorter --offset comes nearer"
        ));
    }
}
