//! State shared by all workers.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::capture::key::CaptureKey;
use crate::capture::recorder::CaptureRecorder;
use crate::config::otlp::Sampler;
use crate::config::{ProxyConfig, ServerAddress};
use crate::export::control::queue::Reporter;
use crate::export::registry::gauges::Gauges;
use crate::export::registry::proxy_status::Resource;
use crate::proxy::destinations::Destinations;
use crate::proxy::token_counter::TokenCounter;

/// Where the workers' requests go.
pub(super) enum SharedTarget {
    /// To one server.
    Server(ServerAddress),
    /// To the original destination of each connection.
    Destinations(Arc<Destinations>),
}

impl SharedTarget {
    /// The destinations in transparent mode.
    pub(super) fn destinations(&self) -> Option<&Arc<Destinations>> {
        match self {
            Self::Server(_) => None,
            Self::Destinations(destinations) => Some(destinations),
        }
    }
}

pub(super) struct WorkerShared {
    /// Replaced as a whole on reload.
    pub(super) config: ArcSwap<ProxyConfig>,
    pub(super) target: SharedTarget,
    pub(super) server_tls: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    pub(super) upstream_tls: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
    pub(super) gauges: Arc<Gauges>,
    pub(super) reporter: Reporter,
    /// Counts tokens if the server does not, where tokenizers are configured.
    pub(super) tokenizing: Option<TokenCounter>,
    /// Records traffic shapes, if enabled.
    pub(super) capture: Option<Arc<CaptureRecorder>>,
    /// Makes digests of API keys, for classes.
    pub(super) class_key: CaptureKey,
    /// Samples traces; `None` with tracing off, when trace headers pass unchanged.
    pub(super) sampler: Option<Sampler>,
    /// Requests a check of the certificates.
    pub(super) certificate_check: Notify,
    /// Wakes all workers' checks.
    pub(super) tick: Notify,
    /// Open streams on all workers.
    pub(super) open_streams: AtomicUsize,
    /// Upstream connection attempts on all workers.
    pub(super) connecting: AtomicUsize,
    /// Limit that leaves the admin port its descriptors. Written once, before the first connection.
    pub(super) max_upstream_connections: AtomicUsize,
}

impl WorkerShared {
    /// Exports the limit of destinations, if there are any.
    pub(super) fn set_destination_limit(&self, config: &ProxyConfig) {
        if self.target.destinations().is_some() {
            self.gauges.status().set_limit(Resource::Destinations, config.limits.destinations);
        }
    }
}
