//! One load of three machines that meet in a bucket, while the network to it is cut.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::forwarder::{Fault, Forwarder};
use super::server::{BUCKET, KEY, Minio, SECRET};
use crate::processes::{MINUTE, exclusive_turn, until};
use crate::tools;

const SHARDS: usize = 3;

#[test]
#[ignore = "needs MinIO: tests/run --real"]
fn shards_that_meet_in_a_bucket_upload_through_a_network_that_is_cut_and_are_reported_as_one_run() {
    let _turn = exclusive_turn();
    let (minio, engine, folder) = (Minio::start(), tools::sim(&[]), tempfile::tempdir().unwrap());
    let network = Forwarder::to(minio.addr);
    let prefix = format!("s3://{BUCKET}/runs/1");
    let program = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.args(arguments).envs(Minio::variables(network.addr));
        command
    };
    let started = |shard: usize| {
        let (target, out) = (format!("http://{}", engine.addr), folder.path().join(shard.to_string()));
        let shard = format!("{shard}/{SHARDS}");
        let flags =
            "--rate 30 --requests 90 --isl 32 --osl 8 --prompt-overhead 0 --max-lag 1h --start-at all --no-audit";
        let fixed =
            ["load", "--target", &target, "--out", out.to_str().unwrap(), "--upload", &prefix, "--shard", &shard];
        let mut command = program(&[&fixed[..], &flags.split(' ').collect::<Vec<_>>()].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<Child> = (1..=SHARDS).map(started).collect();
    until("the start is announced", MINUTE, || minio.versions().contains_key("runs/1/start/at"));
    // It is five seconds ahead, so that every shard has read it by then; they send for three.
    std::thread::sleep(Duration::from_secs(6));
    // Their results meet a network that takes requests and loses the answers, and then one that is cut.
    for fault in [Fault::LoseAnswers, Fault::Refuse] {
        let met = network.met();
        network.set(fault);
        until(&format!("{fault:?} meets an upload"), MINUTE, || network.met() > met);
    }
    network.set(Fault::None);
    let mut log = String::new();
    for child in running {
        let output = child.wait_with_output().unwrap();
        log += &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
    }
    assert!(!log.contains(KEY) && !log.contains(SECRET), "credentials are shown: {log}");

    let objects = minio.versions();
    assert!(objects.values().all(|versions| *versions == 1), "an object was replaced: {objects:?}");
    for shard in 0..SHARDS {
        for file in ["run.json", "records.jsonl.zst"] {
            assert!(objects.contains_key(&format!("runs/1/shard-{shard:05}/{file}")), "{objects:?}");
        }
    }
    let reported = program(&["report", "--json", &prefix]).output().unwrap();
    let reported: Value = serde_json::from_slice(&reported.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&reported.stderr)));
    assert_eq!(reported["outcomes"]["success"], 90, "{reported}");
    assert!(Path::new(&folder.path().join("1/records.jsonl.zst")).exists(), "the machine keeps its own files");
}
