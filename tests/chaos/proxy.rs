//! A proxy under test: a process with its own full disk and its own wall clock, and the successors that take over.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::support::captured::{RunningProxy, run_to};

/// The disk of a capture.
const DISK: &str = "mount -t tmpfs -o size=8m none \"$0\" && exec \"$@\"";
/// The capture's own bound, well below the disk.
const KEPT: &str = "2M";

/// A proxy process under test.
pub(crate) struct Proxy {
    pub(crate) name: &'static str,
    pub(crate) running: RunningProxy,
    /// The process that serves now.
    pub(crate) process: Pid,
    capture: PathBuf,
    config: PathBuf,
    /// Lines of the log up to here were seen.
    seen_log: usize,
    _folder: TempDir,
}

/// Settings that all proxies have in common.
pub(crate) struct Setting<'a> {
    /// Where metrics, traces and logs go.
    pub(crate) collector: std::net::SocketAddr,
    pub(crate) clock: Option<&'a crate::clock::WallClock>,
    pub(crate) has_disk: bool,
}

impl Proxy {
    pub(crate) fn start(name: &'static str, upstream: &str, setting: &Setting<'_>, more: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (capture, config) = (folder.path().join("capture"), folder.path().join("proxy.yaml"));
        fs::create_dir(&capture).unwrap();
        fs::write(&config, GOOD[0]).unwrap();
        let mut under = vec!["env".to_owned()];
        under.push(format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://{}", setting.collector));
        under.extend(
            ["OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_METRIC_EXPORT_INTERVAL=1000"].map(str::to_owned),
        );
        under.extend(setting.clock.iter().flat_map(|clock| clock.environment()));
        if setting.has_disk {
            under.extend(NAMESPACE.map(str::to_owned));
            under.extend([DISK.to_owned(), capture.display().to_string()]);
        }
        let mut arguments = vec![format!("--config={}", config.display()), format!("--capture-keep-bytes={KEPT}")];
        arguments.extend_from_slice(more);
        let (under, arguments): (Vec<&str>, Vec<&str>) =
            (under.iter().map(String::as_str).collect(), arguments.iter().map(String::as_str).collect());
        let running = run_to(upstream, &under, &capture, &arguments);
        let process = running.pid();
        Self { name, running, process, capture, config, seen_log: 0, _folder: folder }
    }

    /// The folder of the capture as this process can open it.
    pub(crate) fn capture(&self) -> PathBuf {
        let inside = PathBuf::from(format!("/proc/{}/root", self.process));
        inside.join(self.capture.strip_prefix("/").unwrap_or(&self.capture))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // One that has ended is found by the next sample.
        let _sent = kill(self.process, signal).is_ok();
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(&self.config, text).unwrap();
        self.signal(Signal::SIGHUP);
    }

    /// Waits for a new line of the log that has these words.
    pub(crate) fn wait_for_log(&mut self, words: &str, patience: Duration) -> Result<String, String> {
        let began = Instant::now();
        loop {
            let log = self.running.log();
            let new = &log[self.seen_log..];
            if let Some(found) = new.find(words) {
                let line_start = new[..found].rfind('\n').map_or(0, |end| end + 1);
                let line = new[line_start..].lines().next().unwrap_or_default().to_owned();
                self.seen_log += line_start + line.len();
                return Ok(line);
            }
            if began.elapsed() > patience {
                return Err(format!("{}: the log has no line with `{words}` within {patience:?}", self.name));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A new process takes over; the old one ends when its streams have ended.
    pub(crate) fn take_over(&mut self, patience: Duration) -> Result<(), String> {
        self.signal(Signal::SIGUSR2);
        let line = self.wait_for_log("has taken over", patience)?;
        let number = line.split("process ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        self.process = Pid::from_raw(number.ok_or_else(|| format!("{}: no process in `{line}`", self.name))?);
        Ok(())
    }

    /// Resident bytes and open descriptors; `None` if the process has ended.
    pub(crate) fn usage(&self) -> Option<(f64, f64)> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process)).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let resident: f64 = resident.split_whitespace().next()?.parse().ok()?;
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.process)).ok()?.count();
        Some((resident * 1024.0, descriptors as f64))
    }

    /// The sum of a metric's samples whose labels contain `label`.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        let page = self.running.page("/metrics");
        let samples = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Ends the proxy, and reports if it does not end.
    pub(crate) fn stop(&self, patience: Duration) -> Result<(), String> {
        self.signal(Signal::SIGTERM);
        let began = Instant::now();
        while is_running(self.process) {
            if began.elapsed() > patience {
                return Err(format!(
                    "{}: process {} has not ended {patience:?} after SIGTERM",
                    self.name, self.process
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A successor is no child of this process.
        self.signal(Signal::SIGKILL);
    }
}

fn is_running(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.starts_with(" Z")))
}

const NAMESPACE: [&str; 6] = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"];

/// True if a process may have a disk of its own.
pub(crate) fn can_mount() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(NAMESPACE[0]);
    command.args(&NAMESPACE[1..]).arg(DISK).arg(folder.path()).arg("true");
    command.output().is_ok_and(|done| done.status.success())
}

/// Configurations between which reloads change.
pub(crate) const GOOD: [&str; 2] =
    ["slos:\n  - 'chat: ttft<=500ms'\nstall: 1s\n", "slos:\n  - 'chat: ttft<=2s'\n  - 'batch: e2e<=60s'\nstall: 2s\n"];
/// One that a reload has to refuse.
pub(crate) const INVALID: &str = "slos:\n  - 'chat: nonsense<=1'\n";
