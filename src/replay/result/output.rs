//! A run's output: a callback for each row, and a directory with `run.json` (the run and its results) and
//! `records.jsonl.zst` (one row per request).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::trace_file::reader::{RECORDS_FILE, RUN_FILE};
use crate::trace_file::row::{SOURCE, TraceEntry, TraceHeader};
use crate::trace_file::writer::TraceWriter;

/// Receives each row as its request ends, on the collector thread.
pub type RowCallback = Box<dyn FnMut(TraceEntry) + Send>;

/// The outputs of a run.
#[derive(Default)]
pub struct RunOutput {
    folder: Option<(PathBuf, TraceHeader)>,
    row_callback: Option<RowCallback>,
}

/// An open output.
pub(in crate::replay) struct RunWriter {
    rows: Option<TraceWriter<File>>,
    row_callback: Option<RowCallback>,
}

impl RunOutput {
    /// Writes into a folder, and creates it if necessary. `header` is the trace's.
    ///
    /// # Errors
    /// The folder cannot be created, or already holds a result.
    pub fn new(folder: &Path, header: TraceHeader) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let refused = |said: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, said));
        if folder.join(RUN_FILE).exists() {
            return refused("it holds a result already; name another folder");
        }
        // The remains of a killed run, which `report` can read.
        if folder.join(RECORDS_FILE).exists() {
            return refused("it holds the records of a run that did not end; name another folder");
        }
        Ok(Self { folder: Some((folder.to_owned(), header)), row_callback: None })
    }

    /// Also passes each row to this callback.
    pub fn with_row_callback(self, each: RowCallback) -> Self {
        Self { row_callback: Some(each), ..self }
    }

    pub(in crate::replay) fn begin(self, started_unix_ns: u64) -> io::Result<RunWriter> {
        let rows = |(folder, header): (PathBuf, TraceHeader)| {
            let file = File::create(folder.join(RECORDS_FILE))?;
            let source = SOURCE.to_owned();
            TraceWriter::new(file, &TraceHeader { source, started_unix_ns: Some(started_unix_ns), ..header })
        };
        Ok(RunWriter { rows: self.folder.map(rows).transpose()?, row_callback: self.row_callback })
    }
}

impl RunWriter {
    /// The callback gets every row, even if the file fails.
    pub(in crate::replay) fn row(&mut self, row: TraceEntry) -> io::Result<()> {
        let written = self.rows.as_mut().map_or(Ok(()), |rows| rows.write(&row));
        if let Some(each) = &mut self.row_callback {
            each(row);
        }
        written
    }

    /// Flushes all rows so far to the file.
    pub(in crate::replay) fn flush(&mut self) -> io::Result<()> {
        self.rows.as_mut().map_or(Ok(()), TraceWriter::flush)
    }

    pub(in crate::replay) fn end(self) -> io::Result<()> {
        self.rows.map_or(Ok(()), |rows| rows.finish().map(drop))
    }
}

/// Writes `run.json` into the folder, atomically.
///
/// # Errors
/// The file cannot be written.
pub fn write_run(folder: &Path, run: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(run)?;
    let unfinished = folder.join("run.json.part");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, folder.join(RUN_FILE))
}
