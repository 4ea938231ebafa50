//! The answer of `inspect` for people: a timeline of events and a summary.
//!
//! Everything a server wrote is escaped, so that no stream can drive the terminal; colour only repeats the words.

use comfy_table::{Attribute, Cell, ColumnConstraint, Row, Width};

use super::screen::{InspectScreen, escape, lines, table};
use super::{InspectedReply, explain, summary};
use crate::inspect::inspection::{InspectedEvent, Inspection};
use crate::measure::dialect::event_fields::FieldKind;
use crate::measure::time::Stamp;

/// Longest part of an event that is shown, in characters: no screen is wider.
const MAX_EVENT_CHARS: usize = 400;
/// Characters of an event where the width of the screen is unknown.
const MAX_EVENT_CHARS_UNKNOWN_WIDTH: usize = 100;
/// Characters kept of the text in common with the event before, as context.
const CONTEXT_CHARS: usize = 16;
/// Characters of context where times leave little room.
const NARROW_CONTEXT_CHARS: usize = 6;
/// Screens below this many columns have little room.
const NARROW_COLUMNS: u16 = 100;
/// Least and most columns of an event's meaning; the share of the screen lies between them. All marks and a word fit in
/// a line; the rest wraps.
const MEANING_COLUMNS: (u16, u16) = (38, 64);
const MEANING_SHARE: (u16, u16) = (2, 5);

/// Columns of the names of the summary's lines.
const LABEL_COLUMNS: u16 = 14;

/// The timeline, the summary, and the rules of others where they were asked for.
pub(super) fn render(reply: &InspectedReply<'_>, screen: &InspectScreen) -> String {
    let room = screen.width.map(|width| width.saturating_sub(LABEL_COLUMNS));
    let label = usize::from(LABEL_COLUMNS);
    let lines = summary::lines(reply).into_iter().flat_map(|(name, value)| {
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        names.zip(wrap(&value, " ", room)).map(|(name, line)| format!("{name:<label$}{line}\n")).collect::<Vec<_>>()
    });
    let mut parts = vec![lines.collect()];
    if !reply.events.is_empty() {
        parts.insert(0, timeline(reply, screen));
    }
    parts.extend(reply.inspection.peers_first.is_some().then(|| explain::render(reply, screen)));
    parts.join("\n")
}

fn timeline(reply: &InspectedReply<'_>, screen: &InspectScreen) -> String {
    let timed = reply.inspection.times.is_some();
    let columns: &[&str] =
        if timed { &["event", "at (s)", "gap", "meaning", "as sent"] } else { &["event", "meaning", "as sent"] };
    let mut table = table(columns, screen);
    let width = screen
        .width
        .map(|width| (width / MEANING_SHARE.1 * MEANING_SHARE.0).clamp(MEANING_COLUMNS.0, MEANING_COLUMNS.1));
    let context = if timed && screen.width.is_some_and(|width| width < NARROW_COLUMNS) {
        NARROW_CONTEXT_CHARS
    } else {
        CONTEXT_CHARS
    };
    let (mut before, mut token_before, mut widest) = (String::new(), None, 0);
    for (at, seen) in reply.events.iter().enumerate() {
        let marks = marks(reply.inspection, at as u64);
        let meanings = wrap(&format!("{marks}{}", meaning(seen)), ", ", width);
        let sent = sent_text(seen);
        let mut shown = escape(&shorten(&sent, &before, context, screen));
        let mut place = vec![at.to_string()];
        if timed {
            let gap = token_before.filter(|_| seen.token).map(|before| seen.at.since(before));
            place.push(format!("{:.6}", seen.at.since(Stamp::default()).as_secs()));
            place.push(gap.map_or(String::new(), |gap| format!("+{gap}")));
            token_before = if seen.token { Some(seen.at) } else { token_before };
        }
        for line in meanings {
            widest = widest.max(line.chars().count());
            let meaning = Cell::new(line);
            let mut row = Row::new();
            let blank = vec![String::new(); place.len()];
            for cell in std::mem::replace(&mut place, blank) {
                row.add_cell(Cell::new(cell));
            }
            row.add_cell(if marks.is_empty() { meaning } else { meaning.add_attribute(Attribute::Bold) });
            row.add_cell(Cell::new(std::mem::take(&mut shown))).max_height(1);
            table.add_row(row);
        }
        before = sent;
    }
    if let (Some(width), Some(meaning)) = (width, table.column_mut(columns.len() - 2)) {
        let widest = u16::try_from(widest).unwrap_or(width).min(width);
        // Two columns are between it and the next.
        meaning.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(widest + 2)));
    }
    lines(table)
}

/// Marks of properties that first occur with this event.
fn marks(inspection: &Inspection, at: u64) -> String {
    let firsts = [
        ("token", inspection.first_token_event),
        ("evidence", inspection.first_evidence_event),
        ("output", inspection.first_output_event),
    ];
    let here: Vec<&str> = firsts.into_iter().filter(|(_, first)| *first == Some(at)).map(|(name, _)| name).collect();
    if here.is_empty() { String::new() } else { format!("first {}: ", here.join(", ")) }
}

fn meaning(seen: &InspectedEvent) -> String {
    let mut meanings = seen.meanings.clone();
    // The subjects of marks come first.
    meanings.sort_by_key(|meaning| seen.proof.as_ref() != Some(meaning));
    meanings.extend(unused_field_note(seen).map(str::to_owned));
    if meanings.is_empty() {
        return "nothing to measure".to_owned();
    }
    // A server's message is among them; the summary has the whole of it.
    escape(&meanings.join(", ").chars().take(MAX_EVENT_CHARS).collect::<String>())
}

/// Note about fields without a meaning to this program, and about fields that a reader may misread.
fn unused_field_note(seen: &InspectedEvent) -> Option<&'static str> {
    let has = |what| seen.facts.has(what);
    if has(FieldKind::ZeroUsage) {
        Some("its usage is all zeros: not a report")
    } else if has(FieldKind::Usage) && !seen.usage {
        Some("its usage is not taken: neither final nor asked for")
    } else if has(FieldKind::Role) && !seen.evidence {
        Some("only a role: no token")
    } else {
        None
    }
}

/// A text in lines of at most so many columns, broken behind `mark` where that is possible.
fn wrap(text: &str, mark: &str, width: Option<u16>) -> Vec<String> {
    let width = width.map_or(usize::MAX, usize::from);
    let columns = |text: &str| text.trim_end().chars().count();
    let mut lines: Vec<String> = Vec::new();
    for part in text.split_inclusive(mark) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + columns(part) <= width => line.push_str(part),
            _ => lines.push(part.to_owned()),
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}

/// The event's name and payload.
fn sent_text(seen: &InspectedEvent) -> String {
    if seen.name.is_empty() { seen.data.clone() } else { format!("{}: {}", seen.name, seen.data) }
}

/// An event, cut to what fits. The events of one stream differ from each other in little, so that what it has in
/// common with the event before goes first.
fn shorten(sent: &str, before: &str, context: usize, screen: &InspectScreen) -> String {
    let most = if screen.width.is_some() { MAX_EVENT_CHARS } else { MAX_EVENT_CHARS_UNKNOWN_WIDTH };
    let common = sent.chars().zip(before.chars()).take_while(|(a, b)| a == b).count();
    let skipped = common.saturating_sub(context);
    let shown: String = sent.chars().skip(skipped).take(most).collect();
    let (is_cut, more) = (skipped > 0, sent.chars().nth(skipped + most).is_some());
    format!("{}{shown}{}", if is_cut { "…" } else { "" }, if more { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::inspection::{RecordedExchange, inspect};
    use crate::measure::dialect::Routes;
    use crate::measure::shape::RequestShape;

    fn rendered(screen: InspectScreen) -> String {
        let exchange = RecordedExchange {
            head: RequestShape::of("POST", "/v1/chat/completions", &Routes::default()),
            content_type: "text/event-stream",
            ..RecordedExchange::default()
        };
        let event = |content: &str| {
            format!("data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n")
        };
        let body = event(&"a".repeat(500)) + &event("b") + "data: [DONE]\n\n";
        let (inspection, events, unread) = inspect(&exchange, [body.as_bytes()]);
        let inspection = inspection.with_peer_rules(&events);
        render(&InspectedReply { inspection: &inspection, events: &events, unread, truncated: false }, &screen)
    }

    #[test]
    fn no_line_is_wider_than_the_screen_and_the_marks_are_whole() {
        for width in [80, 100, 200] {
            let text = rendered(InspectScreen { width: Some(width), colourful: false });
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width), "{widest} columns on a screen of {width}");
            assert!(text.contains("\n0      first token, evidence, output: "), "{text}");
            assert!(text.contains("\n1      text  "), "{text}");
        }
    }

    #[test]
    fn colour_only_repeats_what_words_say() {
        let plain = rendered(InspectScreen { width: Some(100), colourful: false });
        let coloured = rendered(InspectScreen { width: Some(100), colourful: true });
        assert!(!plain.contains('\u{1b}'));
        let without_codes = coloured.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_ne!(coloured, plain);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&without_codes), words(&plain));
    }

    #[test]
    fn an_event_begins_where_it_differs_from_the_one_before() {
        let screen = InspectScreen { width: None, colourful: false };
        let long = "x".repeat(50);
        assert_eq!(shorten(&format!("{long}new"), &format!("{long}old"), 16, &screen), format!("…{}new", &long[..16]));
        assert_eq!(shorten("{é}", "{ü}", 16, &screen), "{é}");
        assert_eq!(shorten(&"é".repeat(101), "", 16, &screen), "é".repeat(100) + "…");
    }

    #[test]
    fn what_does_not_fit_a_line_goes_on_in_the_next() {
        assert_eq!(
            wrap("first token, evidence, output: text", ", ", Some(22)),
            ["first token, evidence,", "output: text"]
        );
        assert_eq!(wrap("a, b, c", ", ", None), ["a, b, c"]);
        assert_eq!(wrap("a b c", " ", Some(3)), ["a b", "c"]);
        assert_eq!(wrap("longer than it may be", ", ", Some(5)), ["longer than it may be"]);
    }
}
