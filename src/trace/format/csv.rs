//! Rows of cells: comma-separated numbers and names, none of which holds a comma or a line end.

use std::collections::BTreeMap;

use super::super::error::Problem;
use crate::measure::json::whole_of;

/// The cells of a line, without quotes around them.
pub(super) fn cells(line: &[u8]) -> impl Iterator<Item = &str> {
    line.split(|byte| *byte == b',').map(|cell| {
        let cell = str::from_utf8(cell).unwrap_or_default().trim();
        cell.strip_prefix('"').and_then(|cell| cell.strip_suffix('"')).unwrap_or(cell)
    })
}

/// A column's name in small letters and digits only: files spell them in many ways.
pub(super) fn folded(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// The columns of a file, by their folded names.
#[derive(Debug)]
pub(super) struct Columns {
    at: BTreeMap<String, usize>,
    names: Vec<String>,
}

impl Columns {
    /// Reads the line of names.
    pub(super) fn of(line: &[u8]) -> Self {
        let names: Vec<String> = cells(line).map(str::to_owned).collect();
        Self { at: names.iter().enumerate().map(|(at, name)| (folded(name), at)).collect(), names }
    }

    /// Where a column is that has to be there.
    pub(super) fn required(&self, name: &str) -> Result<usize, Problem> {
        self.optional(name)
            .ok_or_else(|| Problem::of(name, "no column of that name").remedy("the first line has to name the columns"))
    }

    /// Where a column is that may be there.
    pub(super) fn optional(&self, name: &str) -> Option<usize> {
        self.at.get(&folded(name)).copied()
    }

    /// The columns that are not among `known`, and what they are called: some have no name, as a data frame's index.
    pub(super) fn others(&self, known: &[&str]) -> Vec<(usize, String)> {
        let is_other = |(_, name): &(usize, &String)| known.iter().all(|known| folded(known) != folded(name));
        let called = |(at, name): (usize, &String)| match name.is_empty() {
            true => (at, format!("column {}, which has no name", at + 1)),
            false => (at, name.clone()),
        };
        self.names.iter().enumerate().filter(is_other).map(called).collect()
    }
}

/// The value of a cell.
pub(super) fn value<T: std::str::FromStr>(cells: &[&str], at: usize, name: &str, wanted: &str) -> Result<T, Problem> {
    let cell = cells.get(at).ok_or_else(|| Problem::of(name, "the row is shorter than the line of names"))?;
    cell.parse().map_err(|_| Problem::of(name, format!("expected {wanted}")))
}

/// A count; files that went through a spreadsheet or a data frame have `12.0` for 12.
pub(super) fn count(cells: &[&str], at: usize, name: &str) -> Result<u64, Problem> {
    const WANTED: &str = "a whole number that is not negative";
    value::<u64>(cells, at, name, WANTED).or_else(|problem| whole_of(value(cells, at, name, WANTED)?).ok_or(problem))
}
