//! A TCP forwarder in front of the storage that breaks connections on its test's command.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;

/// Fault of connections from now on, also of open ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing: every byte passes.
    None,
    /// Each connection is reset at once, as by a network that is cut.
    Refuse,
    /// A connection is reset when this many bytes of it have gone to the storage.
    CutAfter(u64),
    /// When this many bytes have gone to the storage, no more pass, and nothing closes.
    StallAfter(u64),
    /// Requests arrive; a connection is reset in place of its answer.
    LoseAnswers,
    /// Requests arrive, their answers do not, and nothing closes.
    HoldAnswers,
}

/// The forwarder. Its connections end with it.
pub(crate) struct Forwarder {
    pub(crate) addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    to: SocketAddr,
    fault: Mutex<Fault>,
    /// How often a fault has met a connection.
    met: AtomicUsize,
    connections: Mutex<Vec<[TcpStream; 2]>>,
}

impl Forwarder {
    pub(crate) fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            to,
            fault: Mutex::new(Fault::None),
            met: AtomicUsize::new(0),
            connections: Mutex::default(),
        });
        let here = Arc::clone(&shared);
        std::thread::spawn(move || listener.incoming().flatten().for_each(|client| here.accept(client)));
        Self { addr, shared }
    }

    /// Sets the fault, and resets all connections that an earlier one has left without an end.
    pub(crate) fn set(&self, fault: Fault) {
        let before = std::mem::replace(&mut *self.shared.fault.lock().unwrap(), fault);
        if before != Fault::None || fault == Fault::Refuse {
            self.shared.connections.lock().unwrap().drain(..).for_each(|pair| pair.iter().for_each(reset));
        }
    }

    /// How many connections a fault has met so far.
    pub(crate) fn met(&self) -> usize {
        self.shared.met.load(Ordering::Acquire)
    }
}

impl Shared {
    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    fn accept(self: &Arc<Self>, client: TcpStream) {
        if self.fault() == Fault::Refuse {
            self.met.fetch_add(1, Ordering::AcqRel);
            return reset(&client);
        }
        // A storage that is down refuses too.
        let Ok(server) = TcpStream::connect(self.to) else { return reset(&client) };
        let copy = |stream: &TcpStream| stream.try_clone().unwrap();
        self.connections.lock().unwrap().push([copy(&client), copy(&server)]);
        for (from, to, is_upload) in [(copy(&client), copy(&server), true), (server, client, false)] {
            let shared = Arc::clone(self);
            std::thread::spawn(move || shared.copy(from, to, is_upload));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, is_upload: bool) {
        let (mut buffer, mut passed) = ([0; 16 << 10], 0);
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            passed += read as u64;
            match (self.fault(), is_upload) {
                (Fault::CutAfter(most), true) if passed > most => return self.meet([&from, &to]),
                (Fault::StallAfter(most), true) if passed > most => return self.hold(),
                (Fault::LoseAnswers, false) => return self.meet([&from, &to]),
                (Fault::HoldAnswers, false) => return self.hold(),
                _ => {}
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        // The other direction may go on.
        to.shutdown(Shutdown::Write).ok();
    }

    fn meet(&self, ends: [&TcpStream; 2]) {
        self.met.fetch_add(1, Ordering::AcqRel);
        ends.into_iter().for_each(reset);
    }

    /// Passes nothing more; `connections` keeps the sockets open until the next fault.
    fn hold(&self) {
        self.met.fetch_add(1, Ordering::AcqRel);
    }
}

/// Closes a connection with a reset, in both directions.
fn reset(stream: &TcpStream) {
    SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
    stream.shutdown(Shutdown::Both).ok();
}
