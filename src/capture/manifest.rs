//! The manifest of an hour: which files of one instance the bucket has.
//!
//! Each upload adds a line to a journal in the spool, `uploads-20261125T10Z.jsonl`, before the segment is removed, so a
//! kill loses no line. When the hour is over, the lines become one JSON document.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::calendar::{moment, of_moment};

const PREFIX: &str = "uploads-";
const SUFFIX: &str = ".jsonl.part";
const HOUR_NANOS: u64 = 3_600_000_000_000;
/// Version of the manifest's format.
const VERSION: u64 = 1;

/// An object of the hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UploadedFile {
    /// Name of the object, in the folder of the manifest.
    pub name: String,
    /// Number of requests.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 digest of its bytes, in hexadecimal digits.
    pub blake3: String,
}

/// The manifest of one instance and hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HourManifest {
    /// Version of this format.
    pub streamgauge_manifest: u64,
    /// The hour (UTC), as in `2026-11-25T10Z`.
    pub hour: String,
    /// The instance.
    pub instance: String,
    /// Number of requests of all files.
    pub rows: u64,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// The files, by name.
    pub files: Vec<UploadedFile>,
}

/// One line of the journal.
#[derive(Serialize, Deserialize)]
struct JournalLine {
    number: u64,
    #[serde(flatten)]
    file: UploadedFile,
}

/// The uploads of one hour so far.
pub(super) struct UploadJournal {
    path: PathBuf,
    hour: u64,
    lines: Vec<JournalLine>,
}

impl UploadJournal {
    /// Adds an upload to the journal of an hour, which is counted from 1970.
    pub(super) fn append(spool: &Path, hour: u64, number: u64, file: &UploadedFile) -> io::Result<()> {
        let path = spool.join(format!("{PREFIX}{}{SUFFIX}", hour_name(hour)));
        // The line before it may be torn, by a kill or a full disk.
        let mut line = b"\n".to_vec();
        serde_json::to_writer(&mut line, &JournalLine { number, file: file.clone() })?;
        line.push(b'\n');
        let mut journal = OpenOptions::new().create(true).append(true).open(path)?;
        journal.write_all(&line)?;
        journal.sync_data()
    }

    pub(super) fn hour(&self) -> u64 {
        self.hour
    }

    pub(super) fn hour_name(&self) -> String {
        hour_name(self.hour)
    }

    pub(super) fn first_number(&self) -> u64 {
        self.lines.iter().map(|line| line.number).min().unwrap_or_default()
    }

    pub(super) fn manifest(&self, instance: &str) -> io::Result<Vec<u8>> {
        // An upload that a kill interrupted before the removal of its segment has two lines.
        let files: BTreeMap<&str, &UploadedFile> =
            self.lines.iter().map(|line| (&*line.file.name, &line.file)).collect();
        let files: Vec<UploadedFile> = files.into_values().cloned().collect();
        let manifest = HourManifest {
            streamgauge_manifest: VERSION,
            hour: crate::measure::calendar::utc_hour(self.hour * HOUR_NANOS),
            instance: instance.to_owned(),
            rows: files.iter().map(|file| file.rows).sum(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            files,
        };
        Ok(serde_json::to_vec_pretty(&manifest)?)
    }

    pub(super) fn remove(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }
}

/// The journals of hours before `now` of which no segment is left in the spool. Hours are counted from 1970.
pub(super) fn manifests_due(spool: &Path, now: u64, left: &[u64]) -> io::Result<Vec<UploadJournal>> {
    let mut due = Vec::new();
    for file in fs::read_dir(spool)? {
        let path = file?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let hour = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX)).and_then(hour_of);
        let Some(hour) = hour.filter(|hour| *hour < now && !left.contains(hour)) else { continue };
        // A line that a kill has torn belongs to a segment that is still there, and is uploaded again.
        let text = fs::read_to_string(&path)?;
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        due.push(UploadJournal { path, hour, lines });
    }
    due.sort_by_key(|journal| journal.hour);
    Ok(due)
}

/// `20261125T10Z`.
fn hour_name(hour: u64) -> String {
    moment(hour * HOUR_NANOS)[..11].to_owned() + "Z"
}

fn hour_of(name: &str) -> Option<u64> {
    Some(of_moment(&format!("{}0000Z", name.strip_suffix('Z')?))? / HOUR_NANOS)
}
