//! Disturbances: readers that stall, uploads that stall, and bodies of which every byte is made to be costly.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use socket2::SockRef;

use crate::server::{ENDLESS_PATH, REPLY_FIELD};

/// Bytes of a large hostile body.
const LARGE: usize = 4 << 20;
/// A path that the proxy does not observe.
pub(crate) const PLAIN_PATH: &str = "/plain";

/// One body that is costly to observe.
#[derive(Clone, Debug)]
pub(crate) struct HostileBody {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) encoding: &'static str,
    pub(crate) body: Bytes,
}

/// Load beside the measured client.
#[derive(Clone, Debug)]
pub(crate) enum Disturbance {
    /// Clients that ask for replies without end and do not read them.
    StalledReaders(usize),
    /// Uploads on the measured client's own connection that the server does not read.
    StalledUploads(usize),
    /// So many clients send this body, one request after another.
    Requests(usize, HostileBody),
    /// So many clients ask for this reply, one request after another.
    Replies(usize, HostileBody),
}

/// A running disturbance; ends when dropped.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _stalled: Vec<TcpStream>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Disturbance {
    /// Equal bytes on a path that the proxy does not observe.
    pub(crate) fn unobserved(&self) -> Option<Self> {
        let plain = |body: &HostileBody| HostileBody { path: PLAIN_PATH, ..body.clone() };
        match self {
            Self::StalledReaders(_) | Self::StalledUploads(_) => None,
            Self::Requests(clients, body) => Some(Self::Requests(*clients, plain(body))),
            Self::Replies(clients, body) => Some(Self::Replies(*clients, plain(body))),
        }
    }

    pub(crate) fn start(&self, proxy: SocketAddr) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut threads, mut stalled) = (Vec::new(), Vec::new());
        match self {
            Self::StalledReaders(count) => {
                stalled.extend((0..*count).map(|_| stalled_reader(proxy)));
                // Until all windows are full.
                thread::sleep(std::time::Duration::from_millis(1_500));
            }
            Self::StalledUploads(_) => {}
            Self::Requests(clients, body) | Self::Replies(clients, body) => {
                let is_reply = matches!(self, Self::Replies(..));
                for _ in 0..*clients {
                    let (stop, body) = (Arc::clone(&stop), body.clone());
                    threads.push(thread::spawn(move || repeat_requests(proxy, &body, is_reply, &stop)));
                }
            }
        }
        Running { stop, threads, _stalled: stalled }
    }
}

fn stalled_reader(proxy: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(proxy).unwrap();
    SockRef::from(&stream).set_recv_buffer_size(4_096).unwrap();
    write!(stream, "GET {ENDLESS_PATH} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream
}

/// Sends requests over one connection until `stop`.
fn repeat_requests(proxy: SocketAddr, hostile: &HostileBody, is_reply: bool, stop: &AtomicBool) {
    let HostileBody { name, path, content_type, encoding, body } = hostile;
    let head = match is_reply {
        true => format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{REPLY_FIELD}: {name}\r\n\
             Content-Length: 15\r\n\r\n{{\"stream\":true}}"
        ),
        false => {
            let coding = match (*encoding, *content_type) {
                ("", _) => String::new(),
                (coding, "application/grpc") => format!("grpc-encoding: {coding}\r\n"),
                (coding, _) => format!("Content-Encoding: {coding}\r\n"),
            };
            format!(
                "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {content_type}\r\n{coding}Content-Length: {}\r\n\r\n",
                body.len()
            )
        }
    };
    let mut stream = TcpStream::connect(proxy).unwrap();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Relaxed) {
        stream.write_all(head.as_bytes()).unwrap();
        if !is_reply {
            stream.write_all(body).unwrap();
        }
        read_reply(&mut stream, &mut buffer);
    }
}

fn read_reply(stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut seen = Vec::new();
    let end = loop {
        let read = stream.read(buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
        if let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let head = String::from_utf8_lossy(&seen[..end]).to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
    let mut left = (end + length).saturating_sub(seen.len());
    while left > 0 {
        let read = stream.read(buffer).unwrap();
        assert!(read > 0);
        left -= read;
    }
}

/// One row of the table.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) is_http2: bool,
    pub(crate) disturbance: Disturbance,
    /// Load beside the client in the quiet rounds.
    pub(crate) beside: Option<Disturbance>,
    /// The highest ratio of the 99th percentiles.
    pub(crate) goal: f64,
}

/// All rows, and the bodies that the server must know.
pub(crate) fn rows(clients: usize) -> (Vec<Row>, Vec<HostileBody>) {
    let stalled = |count| Row {
        name: format!("{count} stalled readers, HTTP/2 server"),
        is_http2: true,
        disturbance: Disturbance::StalledReaders(count),
        beside: None,
        goal: 1.2,
    };
    let uploads = |count, is_http2| Row {
        name: format!("{count} stalled uploads, HTTP/{} server", if is_http2 { "2" } else { "1" }),
        is_http2,
        disturbance: Disturbance::StalledUploads(count),
        beside: None,
        goal: 1.2,
    };
    let mut rows = vec![stalled(12), stalled(90), uploads(1, true), uploads(90, true), uploads(90, false)];
    for (kind, bodies) in [("request", requests()), ("reply", replies())] {
        for body in bodies {
            let disturbance = match kind {
                "request" => Disturbance::Requests(clients, body.clone()),
                _ => Disturbance::Replies(clients, body.clone()),
            };
            for (with, beside) in [("", None), (", to unobserved", disturbance.unobserved())] {
                rows.push(Row {
                    name: format!("{kind}: {}{with}", body.name),
                    is_http2: false,
                    disturbance: disturbance.clone(),
                    beside,
                    goal: 2.0,
                });
            }
        }
    }
    (rows, replies())
}

fn gzip(plain: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 3).unwrap()
}

fn repeat(piece: &[u8], size: usize) -> Vec<u8> {
    piece.repeat(size.div_ceil(piece.len()))
}

/// A compressed gRPC message.
fn message(compressed: &[u8]) -> Vec<u8> {
    [&[1][..], &u32::try_from(compressed.len()).unwrap().to_be_bytes(), compressed].concat()
}

const CHAT: &str = "/v1/chat/completions";
const JSON: &str = "application/json";

fn requests() -> Vec<HostileBody> {
    let body = |name, path, content_type, encoding, body: Vec<u8>| HostileBody {
        name,
        path,
        content_type,
        encoding,
        body: body.into(),
    };
    let grpc = "/inference.GRPCInferenceService/ModelStreamInfer";
    let numbers = [b"[", &repeat(b"1,", 8 << 20)[..]].concat();
    vec![
        body("members of gzip", CHAT, JSON, "gzip", repeat(&gzip(b"", Compression::default()), LARGE)),
        body("frames of zstd", CHAT, JSON, "zstd", repeat(&zstd(b""), LARGE)),
        body("gRPC of zstd", grpc, "application/grpc", "zstd", repeat(&message(&zstd(b"")), LARGE)),
        body("bombs of 8 kB", CHAT, JSON, "gzip", gzip(&numbers, Compression::best())),
        body("numbers", CHAT, JSON, "", [b"[", &repeat(b"1,", LARGE)[..]].concat()),
        body("nested arrays", CHAT, JSON, "", repeat(b"[", LARGE)),
    ]
}

fn replies() -> Vec<HostileBody> {
    let body = |name, encoding, body: Vec<u8>| HostileBody {
        name,
        path: CHAT,
        content_type: "text/event-stream",
        encoding,
        body: body.into(),
    };
    let choices = format!("data: {{\"choices\":[{{}}{}]}}\n\n", ",{}".repeat(100_000));
    vec![
        body("members of gzip", "gzip", repeat(&gzip(b"", Compression::default()), LARGE)),
        body("bombs of events", "gzip", gzip(&repeat(b"data:{}\n\n", 8 << 20), Compression::best())),
        body("100,000 choices", "", repeat(choices.as_bytes(), LARGE)),
        body("empty lines", "", repeat(b"\n", LARGE)),
    ]
}
