//! A run's output: a folder with `run.json` (the run and its results) and
//! `records.jsonl.zst` (one row per request).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::measure::timeline::TokenEvent;
use crate::trace_file::gaps::pack;
use crate::trace_file::header::{SOURCE, TraceHeader};
use crate::trace_file::row::TraceEntry;
use crate::trace_file::segment_list::{RECORDS_FILE, RUN_FILE};
use crate::trace_file::writer::TraceWriter;

/// The folder of a run.
pub struct RunOutput {
    folder: PathBuf,
    header: TraceHeader,
}

/// An open output.
pub struct RunWriter(TraceWriter<File>);

impl RunOutput {
    /// Writes into a folder, and creates it if necessary. `header` is the trace's.
    ///
    /// # Errors
    /// The folder cannot be created, or already holds a result.
    pub fn new(folder: &Path, header: TraceHeader) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let refused = |message: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        if folder.join(RUN_FILE).exists() {
            return refused("it holds a result already; name another folder");
        }
        // The remains of a killed run, which `report` can read.
        if folder.join(RECORDS_FILE).exists() {
            return refused("it holds the records of a run that did not end; name another folder");
        }
        Ok(Self { folder: folder.to_owned(), header })
    }

    /// Creates the file of rows.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn begin(self, started_unix_ns: u64) -> io::Result<RunWriter> {
        let file = File::create(self.folder.join(RECORDS_FILE))?;
        let header = TraceHeader { source: SOURCE.to_owned(), started_unix_ns: Some(started_unix_ns), ..self.header };
        TraceWriter::new(file, &header).map(RunWriter)
    }
}

impl RunWriter {
    /// Writes a row with its gaps.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn row(&mut self, mut row: TraceEntry, gaps: &[TokenEvent]) -> io::Result<()> {
        row.timing.gaps = (!gaps.is_empty()).then(|| pack(gaps));
        self.0.write(&row)
    }

    /// Flushes all rows so far to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    /// Ends the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(self) -> io::Result<()> {
        self.0.finish().map(drop)
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
