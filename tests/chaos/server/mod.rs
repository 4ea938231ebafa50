//! The inference server: it answers each request by the plan that the request names, with its faults.

mod http1;
mod http2;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::io::Io;
use crate::oracle::{Failure, Oracle};
use crate::plan::Plan;

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

/// Serves HTTP/1.1 in clear, or HTTP/2 over TLS, on this runtime.
pub(crate) async fn listen(server: Arc<Server>, tls: Option<TlsAcceptor>, seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    tokio::spawn(async move {
        loop {
            // Without descriptors the next accept may succeed.
            let Ok((tcp, _)) = listener.accept().await else { continue };
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
