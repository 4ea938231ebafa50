//! The admin server: metrics, health and live data.
//!
//! | path | content |
//! |---|---|
//! | `/` | the live page, for a browser; for others, this list |
//! | `/metrics` | the scrape, in the format that the scraper prefers |
//! | `/livez` | 200 while the process responds |
//! | `/readyz` | 200 while the proxy accepts requests and its upstream is reachable, else 503 with the reason |
//! | `/api/state` | one JSON object: version, open requests, recent requests; see [`state`] |
//! | `/api/requests` | the last 500 requests, by ids and times; see [`requests`] |
//! | `/api/engine` | the engine's own figures of the last 15 minutes; see [`engine_metrics`](crate::export::engine_metrics) |
//! | `/api/live` | server-sent events, one JSON object a second; see [`live`] |
//! | `/api/history` | the last 15 minutes in steps of one second; see [`history`] |
//! | `/config`, `/log-level` | the configuration in force, and the log level, which can be changed; see `log_level` |
//! | `/page/…` | the live page's assets; see [`page`] |
//!
//! In a run (`streamgauge replay`, `load`) these endpoints serve the run's data instead of the proxy's, and `/readyz`
//! is 200 while the run sends.
//!
//! The server answers 421 to a request for any host except IP addresses, `localhost` and configured names: see `host`.
//! [`access`] decides who may read what, by client certificates and tokens.
//!
//! A request passes a stack of layers: headers, compression, panics, access, and the origin of a request that changes something. Connections are below it: hyper
//! limits their heads, and this module their number and age, because a layer sees requests only.
//!
//! The server runs on the control runtime, beside the exporters and never on a forwarding thread. Connections are
//! limited in number and age. At the limit the longest-idle connection is closed, so idle clients cannot lock out a
//! scraper or the kubelet. A live reader that falls behind is disconnected. Only `PUT /log-level` changes something.

pub mod access;
mod body;
mod cursor;
pub mod history;
mod host;
pub mod live;
mod log_level;
pub mod page;
pub mod requests;
mod routes;
pub mod state;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::{ServiceBuilder, service_fn};
use tower_http::CompressionLevel;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use self::access::{AccessLayer, AdminAccess};
use self::history::HistoryLog;
use self::live::LiveFeed;
use super::control::live_view::LiveSnapshot;
use super::control::state::ControlState;
use super::engine_metrics::EngineMetrics;
use crate::measure::time::Gap;

/// Maximum number of connections. Two scrapers, a kubelet and some people need about ten.
const MAX_CONNECTIONS: usize = 64;
/// Time limit for a request's head. It also limits the idle time of a kept-alive connection, so it exceeds common
/// scrape intervals.
const HEAD_TIMEOUT: Duration = Duration::from_secs(150);
/// Time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Gap = Gap::from_millis(10_000);
/// Age at which a connection stops being reused, so that vanished peers cannot hold every slot.
const MAX_CONNECTION_AGE: Gap = Gap::from_millis(600_000);
/// Additional time after which the connection is closed even if a reply is unread.
const CLOSE_TIMEOUT: Gap = Gap::from_millis(30_000);
/// hyper's minimum. A reply is one piece and does not need more; a slow live reader should not buffer more.
const WRITE_BUFFER_BYTES: usize = 8 * 1024;
/// Kernel send buffer per connection, in bytes. The default lets an idle reader hold megabytes.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
const SAMPLE_INTERVAL: Gap = Gap::from_millis(1_000);
/// Pause after a failed accept, which usually means that file descriptors ran out.
const ACCEPT_PAUSE: Gap = Gap::from_millis(100);

/// State shared by all connections.
#[derive(Debug)]
pub(super) struct AdminServer {
    telemetry: Arc<ControlState>,
    live: LiveFeed,
    history: HistoryLog,
    access: Arc<AdminAccess>,
    /// URL of the upstream.
    upstream: Option<String>,
    engine: Option<Arc<EngineMetrics>>,
    /// Counts new connections and requests.
    activity_counter: AtomicU64,
}

/// State of one connection that its replies can change.
#[derive(Debug, Default)]
struct AdminConnection {
    /// Disconnects a reader that falls behind.
    disconnect: Notify,
    /// The connection carries an endless stream and is exempt from the age limit.
    is_stream: AtomicBool,
    /// Value of [`AdminServer::activity_counter`] at the connection's last activity.
    last_activity: AtomicU64,
}

impl AdminServer {
    /// Creates an admin server for this control state.
    pub(super) fn new(
        telemetry: Arc<ControlState>,
        upstream: Option<String>,
        engine: Option<Arc<EngineMetrics>>,
        access: Arc<AdminAccess>,
    ) -> Self {
        Self {
            telemetry,
            live: LiveFeed::default(),
            history: HistoryLog::default(),
            access,
            upstream,
            engine,
            activity_counter: AtomicU64::new(0),
        }
    }

    /// Serves until `left` is true, when another process owns the port.
    pub(super) async fn serve(self, listener: TcpListener, left: watch::Receiver<bool>) {
        let admin = Arc::new(self);
        let mut leaving = left.clone();
        let accepting = async {
            tokio::select! {
                () = Arc::clone(&admin).accept(listener, left) => {}
                // The sender is gone, so the order can no longer come: serve forever.
                Ok(_) = leaving.wait_for(|left| *left) => {}
            }
        };
        tokio::join!(admin.sample_loop(), accepting);
    }

    /// Takes a snapshot once a second, for the history and the listeners.
    async fn sample_loop(&self) {
        let telemetry = &self.telemetry;
        let mut before = Arc::new(LiveSnapshot::empty(telemetry.started.stamp));
        let mut next = telemetry.clock.now();
        loop {
            next = next.after(SAMPLE_INTERVAL).max(telemetry.clock.now());
            telemetry.clock.sleep_until(next).await;
            let now = Arc::new(telemetry.live_snapshot());
            let unix_ms = telemetry.clock.unix_nanos(now.at) / 1_000_000;
            self.history.push(&now, &before, unix_ms, telemetry.gauges.upstream());
            self.live.publish(&now, &before, unix_ms);
            before = now;
        }
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, left: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut seats = Vec::<Weak<AdminConnection>>::new();
        loop {
            let accepted = listener.accept().await;
            seats.retain(|seat| seat.strong_count() > 0);
            if places.available_permits() == 0 || accepted.is_err() {
                let taken = seats.iter().filter_map(Weak::upgrade).filter(|seat| !seat.is_stream.load(Relaxed));
                if let Some(seat) = taken.min_by_key(|seat| seat.last_activity.load(Relaxed)) {
                    seat.disconnect.notify_one();
                }
            }
            let Ok((socket, _)) = accepted else {
                self.telemetry.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let seat = Arc::<AdminConnection>::default();
            self.touch(&seat);
            seats.push(Arc::downgrade(&seat));
            tokio::spawn(Arc::clone(&self).connection(socket, seat, left.clone(), place));
        }
    }

    fn touch(&self, seat: &AdminConnection) {
        seat.last_activity.store(self.activity_counter.fetch_add(1, Relaxed), Relaxed);
    }

    async fn connection(
        self: Arc<Self>,
        socket: TcpStream,
        seat: Arc<AdminConnection>,
        mut left: watch::Receiver<bool>,
        _place: OwnedSemaphorePermit,
    ) {
        // If the kernel refuses, only memory suffers.
        let _bounded = SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER_BYTES).is_ok();
        let Some(tls) = self.access.tls() else { return self.serve_stream(socket, false, seat, left).await };
        let handshake = self.telemetry.clock.timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(socket));
        let accepted = tokio::select! {
            accepted = handshake => accepted,
            () = seat.disconnect.notified() => None,
            Ok(_) = left.wait_for(|left| *left) => None,
        };
        // A failed handshake has already sent the client its alert.
        if let Some(Ok(stream)) = accepted {
            let has_certificate = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
            self.serve_stream(stream, has_certificate, seat, left).await;
        }
    }

    /// Answers the requests of one connection.
    async fn serve_stream(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        has_certificate: bool,
        seat: Arc<AdminConnection>,
        mut left: watch::Receiver<bool>,
    ) {
        let clock = self.telemetry.clock.clone();
        let (admin, of_request) = (Arc::clone(&self), Arc::clone(&seat));
        let (access, telemetry) = (Arc::clone(&self.access), Arc::clone(&self.telemetry));
        let service = ServiceBuilder::new()
            // Some replies contain model names chosen by clients: no browser may treat them as a script or a page.
            .layer(SetResponseHeaderLayer::overriding(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
            .layer(SetResponseHeaderLayer::if_not_present(CACHE_CONTROL, HeaderValue::from_static("no-store")))
            .layer(CompressionLayer::new().quality(CompressionLevel::Fastest))
            .layer(CatchPanicLayer::custom(routes::internal_error))
            .layer(AccessLayer { access, telemetry, has_certificate })
            .layer(CsrfLayer::new().with_rejection_response(|_| routes::cross_site()))
            .service(service_fn(move |request: Request<Incoming>| {
                let (admin, connection) = (Arc::clone(&admin), Arc::clone(&of_request));
                async move {
                    admin.touch(&connection);
                    Ok::<_, Infallible>(admin.respond(request, &connection).await)
                }
            }));
        let service = TowerToHyperService::new(service);
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(WRITE_BUFFER_BYTES);
        let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
        // The result of a closed connection is not used.
        tokio::select! {
            _ended = connection.as_mut() => return,
            () = seat.disconnect.notified() => return,
            Ok(_) = left.wait_for(|left| *left) => if seat.is_stream.load(Relaxed) { return },
            () = clock.sleep(MAX_CONNECTION_AGE) => {}
        }
        let is_stream = seat.is_stream.load(Relaxed);
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ended = connection => {}
            () = seat.disconnect.notified() => {}
            () = clock.sleep(CLOSE_TIMEOUT), if !is_stream => {}
        }
    }
}

#[cfg(test)]
mod tests;
