//! How true are the stamps on a busy machine?
//!
//! A simulated server sends at an exact cadence and keeps the time of every send. A reader like the proxy's takes the
//! streams off its sockets while other threads keep every core busy. The error of a gap is its distance from the gap
//! between the two sends. Each send happened somewhere between the start and the end of its system call. Both the
//! kernel's stamps and the clock at the read are compared, for equal reads.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program of its own: its table is its output")]

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use streamgauge::clock::Clock;
use streamgauge::engine::EngineOptions;
use streamgauge::measure::record::StampSource;
use streamgauge::measure::time::{Gap, Stamp};
use streamgauge::net::io::MaybeTlsStream;
use streamgauge::sim::{SimOptions, SimServer};
use tokio::net::TcpStream;

const STREAMS: usize = 32;
const TOKENS: usize = 150;
const CADENCE: Gap = Gap::from_millis(40);

/// One event read alone: its number, the kernel's stamp, the clock at the read.
type Seen = (usize, Stamp, Stamp);

async fn follow(addr: SocketAddr, id: usize) -> Vec<Seen> {
    let socket = TcpStream::connect(addr).await.unwrap();
    let mut io = MaybeTlsStream::plain(socket);
    let body = format!(
        "{{\"model\":\"sim\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":{TOKENS},\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}]}}"
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nX-Request-Id: s{id}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut written = 0;
    poll_fn(|cx| io.poll_write_all(cx, request.as_bytes(), &mut written)).await.unwrap();
    let (mut events, mut seen) = (0, Vec::new());
    while let Some((found, arrival)) = poll_fn(|cx| {
        io.poll_read(cx, |bytes, arrival| (bytes.windows(6).filter(|window| window == b"data: ").count(), arrival))
    })
    .await
    .unwrap()
    {
        let read = Clock::Monotonic.now();
        assert_eq!(arrival.source, StampSource::Kernel);
        events += found;
        // Several events in one read share its stamp by definition; they are no evidence about stamps.
        if found == 1 {
            seen.push((events - 1, arrival.at, read));
        }
    }
    seen
}

/// TestProxy which stamps each event of a stream was really sent, on the process's own line.
fn sends(addr: SocketAddr, id: usize) -> Vec<[Stamp; 2]> {
    let mut socket = std::net::TcpStream::connect(addr).unwrap();
    write!(socket, "GET /sim/sends?id=s{id} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let body = &answer[answer.find('{').unwrap()..=answer.rfind('}').unwrap()];
    let sends: serde_json::Value = serde_json::from_str(body).unwrap();
    let stamp = |event: &serde_json::Value, key| Stamp::from_nanos(event[key].as_u64().unwrap());
    let between = |event| [stamp(event, "began_ns"), stamp(event, "ended_ns")];
    sends["events"].as_array().unwrap().iter().map(between).collect()
}

fn percentile(sorted: &[Gap], percent: f64) -> Gap {
    sorted[((sorted.len() - 1) as f64 * percent / 100.0) as usize]
}

fn row(name: &str, mut errors: Vec<Gap>) {
    errors.sort_unstable();
    let at = |percent| percentile(&errors, percent).to_string();
    println!("{name:<16} {:>8} {:>10} {:>10} {:>10}", errors.len(), at(50.0), at(99.0), at(99.9));
}

fn main() {
    let engine = EngineOptions { exact_cadence: Some(CADENCE), ..EngineOptions::default() };
    let options = SimOptions { engine, ..SimOptions::default() };
    let server = SimServer::bind(options, "127.0.0.1:0".parse().unwrap()).unwrap();
    let running = server.spawn().unwrap();
    let addr = running.local_addr();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    println!("{STREAMS} streams, a token every {CADENCE}, {cores} cores, {} busy threads", 2 * cores);
    println!("{:<16} {:>8} {:>10} {:>10} {:>10}", "error of a gap", "gaps", "p50", "p99", "p99.9");
    for busy in [0, 2 * cores] {
        let stop = Arc::new(AtomicBool::new(false));
        let hogs: Vec<_> = (0..busy)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
            })
            .collect();
        let offset = if busy == 0 { 0 } else { STREAMS };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let seen: Vec<Vec<Seen>> = runtime.block_on(async {
            let followed: Vec<_> = (0..STREAMS).map(|id| tokio::spawn(follow(addr, offset + id))).collect();
            let mut seen = Vec::new();
            for stream in followed {
                seen.push(stream.await.unwrap());
            }
            seen
        });
        stop.store(true, Ordering::Relaxed);
        hogs.into_iter().for_each(|hog| hog.join().unwrap());
        let (mut kernel, mut read) = (Vec::new(), Vec::new());
        for (id, seen) in seen.iter().enumerate() {
            let sent = sends(addr, offset + id);
            for pair in seen.windows(2) {
                let [(a, kernel_a, read_a), (b, kernel_b, read_b)] = [pair[0], pair[1]];
                let (Some(sent_a), Some(sent_b)) = (sent.get(a), sent.get(b)) else { continue };
                let (least, most) = (sent_b[0].since(sent_a[1]), sent_b[1].since(sent_a[0]));
                let error = |gap: Gap| Gap::from_nanos(gap.as_nanos().abs_diff(gap.clamp(least, most).as_nanos()));
                kernel.push(error(kernel_b.since(kernel_a)));
                read.push(error(read_b.since(read_a)));
            }
        }
        let load = if busy == 0 { "idle" } else { "busy" };
        row(&format!("{load}, kernel"), kernel);
        row(&format!("{load}, read"), read);
    }
    running.stop().unwrap();
}
