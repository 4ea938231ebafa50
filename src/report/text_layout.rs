//! Lines and tables of text, aligned for a terminal.

use comfy_table::{CellAlignment, Table, presets};

use super::ascii_plot::{replace_unprintable, with_thousands};

/// Width of the label column.
pub(super) const LABEL: usize = 13;

/// Size and character set of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct TextLayout {
    /// Columns.
    pub width: usize,
    /// `true` restricts output to ASCII.
    pub plain: bool,
}

/// Renders lines by their names, in a column of `width`.
pub(super) fn named_lines(lines: Vec<(&str, String)>, width: usize) -> String {
    let line = |(name, text): (&str, String)| {
        format!("{name:<width$}{}", replace_unprintable(&text)).trim_end().to_owned() + "\n"
    };
    lines.into_iter().map(line).collect()
}

/// Aligns a table: names left, numbers right. The first row is the header.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).force_no_tty();
    for (at, row) in rows.iter().enumerate() {
        let row: Vec<String> = row.iter().map(|cell| replace_unprintable(cell)).collect();
        _ = if at == 0 { table.set_header(row) } else { table.add_row(row) };
    }
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// `1 GPU`, `2 GPUs`.
pub(super) fn gpu_count(gpus: impl Into<u64>) -> String {
    let gpus = gpus.into();
    format!("{} GPU{}", with_thousands(gpus), if gpus == 1 { "" } else { "s" })
}

/// Replaces unprintable characters and adds the period.
pub(super) fn sentence(text: &str) -> String {
    replace_unprintable(text) + "."
}
