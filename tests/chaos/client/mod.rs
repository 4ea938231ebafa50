//! The clients: each slot sends one request after another until the run ends, so the number of open streams is constant.

mod http1;
mod http2;
pub(crate) use http2::send;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::io::Io;
use crate::oracle::{End, Observed, Oracle};
use crate::plan::Plan;

/// Slots that share one HTTP/2 connection.
const SLOTS_PER_CONNECTION: usize = 40;
/// How much longer than planned an exchange may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// The beginning of a request, and of a record with a TLS client hello.
const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nContent-";
const HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";

/// A proxy as its clients see it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<TlsConnector>,
}

impl Target {
    async fn connect(&self) -> std::io::Result<Io> {
        let tcp = TcpStream::connect(self.address).await?;
        tcp.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Io::Plain(tcp)) };
        let name = ServerName::try_from("127.0.0.1").expect("an address is a name");
        Ok(Io::Tls(Box::new(tls.connect(name, tcp).await?.into())))
    }

    /// Leaves a connection before its first request, or its handshake, is whole.
    async fn abandon(&self, plan: &Plan) -> Observed {
        let begin = if self.tls.is_some() { HELLO } else { REQUEST };
        if let Ok(mut tcp) = TcpStream::connect(self.address).await {
            let sent = tcp.write_all(&begin[..Plan::place(plan.client_at, begin.len())]).await;
            if sent.is_ok() {
                tokio::time::sleep(plan.pause).await;
            }
        }
        Observed::left()
    }
}

/// Slots of one kind.
pub(crate) struct Group {
    pub(crate) kind: &'static str,
    pub(crate) is_http2: bool,
    pub(crate) target: Target,
    pub(crate) slots: usize,
}

/// State that all clients share.
pub(crate) struct Clients {
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) stop: AtomicBool,
    /// The first number of a plan, and how many are in use.
    pub(crate) seed: u64,
    pub(crate) used: AtomicU64,
    pub(crate) longest: Duration,
    /// Slots begin one after another over this time.
    pub(crate) ramp: Duration,
}

impl Clients {
    fn plan(&self) -> Plan {
        Plan::new(self.seed.wrapping_add(self.used.fetch_add(1, Ordering::SeqCst)), self.longest)
    }

    fn has_ended(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Counts what `exchange` observes; one that hangs is broken. After an error of the proxy the slot pauses.
    async fn observe(&self, kind: &'static str, plan: &Plan, exchange: impl Future<Output = Observed>) {
        self.oracle.open.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        let limit = self.longest + 4 * plan.pause + PATIENCE;
        let seen = tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Observed::broken("it hangs"));
        self.oracle.open.fetch_sub(1, Ordering::SeqCst);
        self.oracle.count(kind, plan, &seen, began);
        if seen.proxy_error.is_some() {
            tokio::time::sleep(plan.pause).await;
        }
    }
}

impl Observed {
    /// An exchange that ended before its reply began.
    fn broken(reason: impl ToString) -> Self {
        Self { status: 0, proxy_error: None, body: Vec::new(), end: End::Broken(reason.to_string()), reused: false }
    }

    fn left() -> Self {
        Self { end: End::Left, ..Self::broken("") }
    }
}

/// Runs all slots of all groups until they have ended. The result is the number of slots that panicked.
pub(crate) async fn run(clients: Arc<Clients>, groups: Vec<Group>) -> usize {
    let total: usize = groups.iter().map(|group| group.slots).sum();
    let mut slots = Vec::new();
    for group in groups {
        let mut connection = Arc::new(http2::Connection::new(group.target.clone()));
        for slot in 0..group.slots {
            if slot.is_multiple_of(SLOTS_PER_CONNECTION) {
                connection = Arc::new(http2::Connection::new(group.target.clone()));
            }
            let (clients, target, connection) = (Arc::clone(&clients), group.target.clone(), Arc::clone(&connection));
            let wait = clients.ramp.mul_f64(slots.len() as f64 / total as f64);
            let (kind, is_http2) = (group.kind, group.is_http2);
            slots.push(tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                match is_http2 {
                    true => http2::run(&clients, kind, &connection).await,
                    false => http1::run(&clients, kind, &target).await,
                }
            }));
        }
    }
    let mut panicked = 0;
    for slot in slots {
        panicked += usize::from(slot.await.is_err());
    }
    panicked
}
