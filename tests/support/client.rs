//! A client that writes given bytes and returns the response byte for byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use socket2::SockRef;

use super::PATIENCE;
use super::body::{BodyReader, Part};
use super::upstream::field;

/// A connection to the proxy.
pub struct Client {
    pub stream: TcpStream,
    seen: Vec<u8>,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// From the status line to the empty line.
    pub head: String,
    /// The payload, without its framing.
    pub body: Vec<u8>,
    /// The trailers of a chunked body, as (name, value).
    pub trailers: Vec<(String, String)>,
    /// The body was incomplete by its framing.
    pub truncated: bool,
    /// It ended with a reset.
    pub reset: bool,
}

impl Response {
    pub fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, seen: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    /// The next response head, interim or final.
    pub fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.seen.windows(4).position(|window| window == b"\r\n\r\n") {
                return String::from_utf8(self.seen.drain(..end + 4).collect()).unwrap();
            }
            assert!(
                self.more().unwrap_or(0) > 0,
                "no response head; so far: {:?}",
                String::from_utf8_lossy(&self.seen)
            );
        }
    }

    /// The response to a request that is not HEAD.
    pub fn response(&mut self) -> Response {
        let head = self.head();
        self.body_of(head)
    }

    /// The body that belongs to a head.
    pub fn body_of(&mut self, head: String) -> Response {
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reader = if field(&head, "transfer-encoding").is_some() {
            BodyReader::Chunked(Part::Size)
        } else if matches!(status, 100..=199 | 204 | 304) {
            BodyReader::Length(0)
        } else {
            field(&head, "content-length")
                .map_or(BodyReader::UntilClose, |length| BodyReader::Length(length.parse().unwrap()))
        };
        let mut response = Response { head, ..Response::default() };
        while !reader.read(&mut self.seen, &mut response) {
            match self.more() {
                Ok(0) => {
                    response.truncated = !matches!(reader, BodyReader::UntilClose);
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
                    (response.truncated, response.reset) = (true, true);
                    break;
                }
            }
        }
        response
    }

    /// Waits until this has come. It is not taken: that is for [`Self::body_of`] to do.
    pub fn has(&mut self, part: &str) -> &mut Self {
        while !self.seen.windows(part.len()).any(|window| window == part.as_bytes()) {
            assert!(self.more().unwrap_or(0) > 0, "no {part:?}; so far: {:?}", String::from_utf8_lossy(&self.seen));
        }
        self
    }

    /// Whatever has come, once at least `n` bytes have.
    pub fn at_least(&mut self, n: usize) -> Vec<u8> {
        while self.seen.len() < n {
            assert!(self.more().unwrap_or(0) > 0, "the proxy closed");
        }
        std::mem::take(&mut self.seen)
    }

    /// Everything up to the connection's end, which has to come.
    pub fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.more() {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "no end: {error}");
                    break;
                }
            }
        }
        std::mem::take(&mut self.seen)
    }

    fn more(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0; 65_536];
        let n = self.stream.read(&mut buffer)?;
        self.seen.extend_from_slice(&buffer[..n]);
        Ok(n)
    }

    /// Closes with a reset.
    pub fn reset(self) {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// A chat request with this body.
pub fn chat(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: proxy.test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Sends `requests` over `clients` kept connections at once, each after its `pause`, and counts those whose stream did
/// not come back whole.
pub fn lost_requests(
    proxy: SocketAddr,
    clients: usize,
    requests: usize,
    request: &str,
    pause: impl Fn(usize) -> Duration + Sync,
) -> usize {
    let lost = AtomicUsize::new(0);
    let is_whole = |response: &Response| {
        response.status() == 200 && !response.truncated && response.text().ends_with("data: [DONE]\n\n")
    };
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (lost, pause) = (&lost, &pause);
            scope.spawn(move || {
                let mut client = Client::connect(proxy);
                for turn in (number..requests).step_by(clients) {
                    std::thread::sleep(pause(turn));
                    if !is_whole(&client.send(request).response()) {
                        lost.fetch_add(1, Ordering::Relaxed);
                        client = Client::connect(proxy);
                    }
                }
            });
        }
    });
    lost.into_inner()
}
