//! Processes that end with their test, free ports, and turns.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

static TURNS: RwLock<()> = RwLock::new(());

/// A turn alone, for tests that measure time or load the machine.
pub(crate) fn exclusive_turn() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// A turn that others share, for tests that mostly wait.
pub(crate) fn shared_turn() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

/// A port of 127.0.0.1 that nothing listens on. It lies below those that the kernel gives to connections, so that no
/// connection of another test takes it before it is listened on.
pub(crate) fn port() -> u16 {
    const FIRST: u16 = 10_000;
    const MANY: u16 = 20_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % 200) as u16 * 100;
    loop {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % MANY;
        let port = FIRST + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// An address of [`port`].
pub(crate) fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port()).into()
}

/// Longest wait for something that happens by itself in a moment.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Longest start of a process.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Waits until `is_so`.
pub(crate) fn until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !is_so() {
        assert!(started_at.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process. It is killed when this is dropped, with all that it started, and by the kernel should the test die
/// without that.
pub(crate) struct ChildProcess {
    name: &'static str,
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl ChildProcess {
    /// Starts `program`; `prepare` gives it its arguments and environment. It has no environment but PATH and HOME.
    pub(crate) fn start(name: &'static str, program: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).env_clear();
        for variable in ["PATH", "HOME", "STREAMGAUGE_PARTS"] {
            if let Some(value) = std::env::var_os(variable) {
                command.env(variable, value);
            }
        }
        prepare(&mut command);
        // A group of its own: some start others, which do not end with them.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (lines, into) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
        let reader = std::thread::spawn(move || {
            for line in lines.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                let mut log = into.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { name, child, log, reader: Some(reader) }
    }

    /// Waits until something listens on `address`, and for `is_ready` after that.
    pub(crate) fn ready(self, address: SocketAddr, is_ready: impl Fn() -> bool) -> Self {
        self.ready_or_ended(MINUTE, address, is_ready).unwrap_or_else(|ended| panic!("{ended}"))
    }

    /// Waits at most `limit` until it is ready. The error has the exit status, if it ended, and its output.
    pub(crate) fn ready_or_ended(
        mut self,
        limit: Duration,
        address: SocketAddr,
        is_ready: impl Fn() -> bool,
    ) -> Result<Self, String> {
        let started_at = Instant::now();
        while TcpStream::connect(address).is_err() || !is_ready() {
            if let Some((status, _)) = self.ended(Duration::ZERO) {
                return Err(format!("{} ended with {status}:\n{}", self.name, self.log()));
            }
            assert!(started_at.elapsed() < limit, "{} is not ready:\n{}", self.name, self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(self)
    }

    /// Its stderr so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// How often it has written these words.
    pub(crate) fn log_count(&self, words: &str) -> usize {
        self.log().matches(words).count()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Its exit, if that comes within `limit`, and how long it took; its log is whole then.
    pub(crate) fn ended(&mut self, limit: Duration) -> Option<(ExitStatus, Duration)> {
        let started_at = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let took = started_at.elapsed();
                if let Some(reader) = self.reader.take() {
                    reader.join().unwrap();
                }
                return Some((status, took));
            }
            if started_at.elapsed() > limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // They may have ended by themselves.
        killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL).ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            let log = self.log();
            let last: Vec<&str> = log.lines().rev().take(30).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            eprintln!("-- {} said last:\n{}", self.name, last.join("\n"));
        }
    }
}
