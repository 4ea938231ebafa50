//! The admin server: metrics, health, and what is going on right now.
//!
//! | path | what |
//! |---|---|
//! | `/` | the live page, for a browser; for others, this list |
//! | `/metrics` | the scrape, in the format that the scraper prefers |
//! | `/livez` | 200 while the process turns |
//! | `/readyz` | 200 while the proxy takes requests and its upstream can be reached, else 503 and why |
//! | `/api/state` | one JSON object: who we are, what is open, the last requests; see [`state`] |
//! | `/api/live` | server-sent events, one JSON object a second; see [`live`] |
//! | `/api/history` | the last quarter of an hour, second by second; see [`history`] |
//! | `/page/…` | what the live page is made of; see [`page`] |
//!
//! Of a run, which sends and forwards nothing (`streamgauge replay`, `load`), all of it is the run's: `/readyz` is 200 while
//! it sends.
//!
//! A request that is for another host than an IP address, `localhost` or a configured name is answered 421: see
//! `host`.
//!
//! It runs on the control runtime, beside the exporters and never on a thread that forwards. Connections are bounded
//! in number and in age (where there is no place for one more, that which has asked for nothing the longest gives its
//! up, so that nobody who only holds places keeps a scraper or a kubelet out), a live reader that does not keep up is
//! cut off, and nothing here can be changed: GET and HEAD are all there is.

mod body;
pub mod history;
mod host;
pub mod live;
pub mod page;
mod routes;
pub mod state;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use self::history::HistoryLog;
use self::live::LiveFeed;
use super::control_state::ControlState;
use super::live_view::LiveSnapshot;
use crate::measure::time::Gap;

/// Connections at once. A scraper or two, a kubelet and some people are ten.
const MAX_CONNECTIONS: usize = 64;
/// Time for a client to send a request's head; also how long a kept connection may stay unused, so it is longer than
/// anyone's scrape interval.
const HEAD_TIMEOUT: Duration = Duration::from_secs(150);
/// A connection is not used again after this time, so that peers that have vanished cannot hold every place.
const MAX_CONNECTION_AGE: Gap = Gap::from_millis(600_000);
/// And this much later it is closed even if a reply has not been read.
const CLOSE_TIMEOUT: Gap = Gap::from_millis(30_000);
/// hyper's least. A reply is one piece and does not need it; a live reader that falls behind should not have much.
const WRITE_BUFFER_BYTES: usize = 8 * 1024;
/// What the kernel may hold for a reader, in bytes: left alone it would hold megabytes for one that does not read.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// How often figures are taken and told.
const SAMPLE_INTERVAL: Gap = Gap::from_millis(1_000);
/// Pause after a failed accept: out of file descriptors, most likely.
const ACCEPT_PAUSE: Gap = Gap::from_millis(100);

/// What every connection serves from.
#[derive(Debug)]
pub(super) struct AdminServer {
    telemetry: Arc<ControlState>,
    live: LiveFeed,
    history: HistoryLog,
    /// The upstream's URL.
    upstream: Option<String>,
    /// Connections that came and requests that were made.
    activity_counter: AtomicU64,
}

/// What a reply can ask of the connection that it goes out on.
#[derive(Debug, Default)]
struct AdminConnection {
    /// Cut it off: its reader does not keep up.
    disconnect: Notify,
    /// It carries a stream without end, and may grow old.
    is_stream: AtomicBool,
    /// When it came or asked last, as a number of [`Admin::turns`].
    last_activity: AtomicU64,
}

impl AdminServer {
    /// An admin server for this telemetry.
    pub(super) fn new(telemetry: Arc<ControlState>, upstream: Option<String>) -> Self {
        Self {
            telemetry,
            live: LiveFeed::default(),
            history: HistoryLog::default(),
            upstream,
            activity_counter: AtomicU64::new(0),
        }
    }

    /// Serves forever, or until another process has the port: until `left` is true.
    pub(super) async fn serve(self, listener: TcpListener, left: watch::Receiver<bool>) {
        let admin = Arc::new(self);
        let mut leaving = left.clone();
        let accepting = async {
            tokio::select! {
                () = Arc::clone(&admin).accept(listener, left) => {}
                // Who else could say so is gone: then it is served forever.
                Ok(_) = leaving.wait_for(|left| *left) => {}
            }
        };
        tokio::join!(admin.sample_loop(), accepting);
    }

    /// Takes the figures once a second, for the history and for whoever listens.
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
        // A kernel that refuses costs memory, not correctness.
        let _bounded = SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER_BYTES).is_ok();
        let clock = self.telemetry.clock.clone();
        let service = service_fn(|request| {
            self.touch(&seat);
            let response = self.handle(&request, &seat);
            async { Ok::<_, Infallible>(response) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(WRITE_BUFFER_BYTES);
        let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(socket), service));
        // However a connection ends, there is nobody left to tell.
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
