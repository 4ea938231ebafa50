//! One connection of the scripted upstream: a request in, a reply out.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

use crate::script::{Reply, now};
use crate::upstream::spread;

/// A connection of the upstream.
pub(crate) struct Connection {
    socket: TcpStream,
    request: Vec<u8>,
    pub(crate) phase: Phase,
    /// Bytes that the socket has not accepted, and the number of them sent since.
    unsent: Vec<u8>,
    sent: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
/// Where its reply stands.
pub(crate) enum Phase {
    Idle,
    /// Sends event `next` at `at`.
    Paced {
        next: usize,
        at: u64,
    },
    /// Sends and reads no more.
    HangingUp,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, request: Vec::new(), phase: Phase::Idle, unsent: Vec::new(), sent: 0 }
    }

    /// Reads what there is; true when a request has come in whole.
    pub(crate) fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.request.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(length)) = head.parse(&self.request) else { return Ok(false) };
        let body = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let body = body.and_then(|header| str::from_utf8(header.value).ok()?.parse::<usize>().ok()).unwrap_or(0);
        if self.request.len() < length + body {
            return Ok(false);
        }
        self.request.drain(..length + body);
        Ok(true)
    }

    /// Starts the reply; gives the time of the first event if there is a pace. Streams are out of step with one
    /// another: what a proxy saves by handling several at once is then the same for all.
    pub(crate) fn begin(&mut self, reply: &Reply, id: u64) -> Option<u64> {
        if reply.script.gap == 0 {
            self.unsent.extend_from_slice(&reply.whole);
            return None;
        }
        self.unsent.extend_from_slice(&reply.opening);
        let at = now() + spread(id, reply.script.gap);
        self.phase = Phase::Paced { next: 0, at };
        Some(at)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        self.unsent.extend_from_slice(bytes);
        self.flush()
    }

    /// Writes what is unsent; true when that was the end of a reply.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        if self.unsent.is_empty() {
            return Ok(false);
        }
        while self.sent < self.unsent.len() {
            match self.socket.write(&self.unsent[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(self.phase == Phase::Idle)
    }
}
