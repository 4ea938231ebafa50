//! A prefix of object storage at which the shards of one load meet, and to which they upload their files.
//!
//! ```text
//! PREFIX/start/ready-00003     a shard is ready to send
//! PREFIX/start/at              the time at which all begin, written by shard 1 when all are ready
//! PREFIX/shard-00003/run.json  the files of a shard, after its run; run.json comes last
//! ```
//!
//! Objects are never replaced: a prefix serves one load.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bytes::Bytes;

use crate::clock::{Clock, rest};
use crate::config::StorageUrl;
use crate::measure::calendar::utc;
use crate::measure::time::{Gap, Stamp};
use crate::replay::plan::schedule::Shard;
use crate::storage::{Bucket, StorageError, find_objects};
use crate::trace_file::segment_list::RUN_FILE;

/// Pause between two looks at the storage.
const POLL_INTERVAL: Gap = Gap::from_millis(500);
/// Time from the start's announcement to the start: a look of every shard, and a slow storage.
const START_DELAY: Gap = Gap::from_millis(5_000);
/// Longest wait for the other shards: a node that has to be added first takes some minutes.
const MEETING_TIMEOUT: Gap = Gap::from_millis(1_800_000);
/// Pause before the last attempt to put an object. Pauses double, so a storage may be away for a minute.
const MAX_PUT_PAUSE: Gap = Gap::from_millis(32_000);
/// Maximum size of an uploaded file: it is held in memory, and put in one request.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The prefix, as one shard uses it.
pub(super) struct RunPrefix {
    bucket: Bucket,
    url: StorageUrl,
    shard: Shard,
}

impl RunPrefix {
    pub(super) fn open(url: &StorageUrl, shard: Shard) -> Result<Self, StorageError> {
        Ok(Self { bucket: Bucket::open(url)?, url: url.clone(), shard })
    }

    /// Waits until all shards are here, and returns the common start.
    pub(super) fn meet(&self) -> anyhow::Result<Stamp> {
        let Shard { index, count } = self.shard;
        let deadline = Clock::Monotonic.now().after(MEETING_TIMEOUT);
        self.put(&self.key(&format!("start/ready-{index:05}")), Bytes::from_static(b"ready\n"), true)?;
        loop {
            if let Some(text) = self.announced()? {
                let at = humantime::parse_rfc3339(text.trim()).with_context(|| format!("{} has no time", self.at()))?;
                let begin = Clock::Monotonic.of_wall(at);
                return begin.with_context(|| {
                    format!(
                        "a load began at {} in {}; remedy: give each load a prefix of its own",
                        text.trim(),
                        self.url
                    )
                });
            }
            let missing = if index == 0 { self.missing()? } else { BTreeSet::new() };
            if index == 0 && missing.is_empty() {
                let clock = Clock::Monotonic;
                let at = utc(clock.unix_nanos(clock.now().after(START_DELAY)));
                self.put(&self.key("start/at"), format!("{at}\n").into(), true)?;
                continue;
            }
            let shards = || missing.iter().map(|index| (index + 1).to_string()).collect::<Vec<_>>().join(", ");
            anyhow::ensure!(
                Clock::Monotonic.now() < deadline,
                "--start-at all: after {MEETING_TIMEOUT} {} of {count} at {}; remedy: look at the pods of the others",
                if index == 0 {
                    format!("shards {} are not there,", shards())
                } else {
                    "shard 1 has not announced a start,".to_owned()
                },
                self.url
            );
            rest(POLL_INTERVAL);
        }
    }

    /// Uploads the files of a run, and returns their place.
    pub(super) fn upload(&self, folder: &Path) -> anyhow::Result<String> {
        let place = self.key(&format!("shard-{:05}", self.shard.index));
        let mut files = Vec::new();
        list(folder, Path::new(""), &mut files)?;
        // A prefix with a run.json is whole.
        files.sort_by_key(|file| (file.as_os_str() == RUN_FILE, file.clone()));
        for file in files {
            let path = folder.join(&file);
            let size = fs::metadata(&path)?.len();
            anyhow::ensure!(size <= MAX_FILE_BYTES, "{} is larger than {} MiB", path.display(), MAX_FILE_BYTES >> 20);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            self.put(&format!("{place}/{}", file.display()), bytes.into(), false)?;
        }
        Ok(self.bucket.url_of(&place).to_string())
    }

    fn key(&self, name: &str) -> String {
        let prefix = self.url.key().trim_end_matches('/');
        if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") }
    }

    fn at(&self) -> StorageUrl {
        self.bucket.url_of(&self.key("start/at"))
    }

    /// The text of the announced start, if there is one.
    fn announced(&self) -> anyhow::Result<Option<String>> {
        let key = self.key("start/at");
        // A longer text is no time.
        let Some(size) = self.bucket.size(&key)?.map(|size| size.min(64)) else { return Ok(None) };
        Ok(Some(String::from_utf8_lossy(&self.bucket.read(&key, 0..size)?).into_owned()))
    }

    /// The indexes of the shards that are not ready.
    fn missing(&self) -> anyhow::Result<BTreeSet<u64>> {
        let found = find_objects(&self.bucket.url_of(&self.key("start")))?;
        let ready = found.iter().filter_map(|object| object.key.rsplit_once("/ready-")?.1.parse::<u64>().ok());
        let mut missing: BTreeSet<u64> = (0..self.shard.count).collect();
        ready.for_each(|index| _ = missing.remove(&index));
        Ok(missing)
    }

    /// Puts an object. One with other content is an error, unless `may_exist`.
    fn put(&self, key: &str, bytes: Bytes, may_exist: bool) -> anyhow::Result<()> {
        let mut pause = POLL_INTERVAL;
        loop {
            match self.bucket.create(key, &bytes) {
                Ok(is_stored) if is_stored || may_exist => return Ok(()),
                Ok(_) => anyhow::bail!(
                    "{} exists already; remedy: give each load a prefix of its own",
                    self.bucket.url_of(key)
                ),
                Err(StorageError::Failed(_)) if pause <= MAX_PUT_PAUSE => {}
                Err(error) => return Err(error.into()),
            }
            rest(pause);
            pause = Gap::from_nanos(pause.as_nanos() * 2);
        }
    }
}

/// Lists the files in a folder and the folders in it, relative to it.
fn list(root: &Path, below: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let folder = root.join(below);
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        match entry.file_type()? {
            kind if kind.is_dir() => list(root, &path, files)?,
            kind if kind.is_file() => files.push(path),
            _ => {}
        }
    }
    Ok(())
}
