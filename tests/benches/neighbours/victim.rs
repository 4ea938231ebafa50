//! The client whose latency is measured: one short streamed request after another, a millisecond apart.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::server::{MEASURED_FIELD, UNREAD_PATH};

/// Pause between two requests: the client must not be the load.
const PAUSE: Duration = Duration::from_millis(1);

/// A short streamed request.
pub(crate) const BODY: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"How deep is it?"}]}"#;

/// Percentiles of one measurement, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Latencies {
    pub(crate) fn of(mut values: Vec<Duration>) -> Self {
        values.sort();
        let at = |share: usize| values[values.len() * share / 100].as_secs_f64() * 1e6;
        Self { p50: at(50), p99: at(99) }
    }
}

/// Measures for `span` over a connection of its own.
pub(crate) fn over_http1(proxy: SocketAddr, span: Duration) -> Latencies {
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_nodelay(true).unwrap();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{MEASURED_FIELD}: 1\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let (started_at, mut values, mut buffer) = (Instant::now(), Vec::new(), [0; 16_384]);
    while started_at.elapsed() < span {
        let sent = Instant::now();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"[DONE]\n\n") {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&reply));
            reply.extend_from_slice(&buffer[..read]);
        }
        values.push(sent.elapsed());
        thread::sleep(PAUSE);
    }
    Latencies::of(values)
}

/// Measures for `span` on an HTTP/2 connection on which `stalled` uploads wait for a server that does not read them.
pub(crate) fn over_http2(proxy: SocketAddr, stalled: usize, span: Duration) -> Latencies {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(proxy).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let uploads: Vec<_> =
            (0..stalled).map(|_| tokio::spawn(request(&sender, UNREAD_PATH, vec![b'u'; 2 << 20]))).collect();
        if stalled > 0 {
            // Until all windows are full.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
        let (started_at, mut values) = (Instant::now(), Vec::new());
        while started_at.elapsed() < span {
            let sent = Instant::now();
            request(&sender, "/v1/chat/completions", BODY.into()).await;
            values.push(sent.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
        uploads.iter().for_each(tokio::task::JoinHandle::abort);
        Latencies::of(values)
    })
}

fn request(sender: &SendRequest<Full<Bytes>>, path: &str, body: Vec<u8>) -> impl Future<Output = ()> + use<> {
    let mut sender = sender.clone();
    let request = Request::post(format!("http://a{path}")).header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    async move {
        let reply = sender.send_request(request).await.unwrap();
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        assert!(body.ends_with(b"[DONE]\n\n"));
    }
}
