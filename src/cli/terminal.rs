//! Output: stdout is data, stderr is talk.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, presets};

use super::exit_code::EXIT_USAGE;
use crate::report::text_layout::TextLayout;

/// Width of output that is not a terminal.
const DEFAULT_COLUMNS: usize = 100;

/// Writes data to stdout, which ends a verb. A closed pipe is no error: its reader has read enough.
pub(super) fn print(data: &str) -> anyhow::Result<ExitCode> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(data.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Writes a line for people to stderr.
pub(super) fn eprint_line(line: &str) {
    // A closed stderr does not stop a verb.
    writeln!(io::stderr(), "{line}").ok();
}

/// Reports an error that the user mends: a wrong command line, or input that cannot be read.
pub(super) fn usage_error(error: &impl Display) -> ExitCode {
    eprint_line(&format!("error: {error:#}"));
    ExitCode::from(EXIT_USAGE)
}

/// Returns `true` if colour may be written to `stream`: to a terminal only, and never where `NO_COLOR` is set.
pub(super) fn supports_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Columns of the terminal on stdout, within readable bounds.
pub(super) fn columns() -> usize {
    Table::new().width().map_or(DEFAULT_COLUMNS, usize::from).clamp(40, 200)
}

/// The layout of a report for this terminal.
pub(super) fn text_layout(plain: bool) -> TextLayout {
    TextLayout { width: columns(), plain }
}

/// A table without borders, whose columns after the first are numbers.
pub(super) fn right_aligned_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    table.set_header(header);
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

pub(super) fn render_table(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
