//! The row of the live page: what a page that is open costs, at as many short requests as the machine gives, of many
//! models. Two readers stand for it: one that asks for the history each second, as the page does, and one of `/api/live`.
//!
//! The CPU is that of the admin port's thread, with readers less without, for equal numbers of requests. It also counts
//! those, and at full load the other threads take the rest.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::client::{Plan, Work};
use crate::cpu::tree;
use crate::peers::{House, Peer, Running};
use crate::rows::observe;
use crate::script::{Reply, Script, Varies, now};
use crate::table::{Measure, Table};
use crate::upstream::Upstream;

const MODELS: usize = 200;
/// The thread of the admin port, by the name that the proxy gives it.
const THREAD: &str = "control";
const SECOND: Duration = Duration::from_secs(1);

/// Results of one run.
struct Told {
    requests_per_s: f64,
    /// Seconds.
    took: f64,
    /// CPU seconds of the admin port's thread.
    cpu: f64,
    /// Bytes that readers of the history and of `/api/live` get in a minute, at one answer or event a second.
    page: f64,
    live: f64,
}

pub(crate) fn measure(house: &House, peers: &[Peer], seconds: u64, rounds: usize) -> Result<Vec<Table>> {
    let peers: Vec<Peer> = peers.iter().copied().filter(|peer| *peer == Peer::Streamgauge).collect();
    if peers.is_empty() {
        return Ok(Vec::new());
    }
    let table = |measure| Table::new(format!("live page, {MODELS} models"), measure, &peers);
    let mut rate = table(Measure::plain("requests per second"));
    let mut page = table(Measure::most("page, kB per minute", 1_000.0));
    let mut live = table(Measure::most("/api/live, kB per minute", 1_000.0));
    let mut cpu = table(Measure::most("CPU for both, % of a core", 1.0));
    let reply = Arc::new(Reply::new(Script { events: 1, gap: 0, hangs_up: false, varies: Varies::Text }));
    let upstream = Upstream::start(Arc::clone(&reply))?;
    // Exports are that thread's work as well: far more than a page, and never the same twice.
    let house = House { otlp: None, ..house.with(["--max-models", &MODELS.to_string()]) };
    let running = house.start(Peer::Streamgauge, upstream.address)?;
    // It listens before it has all of its threads.
    std::thread::sleep(SECOND);
    let run = |work, watched| run(&running, &reply, work, watched);
    let rate_now = run(Work::For(Duration::from_secs(seconds).as_nanos() as u64), false)?.requests_per_s;
    let work = Work::Total((rate_now * seconds as f64) as usize);
    for round in 0..rounds {
        eprintln!("side_by_side: live page, round {} of {rounds}", round + 1);
        let (without, with) = (run(work, false)?, run(work, true)?);
        for (table, figure) in [
            (&mut rate, with.requests_per_s),
            (&mut page, with.page / 1e3),
            (&mut live, with.live / 1e3),
            (&mut cpu, (with.cpu - without.cpu) / with.took * 100.0),
        ] {
            table.add(Peer::Streamgauge, Some(figure));
        }
    }
    Ok(vec![rate, page, live, cpu])
}

fn run(running: &Running, reply: &Arc<Reply>, work: Work, watched: bool) -> Result<Told> {
    let plan = Plan {
        target: running.address,
        connections: 16,
        models: MODELS,
        work,
        http2_streams: None,
        reply: Arc::clone(reply),
        opened: Arc::new(AtomicUsize::new(0)),
    };
    let admin = running.admin.context("the proxy has no admin port")?;
    let (began, cpu) = (now(), cpu_of_admin(running)?);
    let over = AtomicBool::new(false);
    let (outcome, page, live) = std::thread::scope(|scope| {
        let readers = watched.then(|| (scope.spawn(|| poll(admin, &over)), scope.spawn(|| listen(admin, &over))));
        let outcome = observe(running, &plan);
        over.store(true, Ordering::Relaxed);
        let a_minute = |reader: std::thread::ScopedJoinHandle<'_, Result<(usize, usize)>>| {
            let (bytes, seconds) = reader.join().map_err(|_| anyhow!("a reader panicked"))??;
            anyhow::Ok(bytes as f64 / seconds as f64 * 60.0)
        };
        let (page, live) = match readers {
            Some((page, live)) => (a_minute(page)?, a_minute(live)?),
            None => (0.0, 0.0),
        };
        anyhow::Ok((outcome?, page, live))
    })?;
    let took = (now() - began) as f64 / 1e9;
    ensure!(outcome.tally.failed() == 0, "{} requests failed", outcome.tally.failed());
    Ok(Told {
        requests_per_s: outcome.tally.requests as f64 / took,
        took,
        cpu: (cpu_of_admin(running)? - cpu) as f64 / 1e9,
        page,
        live,
    })
}

/// Asks for what is new once a second, as the page does: bytes, and of how many answers. The first, which is the whole
/// history, is not one of them.
fn poll(admin: SocketAddr, over: &AtomicBool) -> Result<(usize, usize)> {
    let (mut next, mut bytes, mut answers) = (String::new(), 0, 0);
    while !over.load(Ordering::Relaxed) {
        let mut socket = TcpStream::connect(admin)?;
        write!(socket, "GET /api/history{next} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        if !next.is_empty() {
            (bytes, answers) = (bytes + answer.len(), answers + 1);
        }
        let cursor = answer.split("\"next\":\"").nth(1).and_then(|rest| rest.split('"').next());
        next = format!("?after={}", cursor.context("the history has no cursor")?);
        std::thread::sleep(SECOND);
    }
    Ok((bytes, answers))
}

/// Listens to the events of each second: bytes, and of how many events.
fn listen(admin: SocketAddr, over: &AtomicBool) -> Result<(usize, usize)> {
    let mut socket = TcpStream::connect(admin)?;
    write!(socket, "GET /api/live HTTP/1.1\r\nHost: {admin}\r\n\r\n")?;
    let (mut buffer, mut bytes, mut events) = (vec![0; 1 << 20], 0, 0);
    while !over.load(Ordering::Relaxed) {
        let n = socket.read(&mut buffer)?;
        ensure!(n > 0, "the proxy cut a live reader off");
        bytes += n;
        events += buffer[..n].windows(7).filter(|bytes| bytes == b"data: {").count();
    }
    Ok((bytes, events))
}

/// CPU nanoseconds of the thread that the admin port has.
fn cpu_of_admin(running: &Running) -> Result<u64> {
    let read = |path: &std::path::Path| fs::read_to_string(path).unwrap_or_default();
    for pid in tree(running.pid().context("the proxy has no process")?) {
        for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            if read(&thread.path().join("comm")).trim() == THREAD {
                let stat = read(&thread.path().join("schedstat"));
                return stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).context("no schedstat");
            }
        }
    }
    Err(anyhow!("the proxy has no thread called {THREAD}"))
}
