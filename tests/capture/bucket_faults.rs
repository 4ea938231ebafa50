//! Faults of the storage, one by one. Each upload is repeated with growing pauses. No row is lost, none is stored
//! twice, and the metrics count every attempt.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use streamgauge::trace_file::reader::TraceReader;
use tempfile::TempDir;

use crate::support::captured::{
    RunningProxy, answer, ask_numbered, counted, proxy, run_with, server, small_disk, until,
};
use crate::support::client::chat;
use crate::support::s3::{S3Fault, S3Put, S3Server};

const CANARY: &str = "canary-secret-of-the-bucket";
/// Rows of the segment that waits in the spool.
const ROWS: usize = 3;
const SEGMENT: &str = "00000007-20261121T101500Z.jsonl.zst";

/// State after one run.
struct Uploaded {
    storage: S3Server,
    puts: Vec<S3Put>,
    failed: u64,
    stored: u64,
    log: String,
}

/// A proxy with one closed segment in its spool, of an hour that is over: it uploads the segment, then the manifest of
/// the hour. `during` runs once the first put has come, and returns how many requests it has sent.
fn upload(storage: S3Server, during: impl FnOnce(&RunningProxy) -> usize) -> Uploaded {
    let (folder, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let upstream = server(answer(2));
    let earlier = proxy(upstream.addr, folder.path(), &[]);
    for _ in 0..ROWS {
        earlier.client().send(chat(r#"{"model":"m","stream":true,"messages":[]}"#)).response();
    }
    drop(earlier);
    let made = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let made = made.filter(|path| path.to_str().unwrap().ends_with(".zst")).last().unwrap();
    fs::copy(made, spool.path().join(SEGMENT)).unwrap();
    fs::write(spool.path().join("spool.id"), "0123456789abcdef\n").unwrap();
    let endpoint = format!("http://{}", storage.addr);
    let more = ["--capture=s3://bucket/c".to_owned(), format!("--capture-spool={}", spool.path().display())];
    let more: Vec<&str> = more.iter().map(|word| &**word).collect();
    let mut running =
        run_with(&format!("http://{}", upstream.addr), &[], &more, &S3Server::variables(&endpoint, CANARY));
    until("a put has come", || !storage.puts().is_empty());
    let more_rows = during(&running);
    until("the manifest is stored", || storage.objects().keys().any(|key| key.contains("_manifest-")));
    until("the spool is empty", || {
        !spool.path().join(SEGMENT).exists() && !spool.path().join("uploads-20261121T10Z.jsonl.part").exists()
    });
    // The open segment of further requests waits there.
    until("the spool's size is 0", || {
        more_rows > 0 || running.page("/metrics").contains("streamgauge_capture_spool_size_bytes 0\n")
    });
    let page = running.page("/metrics");
    let count = |outcome: &str| {
        let name = format!("streamgauge_capture_uploads_total{{outcome=\"{outcome}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    };
    let (failed, stored) = (count("failed"), count("stored"));
    running.terminate();
    let log = running.log();
    assert!(!log.contains(CANARY), "{log}");
    // Nothing is lost, and nothing is there twice.
    let lake = TempDir::new().unwrap();
    storage.write_to(lake.path());
    let rows = TraceReader::open(lake.path()).unwrap().map(Result::unwrap).count();
    assert_eq!(rows, ROWS + more_rows, "{:?}", storage.objects().keys());
    let puts = storage.puts();
    Uploaded { storage, puts, failed, stored, log }
}

fn statuses(puts: &[S3Put]) -> Vec<Option<u16>> {
    puts.iter().map(|put| put.status).collect()
}

/// The pauses before the second put, the third, and so on.
fn pauses(puts: &[S3Put]) -> Vec<Duration> {
    puts.windows(2).map(|pair| pair[1].at - pair[0].at).collect()
}

#[test]
fn an_upload_that_fails_once_is_repeated_after_a_pause() {
    let done = upload(S3Server::with_faults(&[S3Fault::Refused(500, "InternalError")]), |_| 0);
    assert_eq!(statuses(&done.puts), [Some(500), Some(200), Some(200)]);
    assert_eq!((done.failed, done.stored), (1, 2), "the segment and the manifest");
    assert!(pauses(&done.puts)[0] >= Duration::from_millis(500), "{:?}", pauses(&done.puts));
    assert_eq!(done.puts[0].name, "20261121T101500Z-00000007-0123456789abcdef.jsonl.zst");
    assert_eq!(done.puts[1].name, done.puts[0].name, "it is the same object");
    assert!(done.log.contains("the storage answered 500 (InternalError)"), "{}", done.log);
}

#[test]
fn a_storage_that_asks_to_slow_down_gets_ever_longer_pauses() {
    let done = upload(S3Server::with_faults(&[S3Fault::Refused(503, "SlowDown"); 3]), |_| 0);
    assert_eq!(statuses(&done.puts), [Some(503), Some(503), Some(503), Some(200), Some(200)]);
    assert_eq!((done.failed, done.stored), (3, 2));
    // One second that doubles; up to half of it is drawn away.
    for (pause, least) in pauses(&done.puts).iter().zip([500, 1_000, 2_000]) {
        assert!(*pause >= Duration::from_millis(least), "{:?}", pauses(&done.puts));
    }
    assert_eq!(done.log.matches("the storage answered 503 (SlowDown)").count(), 1, "once a minute: {}", done.log);
}

#[test]
fn an_object_whose_answer_was_lost_is_recognized_and_not_stored_again() {
    let done = upload(S3Server::with_faults(&[S3Fault::AnswerLost]), |_| 0);
    assert_eq!(statuses(&done.puts), [None, Some(412), Some(200)]);
    assert_eq!((done.failed, done.stored), (1, 2));
    assert_eq!(done.storage.objects().len(), 2, "the segment and the manifest");
}

#[test]
fn the_answer_to_a_manifest_may_be_lost_as_well() {
    let segment_and = |fault| [S3Fault::Slow(Duration::ZERO), fault];
    let done = upload(S3Server::with_faults(&segment_and(S3Fault::AnswerLost)), |_| 0);
    assert_eq!(statuses(&done.puts), [Some(200), None, Some(412)]);
    assert_eq!((done.failed, done.stored, done.storage.objects().len()), (1, 2, 2));
}

#[test]
fn a_connection_that_breaks_in_the_body_stores_nothing_and_is_tried_again() {
    let done = upload(S3Server::with_faults(&[S3Fault::ResetAt(100), S3Fault::ResetAt(0)]), |_| 0);
    assert_eq!(statuses(&done.puts), [None, None, Some(200), Some(200)]);
    assert_eq!((done.failed, done.stored), (2, 2));
}

#[test]
fn another_upload_of_the_same_object_under_way_is_waited_for() {
    // An attempt that has timed out here may still be under way there. A second name would store its rows twice.
    let done = upload(S3Server::with_faults(&[S3Fault::Refused(409, "ConditionalRequestConflict")]), |_| 0);
    assert_eq!(statuses(&done.puts), [Some(409), Some(200), Some(200)]);
    assert_eq!((done.failed, done.stored), (1, 2));
    assert_eq!(done.puts[1].name, done.puts[0].name, "no second name");
}

#[test]
fn an_object_of_others_stays_and_the_segment_gets_another_name() {
    let storage = S3Server::with_faults(&[]);
    let name = "20261121T101500Z-00000007-0123456789abcdef.jsonl.zst";
    let folder = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let key = format!("bucket/c/dt=2026-11-21/hour=10/instance={}/{name}", folder.trim());
    storage.store(&key, b"");
    let done = upload(storage, |_| 0);
    assert_eq!(statuses(&done.puts), [Some(412), Some(200), Some(200)]);
    assert_eq!(done.puts[1].name, name.replace(".jsonl", "-1.jsonl"));
    assert_eq!((done.failed, done.stored), (1, 2), "an attempt that stored nothing has failed");
    assert_eq!(done.storage.objects()[&key], b"");
}

#[test]
fn a_slow_answer_is_waited_for_and_delays_no_stream() {
    let slow = Duration::from_secs(3);
    let done = upload(S3Server::with_faults(&[S3Fault::Slow(slow)]), |running| {
        let answered = running.client().send(chat(r#"{"model":"m","stream":true,"messages":[]}"#)).response();
        assert!(answered.text().ends_with("data: [DONE]\n\n"));
        1
    });
    assert_eq!(statuses(&done.puts)[..2], [Some(200), Some(200)]);
    assert_eq!(done.failed, 0);
}

#[test]
#[expect(clippy::print_stderr, reason = "who reads the log of the tests is to know that one had no disk")]
fn a_full_disk_below_the_spool_is_emptied_by_uploads_and_used_again() {
    let spool = TempDir::new().unwrap();
    let Some(under) = small_disk(spool.path(), "1m") else {
        eprintln!("no disk can be made here without being root: the test on MinIO has to do");
        return;
    };
    let storage = S3Server::with_faults(&[S3Fault::Refused(503, "SlowDown"); 1_000]);
    let upstream = server(answer(2));
    let (endpoint, spool_flag) =
        (format!("http://{}", storage.addr), format!("--capture-spool={}", spool.path().display()));
    // Segments have 512 KiB, so one is closed when the disk is full.
    let more = [
        "--capture=s3://bucket/c",
        &*spool_flag,
        "--capture-keep-bytes=4M",
        "--capture-flush=10ms",
        "--capture-block=16",
    ];
    let under: Vec<&str> = under.iter().map(|word| &**word).collect();
    let variables = S3Server::variables(&endpoint, CANARY);
    let mut running = run_with(&format!("http://{}", upstream.addr), &under, &more, &variables);
    let count = |running: &RunningProxy, reason: &str| counted(&running.page("/metrics"), reason);
    let inside = PathBuf::from(format!("/proc/{}/root{}", running.pid(), spool.path().display()));
    let segments = || {
        let files = fs::read_dir(&inside).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.to_str().unwrap().ends_with(".zst")).count()
    };
    let mut sent = 1;
    until("the disk was full", || {
        ask_numbered(running.listen, sent..sent + 20);
        sent += 20;
        count(&running, "disk") >= 20
    });
    let settled = |running: &RunningProxy, sent: u64| {
        until("all are counted", || count(running, "whole") + count(running, "disk") == sent - 1);
        count(running, "whole")
    };
    let before = settled(&running, sent);
    storage.heal();
    // One may be open.
    until("uploads have made room", || !storage.objects().is_empty() && segments() <= 1);
    ask_numbered(running.listen, sent..sent + 20);
    let whole = settled(&running, sent + 20);
    assert_eq!(whole, before + 20, "the disk is used again");
    running.terminate();
    let lake = TempDir::new().unwrap();
    storage.write_to(lake.path());
    let rows: Vec<u64> =
        TraceReader::open(lake.path()).unwrap().map(|row| row.unwrap().params.max_tokens.unwrap()).collect();
    let numbers: BTreeSet<u64> = rows.iter().copied().collect();
    assert_eq!((rows.len(), numbers.len()), (whole as usize, whole as usize), "every row that was written, once");
    assert!(numbers.is_superset(&(sent..sent + 20).collect()));
}
