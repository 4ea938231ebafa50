//! The inference server: it answers each request by the plan that the request names, with its faults.

mod http1;
mod http2;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::io::Io;
use crate::oracle::{Failure, Oracle};
use crate::plan::Plan;

/// Connections that wait for an accept.
const BACKLOG: u32 = 1_024;
/// Bytes that a dribbling server sends one by one.
const DRIBBLED_BYTES: usize = 100;

/// A fault that no plan knows, to prove that the oracle finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Planted {
    /// The server changes one byte of a reply.
    WrongByte,
    /// The server ends a reply early.
    ShortReply,
    /// The measured memory rises.
    MemoryRise,
}

/// State that all connections share.
pub(crate) struct Server {
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) longest: Duration,
    pub(crate) planted: Option<Planted>,
    /// Requests that are being answered.
    pub(crate) open: AtomicU64,
}

impl Server {
    /// The plan that a request names, after a comparison with the bytes that arrived.
    fn plan(&self, seed: &str, request: &[u8]) -> Option<Plan> {
        let plan = Plan::new(seed.trim().parse().ok()?, self.longest);
        if request != plan.request {
            let wrong = request.iter().zip(&plan.request).filter(|(seen, planned)| seen != planned).count();
            let missing = request.len().abs_diff(plan.request.len());
            let reason =
                format!("the server received {} of {} bytes, {wrong} wrong", request.len(), plan.request.len());
            self.oracle.fail("request", &plan, Failure::WrongBytes((wrong + missing) as u64, reason));
        }
        Some(self.with_planted_fault(plan))
    }

    /// One request in 50 gets the planted fault.
    fn with_planted_fault(&self, mut plan: Plan) -> Plan {
        let middle = plan.reply.bytes.len() / 2;
        match self.planted {
            Some(Planted::WrongByte) if plan.seed.is_multiple_of(50) => plan.reply.bytes[middle] ^= 1,
            Some(Planted::ShortReply) if plan.seed.is_multiple_of(50) => {
                plan.server = crate::plan::ServerFault::Reset;
                plan.server_at = 0.5;
            }
            _ => {}
        }
        plan
    }
}

/// Counts a request as open until it is dropped.
struct OpenRequest<'a>(&'a Server);

impl<'a> OpenRequest<'a> {
    fn new(server: &'a Server) -> Self {
        server.open.fetch_add(1, Ordering::SeqCst);
        Self(server)
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A socket of this address, which others of this process may share.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// Waits until the servers listen, or do not.
async fn until(listening: &mut watch::Receiver<bool>, listens: bool) {
    // The oracle has the sender, and outlives its servers.
    let _known = listening.wait_for(|state| *state == listens).await.is_ok();
}

/// Serves HTTP/1.1 in clear, or HTTP/2 over TLS, on this runtime.
pub(crate) async fn listen(server: Arc<Server>, tls: Option<TlsAcceptor>, seed: u64) -> SocketAddr {
    // It keeps the port while nobody listens.
    let port = bind("127.0.0.1:0".parse().unwrap());
    let address = port.local_addr().unwrap();
    let mut listener = Some(bind(address).listen(BACKLOG).unwrap());
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut listening = server.oracle.listening.subscribe();
    tokio::spawn(async move {
        let _port = port;
        loop {
            let open = listener.get_or_insert_with(|| bind(address).listen(BACKLOG).unwrap());
            let tcp = tokio::select! {
                // Without descriptors the next accept may succeed.
                accepted = open.accept() => match accepted {
                    Ok((tcp, _)) => tcp,
                    Err(_) => continue,
                },
                () = until(&mut listening, false) => {
                    listener = None;
                    until(&mut listening, true).await;
                    continue;
                }
            };
            let _delayed = tcp.set_nodelay(true).is_ok();
            let (server, tls) = (Arc::clone(&server), tls.clone());
            let lifetime = Duration::from_secs(random.random_range(5..60));
            tokio::spawn(async move {
                match tls {
                    None => http1::serve(Io::Plain(tcp), &server).await,
                    Some(tls) => {
                        // Otherwise it was a probe of the proxy, or a client that left.
                        if let Ok(tls) = tls.accept(tcp).await {
                            http2::serve(Io::Tls(Box::new(tls.into())), server, lifetime).await;
                        }
                    }
                }
            });
        }
    });
    address
}
