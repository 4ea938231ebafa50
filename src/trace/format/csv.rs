//! Splits comma-separated rows into cells. A quoted cell may contain commas but no line break, because a row is one
//! line.

use std::borrow::Cow;
use std::collections::BTreeMap;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};

use super::super::error::TraceProblem;
use crate::measure::whole_number::as_whole_number;

/// Splits one line at a time and reuses its buffers.
#[derive(Debug)]
pub(super) struct CsvSplitter {
    reader: Reader,
    /// The cells of a line, concatenated, and the end of each.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl CsvSplitter {
    pub(super) fn new() -> Self {
        // Any other terminator would lose the rest of the line.
        let reader = ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        Self { reader, text: Vec::new(), ends: Vec::new() }
    }

    /// The cells of a line, without surrounding white space and quotes.
    pub(super) fn cells(&mut self, line: &[u8]) -> Result<Vec<&str>, TraceProblem> {
        self.reader.reset();
        let (mut written, mut cells) = (0, 0);
        for mut input in [line, b"\n"] {
            loop {
                let (text, ends) = (&mut self.text[written..], &mut self.ends[cells..]);
                let (result, read, wrote, ended) = self.reader.read_record(input, text, ends);
                input = &input[read..];
                (written, cells) = (written + wrote, cells + ended);
                match result {
                    ReadRecordResult::InputEmpty => break,
                    ReadRecordResult::OutputFull => self.text.resize(2 * written + line.len(), 0),
                    ReadRecordResult::OutputEndsFull => self.ends.resize(2 * cells + 16, 0),
                    ReadRecordResult::Record | ReadRecordResult::End => return self.split_cells(cells),
                }
            }
        }
        Err(TraceProblem::new("a quote is opened and not closed on the line").with_remedy("write a row as one line"))
    }

    fn split_cells(&self, cells: usize) -> Result<Vec<&str>, TraceProblem> {
        let ends = &self.ends[..cells];
        let begins = std::iter::once(&0).chain(ends);
        let cell = |(begin, end): (&usize, &usize)| str::from_utf8(&self.text[*begin..*end]).map(str::trim);
        begins.zip(ends).map(cell).collect::<Result<_, _>>().map_err(|_| TraceProblem::new("is not UTF-8"))
    }
}

/// Quotes a cell if necessary. A line break becomes a space, because a row is one line.
pub(super) fn quote_cell(text: &str) -> Cow<'_, str> {
    if !text.contains([',', '"', '\r', '\n']) {
        return text.into();
    }
    format!("\"{}\"", text.replace('"', "\"\"").replace(['\r', '\n'], " ")).into()
}

/// Reduces a column name to lowercase letters and digits, because files spell names differently.
fn normalize(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Column positions by normalized name.
#[derive(Debug, Default)]
pub(super) struct CsvColumns {
    at: BTreeMap<String, usize>,
    names: Vec<String>,
}

impl CsvColumns {
    pub(super) fn parse(line: &[u8]) -> Result<Self, TraceProblem> {
        let names: Vec<String> = CsvSplitter::new().cells(line)?.into_iter().map(str::to_owned).collect();
        Ok(Self { at: names.iter().enumerate().map(|(at, name)| (normalize(name), at)).collect(), names })
    }

    pub(super) fn required(&self, name: &str) -> Result<usize, TraceProblem> {
        self.optional(name).ok_or_else(|| {
            TraceProblem::in_field(name, "no column of that name").with_remedy("the first line has to name the columns")
        })
    }

    pub(super) fn optional(&self, name: &str) -> Option<usize> {
        self.at.get(&normalize(name)).copied()
    }

    /// Columns not among `known`, with their names. Some have no name, such as a data frame's index.
    pub(super) fn others(&self, known: &[&str]) -> Vec<(usize, String)> {
        let is_other = |(_, name): &(usize, &String)| known.iter().all(|known| normalize(known) != normalize(name));
        let called = |(at, name): (usize, &String)| match name.is_empty() {
            true => (at, format!("column {}, which has no name", at + 1)),
            false => (at, name.clone()),
        };
        self.names.iter().enumerate().filter(is_other).map(called).collect()
    }
}

pub(super) fn value<T: std::str::FromStr>(
    cells: &[&str],
    at: usize,
    name: &str,
    expected: &str,
) -> Result<T, TraceProblem> {
    let cell =
        cells.get(at).ok_or_else(|| TraceProblem::in_field(name, "the row is shorter than the line of names"))?;
    cell.parse().map_err(|_| TraceProblem::in_field(name, format!("expected {expected}")))
}

/// Parses a count. Spreadsheets and data frames write `12.0` for 12.
pub(super) fn count(cells: &[&str], at: usize, name: &str) -> Result<u64, TraceProblem> {
    const EXPECTED: &str = "a whole number that is not negative";
    value::<u64>(cells, at, name, EXPECTED)
        .or_else(|problem| as_whole_number(value(cells, at, name, EXPECTED)?).ok_or(problem))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_quoted_cell_holds_commas_and_quotes() {
        let mut splitter = CsvSplitter::new();
        let cells: [(&str, &[&str]); 7] = [
            (r#"1,"gpt-4, large", 2 ,,"say ""hi""""#, &["1", "gpt-4, large", "2", "", r#"say "hi""#]),
            ("a,b\r", &["a", "b"]),
            ("a,\"b\"\r", &["a", "b"]),
            ("a,b\rc,d", &["a", "b\rc", "d"]),
            ("", &[]),
            (",", &["", ""]),
            (r#""""#, &[""]),
        ];
        for (line, cells) in cells {
            assert_eq!(splitter.cells(line.as_bytes()).unwrap_or_default(), cells, "{line}");
        }
        let error = |line: &[u8]| CsvSplitter::new().cells(line).unwrap_err().to_string();
        assert_eq!(error(b"1,\"two"), "a quote is opened and not closed on the line; write a row as one line");
        assert_eq!(error(b"\xff,1"), "is not UTF-8");
    }

    proptest! {
        #[test]
        fn what_is_written_as_cells_is_read_back(texts in prop::collection::vec("[a-z,\"é \n]{0,40}", 2..60)) {
            let line = texts.iter().map(|text| quote_cell(text)).collect::<Vec<_>>().join(",");
            let expected: Vec<String> = texts.iter().map(|text| text.replace('\n', " ").trim().to_owned()).collect();
            let mut splitter = CsvSplitter::new();
            prop_assert_eq!(splitter.cells(line.as_bytes()).unwrap(), expected);
        }

        #[test]
        fn no_line_is_too_odd(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _cells = CsvSplitter::new().cells(&line).is_ok();
        }
    }
}
