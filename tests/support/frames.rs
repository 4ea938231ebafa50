//! HTTP/2 frames by hand, for what no library sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;
use super::upstream::Conn;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
/// Of SETTINGS and PING.
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The client's connection preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of `GET http://a/`, in HPACK without tables of our own.
pub const GET: &[u8] = b"\x82\x86\x84\x01\x01a";

/// One connection.
pub struct Frames {
    pub stream: TcpStream,
    seen: Vec<u8>,
}

/// One frame that came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frames {
    /// A connection that has sent the preface.
    pub fn connect(addr: SocketAddr) -> Self {
        let mut frames = Self { stream: TcpStream::connect(addr).unwrap(), seen: Vec::new() };
        frames.stream.set_nodelay(true).unwrap();
        frames.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        frames.stream.set_write_timeout(Some(PATIENCE)).unwrap();
        frames.stream.write_all(PREFACE).unwrap();
        assert!(frames.send(SETTINGS, 0, 0, b""));
        frames
    }

    /// Sends one frame; false if the other side has closed or takes no more.
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        self.stream.write_all(&frame(kind, flags, stream, payload)).is_ok()
    }

    /// A field that is in no table, as HPACK: literal, not to be remembered.
    pub fn field(name: &str, value: &str) -> Vec<u8> {
        let length = |text: &str| u8::try_from(text.len()).unwrap();
        [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
    }

    /// The next frame; `None` at the connection's end.
    pub fn next(&mut self) -> Option<Frame> {
        loop {
            if let [a, b, c, kind, flags, stream @ ..] = &self.seen[..]
                && let Some((stream, rest)) = stream.split_first_chunk::<4>()
            {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if rest.len() >= length {
                    let (kind, flags, stream) = (*kind, *flags, u32::from_be_bytes(*stream));
                    let payload = rest[..length].to_vec();
                    self.seen.drain(..9 + length);
                    return Some(Frame { kind, flags, stream, payload });
                }
            }
            let mut buffer = [0; 16_384];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.seen.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("neither a frame nor an end: {error}"),
            }
        }
    }

    /// The `:status` of the answer on a stream, as HPACK has it; `None` if the stream or the connection was closed.
    pub fn status(&mut self, stream: u32) -> Option<Vec<u8>> {
        loop {
            let frame = self.next()?;
            match frame.kind {
                HEADERS if frame.stream == stream => return Some(frame.payload),
                RST_STREAM if frame.stream == stream => return None,
                GOAWAY => return None,
                _ => {}
            }
        }
    }

    /// Everything that comes up to the end.
    pub fn rest(&mut self) -> Vec<Frame> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// Reads up to the first request on a connection to an upstream; its stream.
pub fn read_request(conn: &mut Conn) -> u32 {
    conn.exactly(PREFACE.len());
    read_next_request(conn)
}

/// Reads up to the head of the next request; its stream.
pub fn read_next_request(conn: &mut Conn) -> u32 {
    loop {
        let frame = next(conn);
        if frame.kind == HEADERS {
            return frame.stream;
        }
    }
}

/// Reads up to the next request whose end comes; its stream and its body.
pub fn read_whole_request(conn: &mut Conn) -> (u32, Vec<u8>) {
    let mut body = Vec::new();
    loop {
        let frame = next(conn);
        match frame.kind {
            HEADERS => body.clear(),
            DATA => body.extend(frame.payload),
            _ => continue,
        }
        if frame.flags & END_STREAM != 0 {
            return (frame.stream, body);
        }
    }
}

/// Reads the next frame on a connection to an upstream.
fn next(conn: &mut Conn) -> Frame {
    let head = conn.exactly(9);
    let payload = conn.exactly(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Frame { kind: head[3], flags: head[4], stream, payload }
}

/// The bytes of a frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
