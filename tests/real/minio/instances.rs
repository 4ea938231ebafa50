//! Two hundred instances that upload at the same moment, and a reader of all of them.
//!
//! The instances are the uploaders of two hundred spools in one process of its own, because credentials belong to the
//! environment. The test starts its own program once more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use streamgauge::capture::retention::Retention;
use streamgauge::capture::segments::CaptureFolder;
use streamgauge::capture::stats::CaptureStats;
use streamgauge::capture::upload_target::UploadTarget;
use streamgauge::clock::{Clock, ClockReading};
use streamgauge::config::StorageUrl;
use streamgauge::measure::time::Gap;
use streamgauge::trace_file::header::TraceHeader;
use streamgauge::trace_file::row::TraceEntry;
use streamgauge::trace_file::writer::TraceWriter;

use super::forwarder::{Fault, Forwarder};
use super::segments;
use super::server::{BUCKET, KEY, Minio, SECRET};
use crate::processes::{MINUTE, exclusive_turn, until};

const INSTANCES: u64 = 200;
const ROWS: u64 = 5;
/// 2026-11-21T10:15:00Z.
const STARTED: u64 = 1_795_256_100_000_000_000;
const SPOOLS: &str = "SPOOLS_OF_INSTANCES";

fn spool(spools: &Path, instance: u64) -> PathBuf {
    spools.join(format!("pod-{instance:03}"))
}

/// The segment that a killed proxy has left. The rows of all instances interleave in time, by their numbers.
fn leave_segment(spools: &Path, instance: u64) {
    let folder = spool(spools, instance);
    fs::create_dir(&folder).unwrap();
    let header = TraceHeader { started_unix_ns: Some(STARTED), ..TraceHeader::new("test") };
    let file = File::create(folder.join("00000000-20261121T101500Z.jsonl.zst")).unwrap();
    let mut writer = TraceWriter::new(file, &header).unwrap();
    for number in (0..ROWS).map(|row| row * INSTANCES + instance + 1) {
        let mut row = TraceEntry { at: number * 1_000_000, ..TraceEntry::default() };
        row.params.max_tokens = Some(number);
        writer.write(&row).unwrap();
    }
    writer.finish().unwrap();
}

/// Uploads all spools at once, in this process, until they are empty.
fn upload_all(spools: &Path) {
    let url = StorageUrl::parse(&format!("s3://{BUCKET}/captures")).unwrap().unwrap();
    let clock = Clock::Monotonic;
    let now = ClockReading { stamp: clock.now(), unix_nanos: clock.unix_nanos(clock.now()) };
    let retention = Retention { bytes: 1 << 30, age: Gap::from_nanos(u64::MAX) };
    let open = |instance: u64| {
        let stats = Arc::new(CaptureStats::default());
        let mut folder = CaptureFolder::open(&spool(spools, instance), retention, now).unwrap();
        let target = UploadTarget { url: url.clone(), instance: format!("pod-{instance:03}") };
        folder.upload(&target, false, Arc::clone(&stats), clock.clone()).unwrap();
        (folder, stats)
    };
    let running: Vec<_> = (0..INSTANCES).map(open).collect();
    // The segment, and the manifest of its hour.
    let stored = |stats: &CaptureStats| stats.uploads().unwrap().attempts[1].load(Ordering::Relaxed);
    until("every instance has stored both", 3 * MINUTE, || running.iter().all(|(_, stats)| stored(stats) == 2));
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn two_hundred_instances_at_once_store_each_row_once_and_are_read_as_one_in_order_of_time() {
    if let Some(spools) = std::env::var_os(SPOOLS) {
        return upload_all(Path::new(&spools));
    }
    let _turn = exclusive_turn();
    let (minio, spools) = (Minio::start(), tempfile::tempdir().unwrap());
    let network = Forwarder::to(minio.addr);
    (0..INSTANCES).for_each(|instance| leave_segment(spools.path(), instance));
    // Every instance has failed once, so that all try again together.
    network.set(Fault::Refuse);
    let mut all = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "two_hundred_instances_at_once"])
        .envs(Minio::variables(network.addr))
        .env(SPOOLS, spools.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("every instance has met the fault", MINUTE, || network.met() as u64 >= INSTANCES);
    network.set(Fault::None);
    until("every spool is empty", 3 * MINUTE, || {
        assert!(all.try_wait().unwrap().is_none_or(|status| status.success()), "the instances failed");
        (0..INSTANCES).all(|instance| segments(&spool(spools.path(), instance)).is_empty())
    });
    let output = all.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && !log.contains(KEY) && !log.contains(SECRET), "{log}");
    // Each row once, in the folder of its instance, and all in one order of time.
    let rows = minio.rows("captures");
    let numbers: Vec<u64> = rows.iter().map(|row| row["params"]["max_tokens"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=INSTANCES * ROWS).collect::<Vec<_>>());
    let objects = minio.versions();
    assert!(objects.values().all(|versions| *versions == 1), "an object was replaced: {objects:?}");
    let mut folders = BTreeMap::<&str, usize>::new();
    objects.keys().for_each(|key| *folders.entry(key.split('/').nth(3).unwrap()).or_default() += 1);
    assert!(folders.values().all(|objects| *objects == 2), "a segment and a manifest: {folders:?}");
    let named: BTreeSet<String> = (0..INSTANCES).map(|instance| format!("instance=pod-{instance:03}")).collect();
    assert_eq!(folders.into_keys().map(str::to_owned).collect::<BTreeSet<_>>(), named);
}
