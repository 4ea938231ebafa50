//! The answer of `inspect` for people: a timeline of events and a summary.
//!
//! Everything a server wrote is escaped, so that no stream can drive the terminal; colour only repeats what words say.

use std::io;

use comfy_table::{Attribute, Cell, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};

use super::inspection::{Inspection, Seen};
use crate::measure::record::Unread;

/// What is written on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// Columns; `None` where lines may be of any length.
    width: Option<u16>,
    colourful: bool,
}

/// Longest part of an event that is shown, in characters: no screen is wider.
const MOST_OF_EVENT: usize = 400;
/// The same where nobody says how wide the screen is.
const MOST_WITHOUT_WIDTH: usize = 100;
/// Of what is the same as in the event before, this much is kept, in characters, to tell where one is.
const CONTEXT: usize = 16;
/// Columns that the meaning of an event has at least: every mark fits, and a word.
const LEAST_OF_MEANING: u16 = 42;

impl Screen {
    pub(super) fn of_stdout() -> Self {
        Self { width: Table::new().width(), colourful: crate::cli::is_colourful(&io::stdout()) }
    }
}

/// The timeline and the summary.
pub(super) fn render(inspection: &Inspection, events: &[Seen], unread: Option<Unread>, screen: &Screen) -> String {
    let summary = summary(inspection, unread).into_iter().map(|(name, value)| format!("{name:<14}{value}\n"));
    if events.is_empty() {
        return summary.collect();
    }
    timeline(inspection, events, screen) + "\n" + &summary.collect::<String>()
}

fn timeline(inspection: &Inspection, events: &[Seen], screen: &Screen) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_truncation_indicator("…").set_header(["event", "meaning", "as sent"]);
    if screen.colourful {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let mut before = String::new();
    for (at, seen) in events.iter().enumerate() {
        let marks = marks(inspection, at as u64);
        let meaning = Cell::new(format!("{marks}{}", meaning(seen)));
        let meaning = if marks.is_empty() { meaning } else { meaning.add_attribute(Attribute::Bold) };
        let sent = as_sent(seen);
        let shown = escaped(&shortened(&sent, &before, screen));
        let mut row = Row::new();
        row.add_cell(Cell::new(at)).add_cell(meaning).add_cell(Cell::new(shown)).max_height(1);
        table.add_row(row);
        before = sent;
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    if let (Some(width), Some(meaning)) = (screen.width, table.column_mut(1)) {
        meaning.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(LEAST_OF_MEANING)));
        table.set_width(width);
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// What is first with this event.
fn marks(inspection: &Inspection, at: u64) -> String {
    let firsts = [
        ("token", inspection.first_token_event),
        ("evidence", inspection.first_evidence_event),
        ("output", inspection.first_output_event),
    ];
    let here: Vec<&str> = firsts.into_iter().filter(|(_, first)| *first == Some(at)).map(|(name, _)| name).collect();
    if here.is_empty() { String::new() } else { format!("first {}: ", here.join(", ")) }
}

fn meaning(seen: &Seen) -> String {
    if seen.meanings.is_empty() {
        return "nothing".to_owned();
    }
    // A server's message is among them; the summary has the whole of it.
    escaped(&seen.meanings.join(", ").chars().take(MOST_OF_EVENT).collect::<String>())
}

/// The event's name and payload.
fn as_sent(seen: &Seen) -> String {
    if seen.name.is_empty() { seen.data.clone() } else { format!("{}: {}", seen.name, seen.data) }
}

/// An event, cut to what fits. The events of one stream differ from each other in little, so that what it has in
/// common with the event before goes first.
fn shortened(sent: &str, before: &str, screen: &Screen) -> String {
    let most = if screen.width.is_some() { MOST_OF_EVENT } else { MOST_WITHOUT_WIDTH };
    let common = sent.chars().zip(before.chars()).take_while(|(a, b)| a == b).count();
    let skipped = common.saturating_sub(CONTEXT);
    let shown: String = sent.chars().skip(skipped).take(most).collect();
    let (begun, more) = (skipped > 0, sent.chars().nth(skipped + most).is_some());
    format!("{}{shown}{}", if begun { "…" } else { "" }, if more { "…" } else { "" })
}

fn summary(inspection: &Inspection, unread: Option<Unread>) -> Vec<(&'static str, String)> {
    let number = |count: Option<u64>| count.map_or("not told".to_owned(), |count| count.to_string());
    let place = |event: Option<u64>| event.map_or("none".to_owned(), |event| format!("event {event}"));
    let counts = format!(
        "{} ({} with text, {} that prove a token), {} comments",
        inspection.events, inspection.token_events, inspection.evidence_events, inspection.comments
    );
    let output = match (inspection.output_tokens, inspection.output_tokens_from) {
        (Some(tokens), Some(source)) => format!("{tokens}, by {}", who(source)),
        _ => "not told".to_owned(),
    };
    let of = |part: Option<u64>, name: &str| part.map_or(String::new(), |count| format!(", {count} of them {name}"));
    let finish = inspection.finish.iter();
    let finish: Vec<String> = finish
        .map(|finish| format!("choice {}: {} ({})", finish.choice, finish.reason, escaped(&finish.raw)))
        .collect();
    let mut lines = vec![
        ("dialect", inspection.dialect.unwrap_or("none: plain HTTP").to_owned()),
        ("events", counts),
        ("first token", place(inspection.first_token_event)),
        ("last token", place(inspection.last_token_event)),
        ("output tokens", output + &of(inspection.reasoning_tokens, "reasoning")),
        ("input tokens", number(inspection.input_tokens) + &of(inspection.cached_tokens, "from a cache")),
        ("finish", if finish.is_empty() { "not told".to_owned() } else { finish.join(", ") }),
    ];
    if let Some(error) = &inspection.error {
        let message = error.message.as_deref().map_or("no message".to_owned(), escaped);
        let class = error.kind.as_deref().map_or(String::new(), |kind| format!(", type {}", escaped(kind)));
        let code = error.code.as_ref().map_or(String::new(), |code| format!(", code {}", escaped(&code.to_string())));
        lines.push(("error", format!("event {}: {message}{class}{code}", error.event)));
    }
    lines.push(("complete", complete(inspection, unread).to_owned()));
    lines
}

/// Who counted the output tokens.
fn who(source: &str) -> String {
    match source {
        "cumulative" => "the server's running counter".to_owned(),
        "ids" => "the lists of one entry per token".to_owned(),
        "chunks" => "the number of events, an estimate".to_owned(),
        // In the server's own word.
        report => format!("the server's {report} report"),
    }
}

fn complete(inspection: &Inspection, unread: Option<Unread>) -> &'static str {
    match unread {
        Some(Unread::Coding) => "no: the bytes do not follow the Content-Encoding; --content-encoding says which it is",
        Some(Unread::TooLarge) => "no: an event is larger than 1 MiB, and nothing after it was read",
        Some(Unread::Malformed) => "no: the body is not framed, or not whole, as its content type says",
        None if inspection.dialect.is_none() => "not known: plain HTTP is not understood",
        None if inspection.complete => "yes",
        None if inspection.error.is_some() => "no: the server reported an error",
        None => "no: it ends without a finish reason for every choice and without an end mark",
    }
}

/// A text in which everything that is not printed as itself (controls, marks that turn the direction of writing,
/// characters without width) is escaped as in JSON.
pub(super) fn escaped(text: &str) -> String {
    let is_unprintable = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
            || matches!(c, '\u{e0000}'..='\u{e007f}')
    };
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            c if is_unprintable(c) => {
                escaped.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::{Exchange, inspect};
    use super::*;
    use crate::measure::dialect::Routes;
    use crate::measure::shape::RequestShape;

    fn rendered(screen: Screen) -> String {
        let exchange = Exchange {
            head: RequestShape::of("POST", "/v1/chat/completions", &Routes::default()),
            content_type: "text/event-stream",
            ..Exchange::default()
        };
        let event = |content: &str| {
            format!("data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n")
        };
        let body = event(&"a".repeat(500)) + &event("b") + "data: [DONE]\n\n";
        let (inspection, events, unread) = inspect(&exchange, [body.as_bytes()]);
        render(&inspection, &events, unread, &screen)
    }

    #[test]
    fn no_line_is_wider_than_the_screen_and_the_marks_are_whole() {
        for width in [80, 100, 200] {
            let text = rendered(Screen { width: Some(width), colourful: false });
            let timeline = text.split("\n\n").next().unwrap();
            let widest = timeline.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(width), "{widest} columns on a screen of {width}");
            assert!(text.contains("\n0      first token, evidence, output: "), "{text}");
            assert!(text.contains("\n1      text  "), "{text}");
        }
    }

    #[test]
    fn colour_only_repeats_what_words_say() {
        let plain = rendered(Screen { width: Some(100), colourful: false });
        let coloured = rendered(Screen { width: Some(100), colourful: true });
        assert!(!plain.contains('\u{1b}'));
        let without_codes = coloured.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_ne!(coloured, plain);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&without_codes), words(&plain));
    }

    #[test]
    fn an_event_begins_where_it_differs_from_the_one_before() {
        let screen = Screen { width: None, colourful: false };
        let long = "x".repeat(50);
        assert_eq!(shortened(&format!("{long}new"), &format!("{long}old"), &screen), format!("…{}new", &long[..16]));
        assert_eq!(shortened("{é}", "{ü}", &screen), "{é}");
        assert_eq!(shortened(&"é".repeat(101), "", &screen), "é".repeat(100) + "…");
    }

    #[test]
    fn what_is_not_printed_as_itself_is_escaped_as_in_json() {
        assert_eq!(escaped("a\n\r\t\u{1b}\u{9b}\u{202e}é漢"), "a\\n\\r\\t\\u001b\\u009b\\u202eé漢");
        assert_eq!(escaped("\u{e0041}"), "\\udb40\\udc41");
    }
}
