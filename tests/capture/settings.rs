//! Settings of the capture: its key, the key of the day, size and age limits.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;
use streamgauge::capture::key::{CaptureKey, KEY_FILE};
use streamgauge::trace_file::header::BlockScheme;
use streamgauge::trace_file::reader::TraceReader;
use streamgauge::trace_file::row::TraceEntry;
use tempfile::TempDir;

use crate::support::captured::{answer, proxy, rows, run, server};
use crate::support::client::chat;

/// Captures one request, with these settings.
fn capture(folder: &Path, settings: &[(&str, &str)]) {
    let upstream = server(answer(1));
    let proxy = proxy(upstream.addr, folder, &[settings, &[("capture_block", "16")]].concat());
    let body = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "the same ".repeat(20)}]});
    proxy.client().send(chat(&body.to_string())).response();
}

/// Captures with these settings; returns the header's blocks and time, and the rows.
fn captured(folder: &Path, settings: &[(&str, &str)]) -> (BlockScheme, u64, Vec<TraceEntry>) {
    capture(folder, settings);
    let header = TraceReader::open(folder).unwrap().header().clone();
    (header.blocks.unwrap(), header.started_unix_ns.unwrap(), rows(folder))
}

#[test]
fn captures_share_the_ids_of_equal_prompts_where_they_were_given_the_same_key_and_else_none() {
    let folder = TempDir::new().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "a key that two captures share\n").unwrap();
    let given = [("capture_key", key.to_str().unwrap())];
    let of = |name: &str, settings: &[(&str, &str)]| captured(&folder.path().join(name), settings);
    let (one, other) = (of("one", &given), of("other", &given));
    assert!(one.2[0].prompt.blocks.len() > 5 && one.2[0].prompt.blocks == other.2[0].prompt.blocks);
    assert_eq!((&one.0.key, &one.0.key.as_ref().unwrap().len()), (&other.0.key, &16));
    assert!(!folder.path().join("one").join(KEY_FILE).exists(), "whoever has the folder has not the key");
    let (own, others) = (of("own", &[]), of("others", &[]));
    assert_ne!(own.0.key, others.0.key);
    assert!(own.2[0].prompt.blocks.iter().all(|id| !others.2[0].prompt.blocks.contains(id)));
    assert_ne!(own.2[0].session, others.2[0].session);
    // A key is of the folder, and stays when another process goes on.
    let again = of("own", &[]);
    assert_eq!((again.0.key, &again.2[0].prompt.blocks), (own.0.key, &again.2[1].prompt.blocks));
}

#[test]
fn a_key_that_others_can_read_is_used_with_a_warning() {
    let folder = TempDir::new().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, "a key that others can read\n").unwrap();
    for (mode, warnings) in [(0o644, 1), (0o640, 1), (0o600, 0)] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let given = format!("--capture-key={}", key.display());
        let mut run = run("127.0.0.1:9".parse().unwrap(), &folder.path().join("capture"), &[&given]);
        run.terminate();
        let log = run.log();
        assert_eq!(log.matches("others can read the key of the capture").count(), warnings, "{mode:o}: {log}");
        assert_eq!(log.matches("\"remedy\":\"chmod 600\"").count(), warnings, "{log}");
    }
}

#[test]
fn with_rotation_ids_are_of_the_key_of_the_day() {
    const DAY: u64 = 86_400_000_000_000;
    let folder = TempDir::new().unwrap();
    let (blocks, started, _) = captured(folder.path(), &[("capture_key_rotate", "true")]);
    let root = CaptureKey::load_or_create(folder.path(), None).unwrap();
    let day = started / DAY;
    // Midnight may have come meanwhile.
    let keys = [day, day + 1].map(|day| root.for_day(day).id());
    assert!(keys.contains(&blocks.key.clone().unwrap()), "{blocks:?}");
    assert_ne!(blocks.key, Some(root.id()));
}

/// A segment of this length that another process has begun in November of this year, and has changed in 2242 at the latest.
fn left(folder: &Path, number: u32, length: u64, year: u32) -> PathBuf {
    let path = folder.join(format!("{number:08}-{year}1121T101500Z.jsonl.zst"));
    let file = File::create(&path).unwrap();
    file.set_len(length).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 33)).unwrap();
    path
}

#[test]
fn what_is_too_old_or_too_much_is_removed_and_the_rest_stays() {
    let folder = TempDir::new().unwrap();
    // A segment's age is the sum of the steps between them, none of which is as long as what is kept.
    let [old, most, new] = [(1, 10, 2226), (2, 900_000, 2234), (3, 400_000, 2242)]
        .map(|(number, length, year)| left(folder.path(), number, length, year));
    let other = folder.path().join("notes.txt");
    fs::write(&other, "not ours").unwrap();
    let exist = || [&old, &most, &new, &other].map(|path| path.exists());
    capture(folder.path(), &[("capture_keep_age", "87600h")]);
    assert_eq!(exist(), [false, true, true, true], "one is older than ten years");
    capture(folder.path(), &[("capture_keep_bytes", "1048576")]);
    assert_eq!(exist(), [false, false, true, true], "both and what was captured are more than 1 MiB");
    let all = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path());
    let segments = all.filter(|path| path.to_str().unwrap().ends_with(".zst")).count();
    assert_eq!(segments, 3, "what was captured meanwhile is there");
}
