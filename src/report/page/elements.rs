//! Elements of a page. Every text is escaped: names come from files.

use std::fmt::Write as _;

use crate::report::ascii_plot::{replace_unprintable, table_cell};

/// Renders named lines; a line without a name continues the previous one.
pub(in crate::report) fn definition_list(lines: Vec<(&str, String)>) -> String {
    let line = |(name, text): (&str, String)| format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(&text));
    format!("<dl>\n{}</dl>\n", lines.into_iter().map(line).collect::<String>())
}

/// Renders a table that scrolls by itself. The first row is its header.
pub(in crate::report) fn table(name: &str, rows: &[Vec<String>]) -> String {
    let name = escaped(name);
    let mut text = format!("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table>\n");
    for (at, row) in rows.iter().enumerate() {
        let cell = |(column, text): (usize, &String)| {
            let text = escaped(&table_cell(text));
            match (at, column) {
                (0, _) => format!("<th scope=\"col\">{text}</th>"),
                (_, 0) => format!("<th scope=\"row\">{text}</th>"),
                _ => format!("<td>{text}</td>"),
            }
        };
        let cells: String = row.iter().enumerate().map(cell).collect();
        let (open, close) = match at {
            0 => ("<thead>", "</thead>\n<tbody>"),
            _ => ("", ""),
        };
        _ = writeln!(text, "{open}<tr>{cells}</tr>{close}");
    }
    text + "</tbody></table></div>\n"
}

/// Escapes text for HTML and for attributes in double quotes.
pub(in crate::report) fn escaped(text: &str) -> String {
    replace_unprintable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
