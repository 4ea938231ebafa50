//! HTTP/2 flow control: a stream that is not read, on either side, holds no more than its own window.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket2::SockRef;

use crate::support::PATIENCE;
use crate::support::captured::{self, until};
use crate::support::client::Client;
use crate::support::frames::{self, Frames};
use crate::support::http2::{self, Pki, runtime, server_config};
use crate::support::proxy::TestProxy;
use crate::support::upstream::Upstream;

/// Streams that a connection to the server carries, less those that go on beside the stalled ones.
const STALLED_READERS: usize = 92;
/// Streams that the proxy allows a client, less those that go on beside the stalled ones.
const STALLED_UPLOADS: usize = 242;

const SHORT: usize = 1_000_000;

/// An upstream whose replies are long, long in small events, or of [`SHORT`] bytes.
fn replying(tls: Option<rustls::ServerConfig>) -> SocketAddr {
    http2::upstream(tls, |request, _| {
        let pieces = match request.uri().path() {
            "/long" => vec![Bytes::from_static(&[b'l'; 65_536]); 256],
            "/events" => vec![Bytes::from_static(&[b'e'; 60]); 20_000],
            _ => vec![Bytes::from_static(&[b's'; 10_000]); SHORT / 10_000],
        };
        (Response::new(pieces), None)
    })
}

/// Asks for `path` on so many streams of one connection, and reads none of the replies but their heads.
fn stalled_streams(addr: SocketAddr, path: &str, count: usize) -> Frames {
    let mut client = Frames::connect(addr);
    let head = [b"\x82\x86\x04", &[u8::try_from(path.len()).unwrap()][..], path.as_bytes(), b"\x01\x01a"].concat();
    let flags = frames::END_HEADERS | frames::END_STREAM;
    for at in 0..u32::try_from(count).unwrap() {
        assert!(client.send(frames::HEADERS, flags, 1 + 2 * at, &head));
    }
    for _ in 0..count {
        while client.next().unwrap().kind != frames::HEADERS {}
    }
    client
}

/// An HTTP/1.1 client that has asked for `path` and reads nothing.
fn stalled_client(addr: SocketAddr, path: &str) -> Client {
    let mut client = Client::connect(addr);
    SockRef::from(&client.stream).set_recv_buffer_size(4_096).unwrap();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

/// Eight clients, each with the whole of a short reply.
fn others_complete(addr: SocketAddr) {
    let others: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let response = Client::connect(addr).send("GET /short HTTP/1.1\r\nHost: a\r\n\r\n").response();
                assert_eq!((response.status(), response.body.len(), response.truncated), (200, SHORT, false));
            })
        })
        .collect();
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// Waits until the proxy's memory for stalled readers no longer grows.
fn windows_are_full() {
    std::thread::sleep(std::time::Duration::from_millis(1_500));
}

#[test]
fn clients_that_stop_reading_leave_an_http2_connection_to_the_others() {
    let pki = Pki::new();
    let secure = format!("https://{}", replying(Some(server_config(&pki, None))));
    let in_clear = format!("http://{}", replying(None));
    for (url, settings) in [(in_clear, [("upstream_http", "http2")]), (secure, [("upstream_ca", &*pki.text("ca.pem"))])]
    {
        let proxy = TestProxy::to(&url, &[&settings[..], &[("workers", "1")]].concat());
        let _stalled: Vec<_> = (0..12).map(|_| stalled_client(proxy.addr, "/long")).collect();
        windows_are_full();
        others_complete(proxy.addr);
        let _more = stalled_streams(proxy.addr, "/long", STALLED_READERS - 12);
        windows_are_full();
        others_complete(proxy.addr);
    }
}

#[test]
fn unread_events_of_a_few_bytes_do_not_break_the_connection_that_they_came_over() {
    let proxy = TestProxy::with(replying(None), &[("upstream_http", "http2"), ("workers", "1")]);
    let mut stalled = stalled_streams(proxy.addr, "/events", STALLED_READERS);
    windows_are_full();
    others_complete(proxy.addr);
    stalled.stream.set_nonblocking(true).unwrap();
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stalled.rest()));
    assert!(broken.is_err(), "the stalled streams are still open: {broken:?}");
}

/// An HTTP/2 server that never reads an upload to `/stalled`, and answers any other with its size; how many it has
/// begun.
fn taking() -> (SocketAddr, Arc<AtomicUsize>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let upload_count = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&upload_count);
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (socket, count) = (listener.accept().await.unwrap().0, Arc::clone(&count));
                let service = service_fn(move |request: Request<Incoming>| {
                    count.fetch_add(1, Relaxed);
                    async move {
                        if request.uri().path() == "/stalled" {
                            std::future::pending::<()>().await;
                        }
                        let size = request.into_body().collect().await.unwrap().to_bytes().len();
                        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(size.to_string()))))
                    }
                });
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { server.serve_connection(TokioIo::new(socket), service).await });
            }
        });
    });
    (receiver.recv().unwrap(), upload_count)
}

/// A connection of a client that uploads.
async fn connected(addr: SocketAddr) -> SendRequest<Full<Bytes>> {
    let io = TokioIo::new(tokio::net::TcpStream::connect(addr).await.unwrap());
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn upload(path: &str, size: usize) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from(vec![b'u'; size]));
    Request::post(format!("http://proxy.test{path}")).body(body).unwrap()
}

/// Uploads of several sizes complete on this connection.
async fn other_uploads_complete(sender: &SendRequest<Full<Bytes>>) {
    for size in [30_000, 2_000_000, 2, 100_000] {
        let reply = sender.clone().send_request(upload("/other", size));
        let reply = tokio::time::timeout(PATIENCE, reply).await.expect("another upload goes on").unwrap();
        let answer = reply.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(answer, size.to_string());
    }
}

#[test]
fn an_upload_that_the_server_does_not_read_leaves_both_connections_to_the_others() {
    let (upstream, upload_count) = taking();
    let http1 = Upstream::start(|mut conn| {
        let head = conn.head().unwrap();
        if head.starts_with("POST /stalled") {
            std::thread::park();
        }
        let size = crate::support::upstream::field(&head, "content-length").unwrap().to_owned();
        conn.exactly(size.parse().unwrap());
        conn.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{size}", size.len()));
    });
    for (upstream, version) in [(upstream, "http2"), (http1.addr, "http1")] {
        let proxy = TestProxy::with(upstream, &[("upstream_http", version), ("workers", "1")]);
        runtime().block_on(async {
            let sender = connected(proxy.addr).await;
            let stalled = tokio::spawn(sender.clone().send_request(upload("/stalled", 50_000_000)));
            // The client has sent what the windows and the kernel take.
            tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
            other_uploads_complete(&sender).await;
            assert!(!stalled.is_finished());
            stalled.abort();
        });
    }
    assert!(upload_count.load(Relaxed) >= 5);
}

#[test]
fn small_uploads_that_together_take_a_servers_window_do_not_stop_later_ones() {
    let (upstream, upload_count) = taking();
    let proxy = TestProxy::with(upstream, &[("upstream_http", "http2"), ("workers", "1")]);
    runtime().block_on(async {
        let sender = connected(proxy.addr).await;
        // The server's window is 1 MiB, and none of these is larger than what the proxy keeps.
        let stalled: Vec<_> =
            (0..30).map(|_| tokio::spawn(sender.clone().send_request(upload("/stalled", 60_000)))).collect();
        while upload_count.load(Relaxed) < stalled.len() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1_000)).await;
        other_uploads_complete(&sender).await;
        stalled.iter().for_each(tokio::task::JoinHandle::abort);
    });
}

/// True if the proxy holds more memory than a moment ago.
async fn grows(run: &captured::RunningProxy) -> bool {
    let before = run.peak_bytes();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    run.peak_bytes() > before
}

#[test]
fn the_memory_of_stalled_uploads_is_bounded_and_a_client_that_resets_them_gets_its_window_back() {
    /// As the README has it.
    const MAX_UPLOAD_BYTES: usize = 1024 * 1024;
    let (upstream, _) = taking();
    let run = captured::run_without_capture(upstream, &["--upstream-http=http2"]);
    runtime().block_on(async {
        let sender = connected(run.listen).await;
        other_uploads_complete(&sender).await;
        let before = run.peak_bytes();
        for _ in 0..2 {
            let stalled: Vec<_> = (0..STALLED_UPLOADS)
                .map(|_| tokio::spawn(sender.clone().send_request(upload("/stalled", 2_000_000))))
                .collect();
            // Others go on while the windows fill as well as later.
            other_uploads_complete(&sender).await;
            while grows(&run).await {}
            other_uploads_complete(&sender).await;
            stalled.iter().for_each(tokio::task::JoinHandle::abort);
        }
        other_uploads_complete(&sender).await;
        let held = run.peak_bytes() - before;
        assert!(held < STALLED_UPLOADS * MAX_UPLOAD_BYTES, "{} KiB per upload", held / STALLED_UPLOADS / 1024);
    });
    // The connection windows of the uploads are released.
    let idle = "streamgauge_proxy_upstream_connections{state=\"active\"} 1\n";
    until("one connection rests", || run.page("/metrics").contains(idle));
}
