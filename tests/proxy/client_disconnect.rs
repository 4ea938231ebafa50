//! A client's FIN or reset ends its request at once, even while the proxy reads nothing from it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;

use crate::support::client::{Client, chat};
use crate::support::http2::{Pki, client_config};
use crate::support::proxy::TestProxy;
use crate::support::upstream::{Conn, Upstream, reports};

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
/// Bytes that fit into the kernel of a proxy that does not read.
const PIECE: usize = 32 * 1024;
/// Bytes that have lain unread this long are not going to be read.
const STALLED: Duration = Duration::from_millis(100);

/// How many bytes of the connection from `client` to `proxy` the proxy has not read.
fn unread(proxy: SocketAddr, client: SocketAddr) -> usize {
    let ends = format!("0100007F:{:04X} 0100007F:{:04X}", proxy.port(), client.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table.lines().find(|line| line.contains(&ends)).expect("the connection is open");
    let queues = line.split_whitespace().nth(4).unwrap();
    usize::from_str_radix(queues.split_once(':').unwrap().1, 16).unwrap()
}

/// Waits until the proxy has read everything, or has read nothing for [`STALLED`]; whether it has stalled.
fn stalls(proxy: SocketAddr, client: SocketAddr) -> bool {
    let (mut before, mut since) = (0, Instant::now());
    loop {
        // The kernel takes milliseconds to list its connections.
        std::thread::sleep(Duration::from_millis(1));
        let now = unread(proxy, client);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        if now == 0 || since.elapsed() >= STALLED {
            return now > 0;
        }
    }
}

/// Sends until the proxy leaves bytes unread, all of which have reached its kernel.
fn send_until_unread(proxy: SocketAddr, client: SocketAddr, mut send: impl FnMut(&[u8])) {
    let piece = [b'x'; PIECE];
    for _ in 0..4_096 {
        send(&piece);
        if stalls(proxy, client) {
            return;
        }
    }
    panic!("the proxy reads a client without end");
}

/// An upstream that reads the head of a request, and nothing behind it until the test calls the function.
fn unreading() -> (Upstream, impl Fn()) {
    let (go_on, goes_on) = reports();
    let upstream = Upstream::with_small_buffer(move |mut conn: Conn| {
        conn.head();
        goes_on();
    });
    (upstream, move || go_on(()))
}

const UPLOAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";

#[test]
fn a_client_that_leaves_while_its_upload_waits_is_noticed() {
    let half_close = |client: Client| {
        client.stream.shutdown(Shutdown::Write).unwrap();
        std::mem::forget(client);
    };
    for leave in [drop as fn(Client), Client::reset, half_close] {
        let (upstream, end) = unreading();
        let proxy = TestProxy::with(upstream.addr, &[("max_streams", "1")]);
        let mut client = proxy.client();
        let addr = client.stream.local_addr().unwrap();
        client.send(UPLOAD);
        send_until_unread(proxy.addr, addr, |piece| {
            client.send(piece);
        });
        leave(client);
        let last = proxy.last_request();
        assert_eq!((&last["outcome"], upstream.connections()), (&"cancelled".into(), 1));
        end();
    }
}

/// Behind what the kernels hold of the upload, the server would see a FIN only when it has read all of that.
#[test]
fn a_server_that_reads_nothing_of_an_upload_sees_at_once_that_its_client_has_left() {
    let (go_on, goes_on) = reports();
    let (report, seen) = reports();
    let upstream = Upstream::start(move |mut conn: Conn| {
        conn.head();
        goes_on();
        let (mut unread, mut buffer) = (0, vec![0; 1 << 20]);
        report(loop {
            match conn.stream.read(&mut buffer) {
                Ok(0) => break (unread, false),
                Ok(read) => unread += read,
                Err(error) => break (unread, error.kind() == std::io::ErrorKind::ConnectionReset),
            }
        });
    });
    let proxy = TestProxy::new(upstream.addr);
    let mut client = proxy.client();
    client.send(UPLOAD);
    // As much as the kernels and the proxy take.
    client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let (mut sent, piece) = (0, [b'x'; PIECE]);
    while let Ok(written) = client.stream.write(&piece) {
        sent += written;
    }
    client.reset();
    assert_eq!(proxy.last_request()["outcome"], "cancelled");
    go_on(());
    let (unread, reset) = seen();
    assert!(reset && unread < sent, "{unread} of {sent} bytes before the end");
}

#[test]
fn a_client_that_leaves_an_upload_over_tls_is_noticed_behind_what_is_unread() {
    let pki = Pki::new();
    let (upstream, end) = unreading();
    let proxy =
        TestProxy::with(upstream.addr, &[("tls_cert", &pki.text("server.pem")), ("tls_key", &pki.text("server.key"))]);
    let mut stream = over_tls(&proxy, &pki);
    let addr = stream.sock.local_addr().unwrap();
    stream.write_all(UPLOAD.as_bytes()).unwrap();
    send_until_unread(proxy.addr, addr, |piece| stream.write_all(piece).unwrap());
    drop(stream);
    assert_eq!(proxy.last_request()["outcome"], "cancelled");
    end();
}

#[test]
fn a_client_that_sends_far_ahead_and_leaves_closes_the_upstream() {
    for leave in [drop as fn(Client), Client::reset] {
        let (report, closed) = reports();
        let upstream = Upstream::start(move |mut conn| {
            conn.request();
            conn.send(STREAM);
            report(conn.closed().is_some());
        });
        let proxy = TestProxy::new(upstream.addr);
        let mut client = proxy.client();
        let addr = client.stream.local_addr().unwrap();
        client.send(chat("{\"stream\":true}")).head();
        send_until_unread(proxy.addr, addr, |piece| {
            client.send(piece);
        });
        leave(client);
        assert!(closed());
    }
}

/// The proxy stops reading, waits for the client's leaving, and reads on.
#[test]
fn an_upload_that_waited_arrives_whole() {
    const LENGTH: usize = 8 << 20;
    let pki = Pki::new();
    for tls in [false, true] {
        let (go_on, goes_on) = reports();
        let upstream = Upstream::with_small_buffer(move |mut conn| {
            let head = conn.head();
            goes_on();
            let body = conn.exactly(LENGTH);
            let intact = body.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8);
            let summary = format!("{} {intact}", head.is_some());
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{summary}",
                summary.len()
            ));
        });
        let (cert, key) = (pki.text("server.pem"), pki.text("server.key"));
        let settings = [("tls_cert", cert.as_str()), ("tls_key", key.as_str())];
        let proxy = TestProxy::with(upstream.addr, if tls { &settings } else { &[] });
        let (addr, mut stream): (_, Box<dyn ReadWrite>) = if tls {
            let stream = over_tls(&proxy, &pki);
            (stream.sock.local_addr().unwrap(), Box::new(stream))
        } else {
            let stream = TcpStream::connect(proxy.addr).unwrap();
            (stream.local_addr().unwrap(), Box::new(stream))
        };
        let sending = std::thread::spawn(move || {
            write!(stream, "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {LENGTH}\r\n\r\n")
                .unwrap();
            let body: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
            stream.write_all(&body).unwrap();
            let mut reply = String::new();
            let _closed = stream.read_to_string(&mut reply).is_ok();
            reply
        });
        while !stalls(proxy.addr, addr) {
            std::thread::sleep(Duration::from_millis(5));
        }
        go_on(());
        let reply = sending.join().unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("true true"), "{reply:?}, TLS {tls}");
    }
}

trait ReadWrite: Read + Write + Send {}
impl<T: Read + Write + Send> ReadWrite for T {}

fn over_tls(proxy: &TestProxy, pki: &Pki) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let session = rustls::ClientConnection::new(Arc::new(client_config(pki, &["http/1.1"])), name).unwrap();
    rustls::StreamOwned::new(session, TcpStream::connect(proxy.addr).unwrap())
}
