//! An OTLP collector that counts what it accepts, and that can fail in several ways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::upstream::field;

/// How the collector behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Works = 0,
    /// It closes each connection at once.
    Closes = 1,
    /// It never answers.
    Hangs = 2,
    /// It answers 503.
    Refuses = 3,
}

/// A collector with faults that a test can set.
#[derive(Default)]
pub(crate) struct Collector {
    mode: AtomicU8,
    /// Exports that it accepted.
    pub(crate) accepted: AtomicU64,
}

impl Collector {
    pub(crate) fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Serves on this runtime.
    pub(crate) async fn listen(self: Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let Ok((tcp, _)) = listener.accept().await else { continue };
                let collector = Arc::clone(&self);
                tokio::spawn(async move { _ = collector.serve(tcp).await.is_ok() });
            }
        });
        address
    }

    async fn serve(&self, mut tcp: TcpStream) -> std::io::Result<()> {
        let (mut unread, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let received = tcp.read(&mut buffer).await?;
            if received == 0 || self.mode.load(Ordering::SeqCst) == Mode::Closes as u8 {
                return Ok(());
            }
            unread.extend_from_slice(&buffer[..received]);
            let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&unread[..end + 4]).into_owned();
            let length = field(&head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0_usize);
            if unread.len() < end + 4 + length {
                continue;
            }
            unread.drain(..end + 4 + length);
            match self.mode.load(Ordering::SeqCst) {
                mode if mode == Mode::Hangs as u8 => {}
                mode if mode == Mode::Refuses as u8 => {
                    tcp.write_all(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n").await?;
                }
                _ => {
                    self.accepted.fetch_add(1, Ordering::SeqCst);
                    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
                    tcp.write_all(head.as_bytes()).await?;
                }
            }
        }
    }
}
