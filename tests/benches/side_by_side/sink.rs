//! Where streamgauge's OTLP goes during a run: an HTTP server that takes everything and answers 200.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A running sink; lives as long as the process.
pub(crate) struct Sink {
    pub(crate) address: SocketAddr,
    /// Exports taken so far, as proof that there were any.
    pub(crate) exports: Arc<AtomicU64>,
}

impl Sink {
    pub(crate) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let exports = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&exports);
        std::thread::Builder::new().name("otlp sink".into()).spawn(move || {
            for socket in listener.incoming().flatten() {
                let counter = Arc::clone(&counter);
                // An exporter that hangs up ends its thread, nothing else.
                std::thread::spawn(move || take_all(&socket, &counter).ok());
            }
        })?;
        Ok(Self { address, exports })
    }
}

fn take_all(socket: &TcpStream, exports: &AtomicU64) -> io::Result<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut length = Some(0);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            let header = line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse::<u64>().ok();
            } else if header.starts_with("transfer-encoding:") {
                length = None;
            }
            line.clear();
        }
        if line.is_empty() {
            return Ok(());
        }
        match length {
            Some(length) => discard(&mut reader, length)?,
            None => discard_chunks(&mut reader)?,
        }
        exports.fetch_add(1, Ordering::Relaxed);
        // An empty protobuf message: everything was accepted.
        let reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        (&mut &*socket).write_all(reply)?;
    }
}

fn discard_chunks(reader: &mut BufReader<&TcpStream>) -> io::Result<()> {
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        discard(reader, size + 2)?;
        if size == 0 {
            return Ok(());
        }
    }
}

fn discard(reader: &mut BufReader<&TcpStream>, length: u64) -> io::Result<()> {
    io::copy(&mut reader.take(length), &mut io::sink()).map(|_| ())
}
