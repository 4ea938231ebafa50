//! The screen that `inspect` writes on: its width and colour, tables, and text that cannot drive it.

use std::io;

use comfy_table::{ContentArrangement, Table, presets};

use crate::report::ascii_plot::is_unprintable;

/// Width and colour support of stdout.
#[derive(Clone, Copy, Debug)]
pub(super) struct InspectScreen {
    /// Columns; `None` where lines may be of any length.
    pub(super) width: Option<u16>,
    pub(super) colourful: bool,
}

impl InspectScreen {
    pub(super) fn of_stdout() -> Self {
        Self { width: Table::new().width(), colourful: crate::cli::terminal::supports_colour(&io::stdout()) }
    }
}

/// A table of ours, with these columns.
pub(super) fn table(columns: &[&str], screen: &InspectScreen) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_truncation_indicator("…").set_header(columns);
    if screen.colourful {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    if let Some(width) = screen.width {
        table.set_width(width);
    }
    table
}

/// Its lines.
pub(super) fn lines(mut table: Table) -> String {
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Escapes, as in JSON, characters that are not printed as themselves: controls, direction marks, characters without
/// width.
pub(super) fn escape(text: &str) -> String {
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
    use super::*;

    #[test]
    fn what_is_not_printed_as_itself_is_escaped_as_in_json() {
        assert_eq!(escape("a\n\r\t\u{1b}\u{9b}\u{202e}é漢"), "a\\n\\r\\t\\u001b\\u009b\\u202eé漢");
        assert_eq!(escape("\u{e0041}"), "\\udb40\\udc41");
    }
}
