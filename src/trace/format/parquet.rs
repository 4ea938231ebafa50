//! Parquet files of our own rows ([`trace_file::parquet`](crate::trace_file::parquet)).

use std::path::PathBuf;

use bytes::Bytes;

use super::super::entry_fields::EntryFields;
use super::super::{Error, Trace};
use super::{FormatWriter, InputSource, ReadOptions, TraceFormat, TraceOutput, TraceProblem, WriteError, native};
use crate::trace_file::PARQUET_MAGIC;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::parquet::{ParquetLines, ParquetWriter};
use crate::trace_file::reader::TraceReader;
use crate::trace_file::row::TraceEntry;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "parquet",
    aliases: &[],
    about: "Parquet, a column per field of a row; for DuckDB, Spark, ClickHouse, Trino",
    time_unit: "nanoseconds",
    detected_by: "its first bytes",
    keys: &[],
    detect: |source| matches!(source, InputSource::Stream(stream) if stream.sample.starts_with(PARQUET_MAGIC)),
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::ALL,
    has_wall_clock: true,
    delta_fields: Some(EntryFields::NONE),
};

/// Reads a file row by row. A pipe is read whole, because the schema stands at its end.
fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let InputSource::Stream(stream) = source else { return native::read(source, options) };
    let path = PathBuf::from(&stream.name);
    if stream.folder.is_some() {
        return native::read_rows(&path, TraceReader::open(&path), options);
    }
    let name = stream.name.clone();
    let lines = ParquetLines::open(Bytes::from(stream.read_all()?));
    let lines = lines.map_err(|error| TraceProblem::new(error.to_string()).at_line(&name, None))?;
    native::read_rows(&path, TraceReader::from_stream(&path, Box::new(lines)), options)
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let writer = ParquetWriter::new(header, out).map_err(|error| TraceProblem::new(error.to_string()))?;
    Ok(Box::new(writer))
}

impl FormatWriter for ParquetWriter<TraceOutput> {
    fn write(&mut self, entry: &TraceEntry) -> Result<(), WriteError> {
        Self::write(self, entry).map_err(to_write_error)
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, WriteError> {
        Self::finish(*self).map_err(to_write_error)?;
        Ok(Vec::new())
    }
}

fn to_write_error(error: impl std::error::Error + Send + Sync + 'static) -> WriteError {
    WriteError::Io(std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::measure::time::Gap;
    use crate::measure::timeline::TokenEvent;
    use crate::trace_file::gaps::pack;
    use crate::trace_file::row::PromptShape;

    #[test]
    fn every_field_of_a_row_is_a_column_and_comes_back() {
        let text = r#"{"at":9,"planned":1,"route":"/v1","dialect":"openai.chat","model":"m","stream":true,"params":{
            "max_tokens":1,"min_tokens":2,"n":3,"temperature":0.5,"ignore_eos":true,"logprobs":false,"tools":true,
            "structured":false},"prompt":{"bytes":4,"tokens":5,"source":"usage","cached":6,"blocks":[18446744073709551615,7],
            "parts":[{"kind":"image","bytes":8,"size":[3,4]}]},"session":"s","turn":2,"parent":"p","think":10,"status":200,
            "ending":"complete","outcome":"success","finish":"stop","output_tokens":11,"output_source":"usage",
            "reasoning_tokens":12,"timing":{"sent":13,"evidence":14,"first_token":15,"first_output":16,"ended":17,
            "first_tokens":1,"lost_gaps":18},"abort_tokens":19,"in_flight":20,"wanted":{"input_tokens":21,
            "output_tokens":22,"think":23,"abort_tokens":24,"abort_after":25},"transfer":{"connecting":26,"head":27,
            "first_byte":28,"sent":29,"received":30,"reads":31},"upstream":"h:1","class":{"tier":"gold"},
            "slo":{"ttft":32,"tpot":33}}"#;
        let mut row: TraceEntry = serde_json::from_str(text).unwrap();
        let events = [(5, Some(1)), (0, None), (7_000_000, Some(3))];
        row.timing.gaps = Some(pack(&events.map(|(nanos, tokens)| TokenEvent::new(Gap::from_nanos(nanos), tokens))));
        assert_eq!(EntryFields::of(&row), EntryFields::ALL);
        let header = TraceHeader { started_unix_ns: Some(1_000), sample: Some(0.5), ..TraceHeader::new("test 1") };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let mut writer = ParquetWriter::new(&header, File::create(&path).unwrap()).unwrap();
        let bare = TraceEntry { at: 3, ..TraceEntry::default() };
        [&row, &bare].into_iter().for_each(|row| writer.write(row).unwrap());
        writer.finish().unwrap();
        let reader = TraceReader::open(&path).unwrap();
        assert_eq!(*reader.header(), header);
        assert_eq!(reader.map(Result::unwrap).collect::<Vec<_>>(), [row, bare]);
    }

    #[test]
    fn rows_of_several_row_groups_come_back_in_order_with_their_own_values() {
        let row = |at: u64| TraceEntry {
            at,
            model: (!at.is_multiple_of(3)).then(|| format!("m{}", at / 10_000)),
            status: at.is_multiple_of(2).then_some(200),
            prompt: PromptShape { blocks: (0..at % 3).map(|block| at + block).collect(), ..PromptShape::default() },
            ..TraceEntry::default()
        };
        // A row group has 32,768 rows at most.
        let rows = 70_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let mut writer = ParquetWriter::new(&TraceHeader::new("test 1"), File::create(&path).unwrap()).unwrap();
        (0..rows).for_each(|at| writer.write(&row(at)).unwrap());
        writer.finish().unwrap();
        let read = TraceReader::open(&path).unwrap().map(Result::unwrap);
        assert_eq!(read.zip(0..).map(|(read, at)| assert_eq!(read, row(at))).count() as u64, rows);
    }
}
