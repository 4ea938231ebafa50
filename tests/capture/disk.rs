//! The capture on a disk that is full, too small or hanging. No stream notices, losses are counted and logged, and the
//! capture resumes by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::json;
use streamgauge::trace_file::reader::TraceReader;
use tempfile::TempDir;

use crate::support::captured::{RunningProxy, answer, counted, run, run_under, server, small_disk, until};
use crate::support::client::{Client, chat};

/// A request whose row is long however well it is packed: ids of blocks are noise.
fn noisy(number: u64) -> String {
    let text: String = (0..60)
        .map(|part| blake3::hash(&[number, part].map(u64::to_le_bytes).concat()).to_hex())
        .map(|hex| hex.to_string())
        .collect();
    chat(&json!({"stream": true, "messages": [{"role": "user", "content": text}]}).to_string())
}

/// Sends this many requests on one connection; every answer is whole.
fn ask(run: &RunningProxy, numbers: std::ops::Range<u64>) {
    let mut client = Client::connect(run.listen);
    for number in numbers {
        let answer = client.send(noisy(number)).response();
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
    }
}

fn records(run: &RunningProxy, reason: &str) -> u64 {
    counted(&run.page("/metrics"), reason)
}

/// The segments of a folder.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut segments: Vec<PathBuf> = files.filter(|file| file.to_str().unwrap().ends_with(".jsonl.zst")).collect();
    segments.sort();
    segments
}

/// The rows that can be read; nothing may be torn.
fn whole_rows(folder: &Path) -> u64 {
    let mut reader = TraceReader::open(folder).unwrap();
    let rows = reader.by_ref().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(reader.damage(), [], "half a frame does not stay");
    rows.len() as u64
}

#[test]
fn a_write_that_goes_halfway_costs_its_frame_and_leaves_nothing_torn() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(2));
    // Files may not grow beyond 16 blocks of 512 bytes. A write there is short; the next fails with a signal that kills
    // a process without a handler.
    let small = ["sh", "-c", "ulimit -f 16; exec \"$@\"", "sh"];
    let mut run = run_under(&small, upstream.addr, folder.path(), &["--capture-flush=10ms", "--capture-block=16"]);
    let mut sent = 0;
    until("frames were refused", || {
        ask(&run, sent..sent + 4);
        sent += 4;
        records(&run, "disk") >= 3 && records(&run, "whole") >= 3
    });
    until("all are counted", || records(&run, "disk") + records(&run, "whole") == sent);
    let (written, lost) = (records(&run, "whole"), records(&run, "disk"));
    run.terminate();
    assert_eq!(whole_rows(folder.path()), written, "{lost} of {sent} were lost");
    assert!(run.log().contains("\"lost\":\"disk: "), "{}", run.log());
    assert!(segments(folder.path()).iter().all(|segment| fs::metadata(segment).unwrap().len() > 0));
}

#[test]
#[expect(clippy::print_stderr, reason = "who reads the log of the tests is to know that one had no disk")]
fn a_full_disk_costs_rows_and_no_stream_and_is_used_again_when_it_has_room() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(2));
    let disk = folder.path().to_str().unwrap();
    let Some(under) = small_disk(folder.path(), "128k") else {
        eprintln!("no disk can be made here without being root: the test of half a write has to do");
        return;
    };
    let under: Vec<&str> = under.iter().map(|word| &**word).collect();
    let mut run = run_under(&under, upstream.addr, folder.path(), &["--capture-flush=10ms", "--capture-block=16"]);
    let inside = PathBuf::from(format!("/proc/{}/root{disk}", run.pid()));
    let mut sent = 0;
    let mut ask_until = |what: &str, holds: &dyn Fn() -> bool| {
        until(what, || {
            ask(&run, sent..sent + 20);
            sent += 20;
            holds()
        });
        until("all are counted", || records(&run, "disk") + records(&run, "whole") == sent);
    };
    ask_until("the disk was full", &|| records(&run, "disk") >= 20);
    let full = segments(&inside);
    assert!(full.iter().all(|segment| fs::metadata(segment).unwrap().len() > 0), "a full disk is not littered");
    assert!(whole_rows(&inside) <= records(&run, "whole"));
    let written = records(&run, "whole");
    full.iter().for_each(|segment| fs::remove_file(segment).unwrap());
    ask_until("it is used again", &|| records(&run, "whole") > written + 20);
    let (after, files) = (records(&run, "whole") - written, segments(&inside));
    assert!(whole_rows(&inside) >= after && !files.is_empty());
    assert_eq!(run.log().matches("the capture has lost records").count(), 1, "once a minute: {}", run.log());
    assert!(run.log().contains("\"lost\":\"disk: ") && run.log().contains("No space left on device"), "and why");
    run.terminate();
}

/// True if a thread, as a folder of `/proc`, has this name and sleeps. It may have ended meanwhile.
fn sleeps(thread: &Path, name: &str) -> bool {
    let sleeping = format!("({name}) S ");
    fs::read_to_string(thread.join("stat")).is_ok_and(|stat| stat.contains(&sleeping))
}

/// The capture's thread, held as a disk holds it that takes no write: it is nowhere, and everything else goes on. It goes
/// on when this is dropped.
struct Held(Pid);

impl Held {
    fn of(run: &RunningProxy) -> Self {
        let mut found = None;
        // A thread takes its name once it runs. One that sleeps holds nothing that others need, and neither does one
        // that writes to a disk.
        until("there is a thread of the capture", || {
            let mut threads = fs::read_dir(format!("/proc/{}/task", run.pid())).unwrap().map(|one| one.unwrap().path());
            found = threads.find(|thread| sleeps(thread, "capture"));
            found.is_some()
        });
        let thread = found.unwrap();
        let thread = Pid::from_raw(thread.file_name().unwrap().to_str().unwrap().parse().unwrap());
        ptrace::seize(thread, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(thread).unwrap();
        assert!(matches!(waitpid(thread, Some(WaitPidFlag::__WALL)), Ok(WaitStatus::PtraceEvent(..))));
        Self(thread)
    }

    /// Waits until it has ended with its process.
    fn wait(self) {
        while !matches!(
            waitpid(self.0, Some(WaitPidFlag::__WALL)).unwrap(),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..)
        ) {}
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // One that has ended is held no more.
        let _let_go = ptrace::detach(self.0, None).is_ok();
    }
}

#[test]
fn a_hanging_disk_delays_no_stream_and_the_capture_resumes_after_it() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(1));
    let mut run = run(upstream.addr, folder.path(), &[]);
    let held = Held::of(&run);
    let request = chat("{\"stream\":true,\"messages\":[]}");
    let mut client = Client::connect(run.listen);
    let mut sent = 0;
    until("the queue is full", || {
        for _ in 0..500 {
            assert!(client.send(&request).response().text().ends_with("data: [DONE]\n\n"));
        }
        sent += 500;
        records(&run, "queue_full") > 0
    });
    assert_eq!((records(&run, "whole"), records(&run, "disk")), (0, 0));
    until("the loss is logged while it lasts", || run.log().contains("\"lost\":\"queue_full: "));
    drop(held);
    until("all that waited is written", || {
        records(&run, "whole") + records(&run, "oversize") + records(&run, "queue_full") == sent
    });
    let lost = records(&run, "queue_full");
    (0..3).for_each(|_| _ = client.send(&request).response());
    until("the next are written as well", || records(&run, "whole") + records(&run, "oversize") == sent - lost + 3);
    assert_eq!(run.log().matches("the capture has lost records").count(), 1, "once a minute");
    run.terminate();
    assert_eq!(whole_rows(folder.path()), sent - lost + 3);
}

#[test]
fn a_disk_that_hangs_does_not_keep_the_process_from_ending() {
    let folder = TempDir::new().unwrap();
    let upstream = server(answer(1));
    let mut run = run(upstream.addr, folder.path(), &[]);
    let held = Held::of(&run);
    let mut client = Client::connect(run.listen);
    (0..3).for_each(|_| _ = client.send(chat("{\"stream\":true,\"messages\":[]}")).response());
    drop(client);
    kill(run.pid(), Signal::SIGTERM).unwrap();
    held.wait();
    run.ended();
    assert!(run.log().contains("the disk of the capture hangs"), "{}", run.log());
    assert!(run.log().contains("\"lost\":3,"), "{}", run.log());
}

#[test]
fn a_folder_that_cannot_be_made_is_named_at_the_start() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    // No user can make a folder in the first, not even root.
    let no_folder = "it is, or lies in, a file; remedy: name a folder";
    for (path, reason) in [(Path::new("/proc/capture"), ""), (&*file, no_folder), (&*file.join("in"), no_folder)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.args(["proxy", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--upstream=http://127.0.0.1:9"]);
        let done = command.arg(format!("--capture={}", path.display())).env_clear().output().unwrap();
        let stderr = String::from_utf8(done.stderr).unwrap();
        let expected = format!("cannot capture into {} (--capture): {reason}", path.display());
        assert!(stderr.contains(&expected) && done.status.code() == Some(2), "{stderr}");
    }
}
