//! What all workers share.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::config::ProxyConfig;
use crate::config::otlp::Sampler;
use crate::export::capture_hook::CaptureRecorder;
use crate::export::gauges::Gauges;
use crate::export::queue::Reporter;
use crate::export::token_counter::TokenCounter;

/// See the module.
pub(super) struct WorkerShared {
    /// Replaced as a whole when it is reloaded.
    pub(super) config: ArcSwap<ProxyConfig>,
    pub(super) server_tls: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    pub(super) upstream_tls: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
    pub(super) gauges: Arc<Gauges>,
    pub(super) reporter: Reporter,
    /// Counts the tokens of streams whose server does not, where there are tokenizers.
    pub(super) tokenizing: Option<TokenCounter>,
    /// Writes the shape of the traffic, where that is wanted.
    pub(super) capture: Option<Arc<CaptureRecorder>>,
    /// Decides which traces are kept; `None` with tracing off, and then trace headers pass untouched.
    pub(super) sampler: Option<Sampler>,
    /// Certificates are to be looked at now.
    pub(super) certificate_check: Notify,
    /// Workers are to look at what waits.
    pub(super) tick: Notify,
    /// Streams that are open, on all workers.
    pub(super) open_streams: AtomicUsize,
    /// Connections to the upstream that are being made, on all workers.
    pub(super) connecting: AtomicUsize,
    /// More than this would take the admin port's descriptors. Written once, before the first connection.
    pub(super) max_upstream_connections: AtomicUsize,
}
