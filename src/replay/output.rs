//! The directory that a run leaves: `run.json`, which says what was done and what came of it, and `records.jsonl.zst`,
//! one row per request.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::capture::format::{Entry, Header};
use crate::capture::reader::RECORDS;
use crate::capture::writer::TraceWriter;

/// Where a result goes.
#[derive(Debug)]
pub struct Output {
    folder: PathBuf,
    header: Header,
}

/// A result that is being written.
pub(super) struct Writing {
    rows: TraceWriter<File>,
}

impl Output {
    /// Into a folder, which is made if it is not there. `header` is the trace's.
    ///
    /// # Errors
    /// When it cannot be made, or holds a result already.
    pub fn new(folder: &Path, header: Header) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        if folder.join("run.json").exists() {
            let said = "it holds a result already; name another folder";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, said));
        }
        Ok(Self { folder: folder.to_owned(), header })
    }

    pub(super) fn begin(self, began_unix_ns: u64) -> io::Result<Writing> {
        let file = File::create(self.folder.join(RECORDS))?;
        let source = concat!("streamgauge ", env!("CARGO_PKG_VERSION")).to_owned();
        let header = Header { source, started_unix_ns: Some(began_unix_ns), ..self.header };
        Ok(Writing { rows: TraceWriter::new(file, &header)? })
    }
}

impl Writing {
    pub(super) fn row(&mut self, row: &Entry) -> io::Result<()> {
        self.rows.write(row)
    }

    pub(super) fn end(self) -> io::Result<()> {
        self.rows.finish().map(drop)
    }
}

/// Writes `run.json` into the folder, in one step.
///
/// # Errors
/// What the system says.
pub fn write_run(folder: &Path, run: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(run)?;
    let unfinished = folder.join("run.json.part");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, folder.join("run.json"))
}
