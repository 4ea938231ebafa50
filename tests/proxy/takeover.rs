//! A restart without a failed request: another process takes over the sockets, after a signal or from systemd.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use streamgauge::trace_file::reader::TraceReader;

use crate::support::client::Client;
use crate::support::upstream::Upstream;
use crate::support::{PATIENCE, upstream};

const REQUEST: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";

/// The program with these arguments, and all that it and its successors log.
pub(crate) struct Program {
    child: Child,
    log: mpsc::Receiver<String>,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Program {
    pub(crate) fn start(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        command.arg("proxy").args(arguments);
        Self::of(command, prepare)
    }

    fn of(mut command: Command, prepare: impl FnOnce(&mut Command)) -> Self {
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let (sender, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let anywhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut program = Self { child, log, listen: anywhere, admin: anywhere };
        let line = program.wait_for_line("forwarding");
        let address = |name: &str| line.split(name).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        (program.listen, program.admin) = (address(" listen="), address(" admin="));
        program
    }

    /// The next line of the log that has this in it.
    fn wait_for_line(&self, words: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("{error}; no `{words}` in\n{}", seen.join("\n")),
            }
        }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
}

/// The process that a line of the log names.
fn process(line: &str) -> u32 {
    line.split("process ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Waits until a process has ended, whether anybody has asked for its exit code or not.
fn has_ended(process: u32) -> bool {
    let started_at = Instant::now();
    while started_at.elapsed() < PATIENCE {
        match std::fs::read_to_string(format!("/proc/{process}/stat")) {
            Ok(stat) if stat.rsplit(')').next().is_none_or(|rest| !rest.starts_with(" Z")) => {}
            _ => return true,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// A server of short streams; one that is asked for `/held` goes on until `release`.
fn server(release: impl Fn() + Send + Sync + 'static) -> Upstream {
    Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            conn.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..4 {
                conn.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n");
                std::thread::sleep(Duration::from_millis(2));
            }
            if request.head.starts_with("POST /held") {
                release();
            }
            conn.chunk("data: [DONE]\n\n");
            conn.send("0\r\n\r\n");
        }
    })
}

/// One request on a connection; whether the connection may be used again.
fn exchange(stream: &mut TcpStream) -> Result<bool, String> {
    stream.write_all(REQUEST.as_bytes()).map_err(|error| format!("sending: {error}"))?;
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !seen.ends_with(b"\r\n0\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(format!("ended after {:?}", String::from_utf8_lossy(&seen))),
            Ok(n) => seen.extend_from_slice(&buffer[..n]),
            Err(error) => return Err(format!("receiving: {error}")),
        }
    }
    let text = String::from_utf8(seen).unwrap();
    if !text.starts_with("HTTP/1.1 200 ") || text.matches("content").count() != 4 {
        return Err(text);
    }
    Ok(upstream::field(&text, "connection").is_none_or(|value| !value.eq_ignore_ascii_case("close")))
}

fn connect(addr: SocketAddr) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(addr).map_err(|error| format!("connecting: {error}"))?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Ok(stream)
}

/// Requests without a pause, on connections of their own or on kept ones, until `stop`; what failed.
fn load(addr: SocketAddr, keep_alive: bool, done: &AtomicUsize, stop: &AtomicBool) -> Vec<String> {
    let mut failed = Vec::new();
    let mut open: Option<TcpStream> = None;
    while !stop.load(Ordering::SeqCst) {
        let mut once = || {
            let mut stream = open.take().map_or_else(|| connect(addr), Ok)?;
            Ok::<_, String>(exchange(&mut stream)?.then_some(stream).filter(|_| keep_alive))
        };
        match once() {
            Ok(stream) => open = stream,
            Err(error) => failed.push(error),
        }
        done.fetch_add(1, Ordering::SeqCst);
    }
    failed
}

#[test]
fn three_processes_after_one_another_take_over_under_load_and_no_request_fails() {
    let (release, released) = mpsc::channel();
    let released = std::sync::Mutex::new(released);
    let server = server(move || released.lock().unwrap().recv_timeout(PATIENCE).unwrap());
    let to = format!("--upstream=http://{}", server.addr);
    let program = Program::start(&[&to, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"], |_| {});
    let mut held = Client::connect(program.listen);
    held.send(REQUEST.replace("/v1/chat/completions", "/held")).head();
    let mut scraper = Client::connect(program.admin);
    assert_eq!(scraper.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").response().status(), 200);

    let (done, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = [false, true, false, true, false, true]
        .map(|keep_alive| {
            let (addr, done, stop) = (program.listen, Arc::clone(&done), Arc::clone(&stop));
            std::thread::spawn(move || load(addr, keep_alive, &done, &stop))
        })
        .into();
    let mut processes = vec![program.id()];
    for _ in 0..3 {
        let before = done.load(Ordering::SeqCst);
        while done.load(Ordering::SeqCst) < before + 100 {
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(*processes.last().unwrap(), Signal::SIGUSR2);
        processes.push(process(&program.wait_for_line("has taken over")));
    }
    // Another 100 are served by the last one, which has the admin port to itself.
    let before = done.load(Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < before + 100 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut rest = String::new();
    scraper.stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a kept connection of a scraper ends, so that its next one is the successor's");
    let count = || {
        let metrics =
            Client::connect(program.admin).send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").response().text();
        let lines = metrics.lines().filter(|line| line.starts_with("http_server_request_duration_seconds_count"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let counts: Vec<f64> = (0..10).map(|_| count()).collect();
    assert!(counts.is_sorted() && counts[9] > 0.0, "one process answers: {counts:?}");
    stop.store(true, Ordering::SeqCst);
    let failed: Vec<String> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
    assert_eq!(failed, [""; 0], "of {}", done.load(Ordering::SeqCst));

    // Those in between are gone, and the first waits for its open stream.
    assert!(has_ended(processes[1]) && has_ended(processes[2]));
    assert!(Path::new(&format!("/proc/{}", processes[0])).exists());
    release.send(()).unwrap();
    let reply = held.body_of("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned());
    assert!(reply.text().ends_with("data: [DONE]\n\n") && !reply.truncated, "{}", reply.text());
    assert!(has_ended(processes[0]));
    signal(processes[3], Signal::SIGTERM);
    assert!(has_ended(processes[3]));
}

#[test]
fn a_successor_that_cannot_start_leaves_everything_to_the_process_that_serves() {
    let server = server(|| {});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gauge.yaml");
    let good = format!("upstream: http://{}\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n", server.addr);
    std::fs::write(&file, &good).unwrap();
    let program = Program::start(&[&format!("--config={}", file.display())], |_| {});
    std::fs::write(&file, "upstream: nowhere\n").unwrap();
    signal(program.id(), Signal::SIGUSR2);
    program.wait_for_line("ended before it could take over; this one goes on");
    assert_eq!(exchange(&mut connect(program.listen).unwrap()), Ok(true));
    // And the next one can.
    std::fs::write(&file, good).unwrap();
    signal(program.id(), Signal::SIGUSR2);
    let successor = process(&program.wait_for_line("has taken over"));
    // Either process may accept this connection.
    exchange(&mut connect(program.listen).unwrap()).unwrap();
    assert!(has_ended(program.id()));
    signal(successor, Signal::SIGTERM);
    assert!(has_ended(successor));
}

#[test]
fn a_capture_continues_in_the_process_that_takes_over() {
    let server = server(|| {});
    let folder = tempfile::tempdir().unwrap();
    let (to, into) = (format!("--upstream=http://{}", server.addr), format!("--capture={}", folder.path().display()));
    let program = Program::start(&[&to, &into, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"], |_| {});
    assert_eq!(exchange(&mut connect(program.listen).unwrap()), Ok(true));
    signal(program.id(), Signal::SIGUSR2);
    let successor = process(&program.wait_for_line("has taken over"));
    assert!(has_ended(program.id()));
    for _ in 0..2 {
        assert_eq!(exchange(&mut connect(program.listen).unwrap()), Ok(true));
    }
    signal(successor, Signal::SIGTERM);
    assert!(has_ended(successor));
    let rows = TraceReader::open(folder.path()).unwrap().filter(|row| row.is_ok()).count();
    assert_eq!(rows, 3);
}

/// The program as systemd starts it: with these sockets, and its own number in `LISTEN_PID`.
fn activated(to: &str, listeners: &[TcpListener; 2], notify: &Path) -> Program {
    let [listen, admin] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let mut command = Command::new("sh");
    let line = "LISTEN_PID=$$ exec \"$0\" proxy \"$@\"";
    command.args(["-c", line, env!("CARGO_BIN_EXE_streamgauge"), to]);
    command.arg(format!("--listen={listen}")).arg(format!("--admin={admin}"));
    let sockets = listeners.each_ref().map(|listener| OwnedFd::from(listener.try_clone().unwrap()));
    let mappings = (3..).zip(sockets).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
    command.fd_mappings(mappings.collect()).unwrap();
    Program::of(command, |command| {
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "streamgauge.socket:streamgauge.socket");
        command.env("NOTIFY_SOCKET", notify);
    })
}

#[test]
fn with_sockets_of_systemd_clients_wait_through_a_restart_and_none_is_refused() {
    let server = server(|| {});
    let to = format!("--upstream=http://{}", server.addr);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let notification = || {
        let mut buffer = [0; 256];
        let n = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..n].to_vec()).unwrap()
    };
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let listen = listeners[0].local_addr().unwrap();

    let first = activated(&to, &listeners, &path);
    assert_eq!(notification(), "READY=1");
    assert_eq!((first.listen, exchange(&mut connect(listen).unwrap())), (listen, Ok(true)));
    signal(first.id(), Signal::SIGTERM);
    assert_eq!(notification(), "STOPPING=1");
    assert!(has_ended(first.id()));
    let waiting = std::thread::spawn(move || exchange(&mut connect(listen)?));

    let second = activated(&to, &listeners, &path);
    assert_eq!(notification(), "READY=1");
    assert_eq!(waiting.join().unwrap(), Ok(true));

    signal(second.id(), Signal::SIGHUP);
    let reloading = notification();
    let began = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{reloading}"));
    let (now, began) = (streamgauge::clock::kernel_monotonic_micros().unwrap(), began.parse::<u64>().unwrap());
    assert!(began <= now && now - began < 60_000_000, "{began} of {now}");
    assert_eq!(notification(), "READY=1");

    // The sockets go on to a successor, and the service manager hears which process is the service's.
    signal(second.id(), Signal::SIGUSR2);
    assert!(notification().starts_with("RELOADING=1\n"));
    let successor = process(&second.wait_for_line("has taken over"));
    let mut both = [notification(), notification()];
    both.sort();
    assert_eq!(both, [format!("MAINPID={successor}\nREADY=1"), "READY=1".to_owned()]);
    assert!(has_ended(second.id()));
    assert_eq!(exchange(&mut connect(listen).unwrap()), Ok(true));
    signal(successor, Signal::SIGTERM);
    assert_eq!(notification(), "STOPPING=1");
    assert!(has_ended(successor));
}
