//! A worker's upstream clients: one for the configured server, or one for each destination in use.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::destinations::{DestinationGuard, Destinations};
use super::error_response::ProxyError;
use super::upstream::{UpstreamClient, UpstreamConnector};
use super::worker_shared::{SharedTarget, WorkerShared};
use crate::config::ServerAddress;
use crate::export::registry::thread_gauges::ThreadGauges;

/// The upstream clients of one worker.
pub(super) enum Upstreams {
    /// Every connection of a client uses this one.
    Server(Rc<UpstreamClient>),
    /// Each connection of a client uses that of its original destination.
    Destinations { all: Arc<Destinations>, used: RefCell<HashMap<SocketAddr, UsedDestination>> },
}

/// A destination that a connection of a client or a kept connection uses.
pub(super) struct UsedDestination {
    client: Rc<UpstreamClient>,
    _guard: DestinationGuard,
}

impl Upstreams {
    pub(super) fn new(shared: &Arc<WorkerShared>, levels: &Arc<ThreadGauges>) -> Self {
        match &shared.target {
            SharedTarget::Server(server) => Self::Server(client(shared, levels, server.clone())),
            SharedTarget::Destinations(all) => Self::Destinations { all: Arc::clone(all), used: RefCell::default() },
        }
    }

    /// The client for a connection that has sent its first byte. A destination is in use until an
    /// [`evict`](Self::evict) finds it unused.
    pub(super) fn of(
        &self,
        socket: &TcpStream,
        shared: &Arc<WorkerShared>,
        levels: &Arc<ThreadGauges>,
    ) -> Result<Rc<UpstreamClient>, ProxyError> {
        let (all, used) = match self {
            Self::Server(client) => return Ok(Rc::clone(client)),
            Self::Destinations { all, used } => (all, used),
        };
        let destination = all.original(socket)?;
        if let Some(used) = used.borrow().get(&destination) {
            return Ok(Rc::clone(&used.client));
        }
        let guard = all.reserve(destination, shared.config.load().limits.destinations)?;
        let client = client(shared, levels, destination.into());
        used.borrow_mut().insert(destination, UsedDestination { client: Rc::clone(&client), _guard: guard });
        Ok(client)
    }

    /// Closes connections that the servers have closed or that have idled too long, and forgets unused destinations.
    pub(super) fn evict(&self) {
        match self {
            Self::Server(client) => client.evict(),
            Self::Destinations { used, .. } => used.borrow_mut().retain(|_, used| {
                used.client.evict();
                Rc::strong_count(&used.client) > 1 || !used.client.is_unused()
            }),
        }
    }
}

fn client(shared: &Arc<WorkerShared>, levels: &Arc<ThreadGauges>, server: ServerAddress) -> Rc<UpstreamClient> {
    let connector = UpstreamConnector::new(Arc::clone(shared), Arc::clone(levels), server);
    Rc::new(UpstreamClient::new(connector))
}
