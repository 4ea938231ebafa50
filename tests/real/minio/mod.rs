//! Captures that go to MinIO, a real S3 server, while the network, the server, the proxy or the disk fails.
//!
//! Each request has a number, `max_tokens`, which its row repeats. So a test knows exactly which rows have to be in the
//! bucket, and that each is there once. Every bucket keeps all versions of its objects, so a replaced one would be seen.

mod forwarder;
mod instances;
mod server;
mod shards;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use tempfile::TempDir;

use self::forwarder::{Fault, Forwarder};
use self::server::{BUCKET, KEY, Minio, SECRET};
use crate::processes::{MINUTE, exclusive_turn, until};
use crate::support::captured::{RunningProxy, answer, ask_numbered, counted, run_with, server, small_disk};
use crate::support::upstream::Upstream;

/// Repeated attempts pause for up to a minute.
const MINUTES: Duration = Duration::from_secs(180);

/// Common parts of a test's proxies: the storage behind a forwarder, the server of models, and a spool.
struct Stage {
    minio: Minio,
    network: Forwarder,
    upstream: Upstream,
    spool: TempDir,
    /// `--capture-format` of the proxies.
    format: &'static str,
    /// Requests sent so far; the next has this number.
    sent: u64,
    /// Logs and pages of all proxies.
    shown: String,
}

impl Stage {
    fn new() -> Self {
        let minio = Minio::start();
        let network = Forwarder::to(minio.addr);
        Self {
            minio,
            network,
            upstream: server(answer(2)),
            spool: TempDir::new().unwrap(),
            format: "jsonl",
            sent: 1,
            shown: String::new(),
        }
    }

    /// A proxy that captures into the bucket, over the forwarder, from segments of `keep` / 8.
    fn proxy(&self, keep: &str) -> RunningProxy {
        self.proxy_under(&[], keep)
    }

    fn proxy_under(&self, under: &[&str], keep: &str) -> RunningProxy {
        let more = [
            format!("--capture=s3://{BUCKET}/captures"),
            format!("--capture-spool={}", self.spool.path().display()),
            format!("--capture-keep-bytes={keep}"),
            format!("--capture-format={}", self.format),
            "--capture-flush=10ms".to_owned(),
            "--capture-block=16".to_owned(),
        ];
        let mut variables = Minio::variables(self.network.addr).to_vec();
        variables.push(("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1".to_owned()));
        let (more, variables): (Vec<&str>, Vec<_>) = (
            more.iter().map(|word| &**word).collect(),
            variables.iter().map(|(name, value)| (*name, &**value)).collect(),
        );
        run_with(&format!("http://{}", self.upstream.addr), under, &more, &variables)
    }

    /// Sends this many requests, and waits until their rows are on the disk or counted as lost.
    fn ask(&mut self, proxy: &RunningProxy, requests: u64) {
        ask_numbered(proxy.listen, self.sent..self.sent + requests);
        self.sent += requests;
    }

    /// Waits until each of so many records of one proxy has an outcome.
    fn settle(&self, proxy: &RunningProxy, records: u64) {
        until("every record is counted", MINUTE, || {
            let page = proxy.page("/metrics");
            counted(&page, "whole") + counted(&page, "disk") + counted(&page, "queue_full") == records
        });
    }

    fn keep_what_was_shown(&mut self, proxy: &RunningProxy) {
        self.shown += &[proxy.log(), proxy.page("/metrics"), proxy.page("/config")].concat();
    }

    /// Ends a proxy, and starts others until the spool is empty.
    fn drain(&mut self, mut proxy: RunningProxy, keep: &str) {
        self.keep_what_was_shown(&proxy);
        proxy.terminate();
        if !segments(self.spool.path()).is_empty() {
            let next = self.proxy(keep);
            until("the spool is empty", MINUTES, || segments(self.spool.path()).is_empty());
            self.keep_what_was_shown(&next);
            drop(next);
        }
    }

    /// The numbers of the rows in the bucket; none may be there twice, and no object may have been replaced.
    fn stored(&self) -> BTreeSet<u64> {
        let rows = self.minio.rows("captures");
        let numbers: BTreeSet<u64> = rows.iter().map(|row| row["params"]["max_tokens"].as_u64().unwrap()).collect();
        assert_eq!(rows.len(), numbers.len(), "no row is stored twice");
        let versions = self.minio.versions();
        assert!(versions.values().all(|count| *count == 1), "an object was replaced: {versions:?}");
        assert!(!self.shown.contains(KEY) && !self.shown.contains(SECRET), "credentials are shown");
        numbers
    }

    fn assert_all_stored(&self) {
        let stored = self.stored();
        // Retention would explain a loss, and then the test is wrong.
        assert!(!self.shown.contains("a segment is lost before its upload"));
        let lost: Vec<u64> = (1..self.sent).filter(|number| !stored.contains(number)).collect();
        assert_eq!((lost, stored.len() as u64), (Vec::new(), self.sent - 1), "{:?}", self.minio.versions());
    }
}

fn uploads(proxy: &RunningProxy, outcome: &str) -> u64 {
    let (page, name) = (proxy.page("/metrics"), format!("streamgauge_capture_uploads_total{{outcome=\"{outcome}\"}} "));
    page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// The segments of a folder.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap().path());
    let is_segment = |name: &str| name.ends_with(".jsonl.zst") || name.ends_with(".parquet");
    files.filter(|file| is_segment(file.to_str().unwrap())).collect()
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn a_network_that_is_cut_in_an_upload_loses_no_row_and_stores_none_twice() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    let proxy = stage.proxy("16M");
    stage.ask(&proxy, 60);
    // Segments have 2 MiB, so their uploads are cut in the middle.
    for (fault, times) in [(Fault::CutAfter(200_000), 2), (Fault::LoseAnswers, 1), (Fault::Refuse, 2)] {
        let met = stage.network.met();
        stage.network.set(fault);
        stage.ask(&proxy, 160);
        until(&format!("{fault:?} meets an upload"), MINUTES, || stage.network.met() >= met + times);
        stage.network.set(Fault::None);
    }
    stage.settle(&proxy, stage.sent - 1);
    until("all closed segments are stored", MINUTES, || segments(stage.spool.path()).len() == 1);
    assert!(uploads(&proxy, "failed") >= 5 && uploads(&proxy, "stored") >= 3);
    assert!(proxy.log().contains("the upload goes on trying"), "{}", proxy.log());
    stage.drain(proxy, "16M");
    stage.assert_all_stored();
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn a_server_that_is_killed_in_an_upload_and_started_again_has_each_row_once() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    let proxy = stage.proxy("8M");
    stage.network.set(Fault::StallAfter(200_000));
    stage.ask(&proxy, 160);
    until("an upload is half way", MINUTE, || stage.network.met() >= 1);
    stage.minio.kill();
    stage.network.set(Fault::None);
    // It is down meanwhile, and no client notices.
    stage.ask(&proxy, 160);
    until("an attempt has failed without it", MINUTE, || uploads(&proxy, "failed") >= 2);
    stage.minio.run();
    until("all closed segments are stored", MINUTES, || segments(stage.spool.path()).len() == 1);
    stage.settle(&proxy, stage.sent - 1);
    stage.drain(proxy, "8M");
    stage.assert_all_stored();
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn a_proxy_that_is_killed_in_an_upload_is_resumed_by_the_next_without_loss_or_double() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    // The first is killed with half of an upload sent, the second when its object is stored and its answer is not there.
    for (fault, stored) in [(Fault::StallAfter(200_000), 0), (Fault::HoldAnswers, 1)] {
        let met = stage.network.met();
        stage.network.set(fault);
        let mut proxy = stage.proxy("8M");
        let before = stage.sent;
        stage.ask(&proxy, 160);
        stage.settle(&proxy, stage.sent - before);
        until("an upload is under way", MINUTE, || stage.network.met() > met);
        until("the storage has it, or not", MINUTE, || stage.minio.versions().len() == stored);
        stage.keep_what_was_shown(&proxy);
        kill(proxy.pid(), Signal::SIGKILL).unwrap();
        proxy.child.wait().unwrap();
    }
    stage.network.set(Fault::None);
    let proxy = stage.proxy("8M");
    until("what was left is stored", MINUTES, || segments(stage.spool.path()).is_empty());
    stage.ask(&proxy, 5);
    stage.drain(proxy, "8M");
    stage.assert_all_stored();
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn a_full_spool_loses_whole_segments_counts_each_row_and_stores_the_rest_once() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    stage.network.set(Fault::Refuse);
    let proxy = stage.proxy("1M");
    while counted(&proxy.page("/metrics"), "spool") == 0 {
        stage.ask(&proxy, 50);
        assert!(stage.sent < 5_000, "a spool of 1 MiB never filled");
    }
    stage.network.set(Fault::None);
    until("all closed segments are stored", MINUTES, || segments(stage.spool.path()).len() <= 1);
    stage.ask(&proxy, 20);
    stage.settle(&proxy, stage.sent - 1);
    let lost = counted(&proxy.page("/metrics"), "spool");
    assert!(proxy.log().contains("a segment is lost before its upload"));
    stage.drain(proxy, "1M");
    let stored = stage.stored();
    assert_eq!(stored.len() as u64 + lost, stage.sent - 1, "{lost} are lost");
    // The oldest are lost, and none between those that are stored.
    assert_eq!(stored, (lost + 1..stage.sent).collect());
}

#[test]
#[ignore = "needs MinIO, and user namespaces: tests/run --real"]
fn a_full_disk_below_the_spool_is_emptied_by_uploads_and_used_again() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    let disk = stage.spool.path().display().to_string();
    let under = small_disk(stage.spool.path(), "1m").expect("no disk can be made here; remedy: allow user namespaces");
    let under: Vec<&str> = under.iter().map(|word| &**word).collect();
    stage.network.set(Fault::Refuse);
    let mut proxy = stage.proxy_under(&under, "4M");
    let inside = PathBuf::from(format!("/proc/{}/root{disk}", proxy.pid()));
    let count = |proxy: &RunningProxy, reason: &str| counted(&proxy.page("/metrics"), reason);
    while count(&proxy, "disk") < 20 {
        stage.ask(&proxy, 50);
        assert!(stage.sent < 5_000, "a disk of 1 MiB never filled");
    }
    stage.settle(&proxy, stage.sent - 1);
    let full = count(&proxy, "whole");
    stage.network.set(Fault::None);
    // One may be open.
    until("uploads have made room", MINUTES, || uploads(&proxy, "stored") > 0 && segments(&inside).len() <= 1);
    stage.ask(&proxy, 50);
    stage.settle(&proxy, stage.sent - 1);
    assert_eq!(count(&proxy, "whole"), full + 50, "the disk is used again");
    let (whole, lost) = (count(&proxy, "whole"), count(&proxy, "disk"));
    stage.keep_what_was_shown(&proxy);
    proxy.terminate();
    let stored = stage.stored();
    assert_eq!((stored.len() as u64, whole + lost), (whole, stage.sent - 1), "every row is stored or counted as lost");
    assert!(stored.is_superset(&(stage.sent - 50..stage.sent).collect()));
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn segments_in_parquet_are_stored_once_and_read_back_by_prefix_and_by_pattern() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    stage.format = "parquet";
    let proxy = stage.proxy("8M");
    // Segments have 1 MiB as JSON Lines.
    stage.ask(&proxy, 160);
    stage.network.set(Fault::LoseAnswers);
    let met = stage.network.met();
    stage.ask(&proxy, 160);
    until("an answer to an upload is lost", MINUTES, || stage.network.met() > met);
    stage.network.set(Fault::None);
    stage.settle(&proxy, stage.sent - 1);
    stage.drain(proxy, "8M");
    stage.assert_all_stored();
    let objects = stage.minio.versions();
    let parquet = objects.keys().filter(|key| key.ends_with(".parquet")).count();
    let others = objects.keys().filter(|key| !key.ends_with(".parquet") && !key.contains("/_manifest-")).count();
    assert!(parquet >= 2 && others == 0, "{objects:?}");
    for pattern in ["captures/dt=20*/", "captures/dt=20*/hour=*/instance=pod-1/", "captures/*/*/*/*.parquet"] {
        assert_eq!(stage.minio.rows(pattern), stage.minio.rows("captures"), "{pattern}");
    }
    assert_eq!(stage.minio.rows("captures/dt=20*/hour=*/instance=pod-*/").len() as u64, stage.sent - 1);
}

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn a_bucket_with_a_retention_takes_every_segment_and_nothing_in_it_changes() {
    let _turn = exclusive_turn();
    let mut stage = Stage::new();
    stage.minio.retain();
    let proxy = stage.proxy("8M");
    stage.ask(&proxy, 10);
    stage.settle(&proxy, 10);
    stage.drain(proxy, "8M");
    let key = stage.minio.versions().into_keys().next().unwrap();
    let path = format!("/{BUCKET}/{}", key.replace('=', "%3D"));
    let listed = stage.minio.ask("GET", &format!("/{BUCKET}?versions="), &[]);
    let version = listed.split("<VersionId>").nth(1).unwrap().split('<').next().unwrap();
    let (status, refused) = stage.minio.try_ask("DELETE", &format!("{path}?versionId={version}"), &[]);
    assert_eq!((status / 100, refused.contains("WORM")), (4, true), "the retention holds: {refused}");
    // A segment whose object is there, as if the answer had been lost, and another one that has its name.
    let name = key.rsplit('/').next().unwrap();
    let parts: Vec<&str> = name.split('-').collect();
    let segment = stage.spool.path().join(format!("{}-{}.jsonl.zst", parts[1], parts[0]));
    let object = TempDir::new().unwrap();
    let object = object.path().join("object");
    stage.minio.ask("GET", &path, &["--output", object.to_str().unwrap()]);
    fs::copy(&object, &segment).unwrap();
    let proxy = stage.proxy("8M");
    until("it is not stored again", MINUTE, || segments(stage.spool.path()).is_empty());
    assert_eq!(stage.minio.versions().len(), 1);
    stage.ask(&proxy, 5);
    stage.settle(&proxy, 5);
    stage.drain(proxy, "8M");
    let other = segments_of_another_capture(&mut stage);
    fs::rename(other, &segment).unwrap();
    let proxy = stage.proxy("8M");
    until("it is stored beside it", MINUTE, || segments(stage.spool.path()).is_empty());
    stage.drain(proxy, "8M");
    let renamed = name.replace(".jsonl.zst", "-1.jsonl.zst");
    assert!(stage.minio.versions().keys().any(|key| key.ends_with(&renamed)), "{:?}", stage.minio.versions());
    stage.assert_all_stored();
}

/// A segment of three more requests, which no proxy uploads.
fn segments_of_another_capture(stage: &mut Stage) -> PathBuf {
    let folder = stage.spool.path().join("other");
    let capture = format!("--capture={}", folder.display());
    let mut proxy = run_with(&format!("http://{}", stage.upstream.addr), &[], &[&capture, "--capture-block=16"], &[]);
    stage.ask(&proxy, 3);
    proxy.terminate();
    segments(&folder).remove(0)
}
