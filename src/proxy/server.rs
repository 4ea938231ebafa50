//! Starts, reloads and stops the proxy.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use socket2::{Domain, Socket, Type};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{Notify, mpsc, watch};

use super::DrainState;
use super::acceptor;
use super::descriptors::ConnectionLimits;
use super::destinations::{Destinations, accept_foreign_addresses};
use super::health_probe;
use super::reload::{self, Certificates, CredentialError};
use super::worker;
use super::worker_handle::WorkerHandle;
use super::worker_shared::{SharedTarget, WorkerShared};
use crate::clock::Clock;
use crate::config::ProxyConfig;
use crate::config::otlp::OtlpConfig;
use crate::export::control::live_view::LiveSnapshot;
use crate::export::control::process_control::ProcessControl;
use crate::export::control::thread::{ControlHandle, ControlPlane, RuntimeSettings};
use crate::export::engine_metrics::EngineMetricsSource;
use crate::export::identity::instance_name;
use crate::export::otlp;
use crate::export::otlp::logs::LogPipeline;
use crate::export::registry::aggregate;
use crate::export::registry::catalog::Convention;
use crate::export::registry::proxy_status::{ReloadSubject, Resource};
use crate::measure::time::Gap;
use crate::net::inherited::{InheritedSockets, SOCKET_NAMES};
use crate::net::io::enable_rx_timestamps;
use crate::net::tls::TlsError;
use crate::proxy::capture_hook;
use crate::proxy::capture_hook::CaptureStartError;
use crate::proxy::token_counter::{TokenCounter, TokenizerError};

/// Length of the kernel's accept queue.
const LISTEN_BACKLOG: i32 = 4_096;
/// Limit on connections that wait for one worker.
const MAX_INBOX_CONNECTIONS: usize = 1_024;

/// Timeout of the last export.
const FLUSH_TIMEOUT: Gap = Gap::from_millis(5_000);

/// Interval of checks for pending token counts at the end.
const TOKENIZER_POLL_INTERVAL: Gap = Gap::from_millis(10);

/// Why a proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The proxy cannot bind an address.
    #[error(
        "cannot listen on {address} (--{flag}): {error}; remedy: stop what listens there, or choose another address"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The setting that names it.
        flag: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// A certificate, a key or a token cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// TLS of an exporter cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
    /// A tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The capture cannot start.
    #[error(transparent)]
    Capture(#[from] CaptureStartError),
    /// The system cannot start a thread or its runtime.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl StartError {
    /// True if a setting or a file that it names is wrong; otherwise the system's refusal may be temporary.
    pub fn is_config_error(&self) -> bool {
        match self {
            Self::Credentials(_)
            | Self::Tls(_)
            | Self::Tokenizer(_)
            | Self::Capture(CaptureStartError::Tokenizer(_)) => true,
            Self::Capture(CaptureStartError::Folder(error)) => !error.is_busy(),
            Self::Listen { .. } | Self::Thread(_) => false,
        }
    }
}

/// A running proxy.
pub struct Proxy {
    shared: Arc<WorkerShared>,
    controls: ControlHandle,
    convention: Convention,
    drain: watch::Sender<DrainState>,
    listen: SocketAddr,
    admin: SocketAddr,
    /// Duplicates of the listening sockets for a successor, until draining begins.
    listeners: Mutex<Option<[TcpListener; 2]>>,
    workers: Vec<JoinHandle<()>>,
    control: JoinHandle<()>,
}

impl Proxy {
    /// Binds the sockets and serves from then on.
    ///
    /// # Errors
    /// [`StartError`], which names the setting to change.
    pub fn start(config: ProxyConfig, otlp: &OtlpConfig) -> Result<Self, StartError> {
        Self::start_on(config, otlp, None, &mut InheritedSockets::default())
    }

    /// Starts a proxy on inherited sockets; binds new ones if none matches. It exports the records of `logs`.
    ///
    /// # Errors
    /// [`StartError`], which names the setting to change.
    pub fn start_on(
        config: ProxyConfig,
        otlp: &OtlpConfig,
        logs: Option<&LogPipeline>,
        inherited: &mut InheritedSockets,
    ) -> Result<Self, StartError> {
        let (listener, listen) = open(inherited, config.listen, SOCKET_NAMES[0])?;
        let (admin_listener, admin) = open(inherited, config.admin, SOCKET_NAMES[1])?;
        let convention = if otlp.latest_gen_ai { Convention::Latest } else { Convention::Frozen };
        let server = config.upstream.server().cloned();
        let upstream = server.as_ref().map(ToString::to_string);
        let certificates = Certificates::load(&config)?;
        let plane = ControlPlane::new(rules(&config, convention), otlp, logs, upstream, Clock::Monotonic)
            .with_access(Arc::clone(&certificates.admin))
            .with_engine_metrics(engine_metrics(&config));
        let controls = plane.handle();
        enable_rx_timestamps();
        let (drain, draining) = watch::channel(DrainState::Serving);
        let target = match server {
            Some(server) => SharedTarget::Server(server),
            None => {
                if let Err(error) = accept_foreign_addresses(&listener) {
                    tracing::info!(%error, "connections of TPROXY are not accepted, those of REDIRECT are; CAP_NET_ADMIN allows both");
                }
                SharedTarget::Destinations(Destinations::new([listen, admin], plane.gauges()))
            }
        };
        let shared = Arc::new(WorkerShared {
            target,
            server_tls: certificates.server.clone(),
            upstream_tls: certificates.upstream.clone(),
            gauges: plane.gauges(),
            reporter: plane.reporter(),
            tokenizing: TokenCounter::start(&config.tokenizers, plane.reporter())?,
            capture: capture_hook::start(
                &config.capture,
                &instance_name(&otlp.resource),
                Clock::Monotonic,
                inherited.has_predecessor(),
            )?
            .map(Arc::new),
            class_key: capture_hook::class_key(&config)?,
            sampler: plane.sampler(),
            certificate_check: Notify::new(),
            tick: Notify::new(),
            open_streams: AtomicUsize::default(),
            connecting: AtomicUsize::default(),
            max_upstream_connections: AtomicUsize::new(usize::MAX),
            config: ArcSwap::from_pointee(config),
        });
        if let Some(capture) = &shared.capture {
            plane.set_capture(Arc::clone(capture));
        }
        let config = shared.config.load_full();
        let (mut handles, mut workers) = (Vec::new(), Vec::new());
        for number in 0..config.workers {
            let (inbox, accepted) = mpsc::channel(MAX_INBOX_CONNECTIONS);
            let connections = Arc::new(AtomicUsize::new(0));
            shared.gauges.status().add_client_connections(Arc::clone(&connections));
            handles.push(WorkerHandle { inbox, connections: Arc::clone(&connections) });
            let (shared, draining) = (Arc::clone(&shared), draining.clone());
            workers.push(thread(format!("worker-{number}"), move || async {
                worker::run(shared, accepted, connections, draining).await;
                Ok(())
            })?);
        }
        let again = || Ok([listener.try_clone()?, admin_listener.try_clone()?]);
        let listeners = Mutex::new(Some(again().map_err(StartError::Thread)?));
        // All threads have opened their descriptors, except the one that holds the reserve.
        let limits = ConnectionLimits::for_process();
        shared.max_upstream_connections.store(limits.upstream, Ordering::Relaxed);
        let most = match config.limits.connections {
            configured if configured <= limits.clients => (configured, "raise --max-connections"),
            _ => (limits.clients, "raise the limit on open files"),
        };
        let status = shared.gauges.status();
        status.set_limit(Resource::Streams, config.limits.streams);
        status.set_limit(Resource::ClientConnections, most.0);
        status.set_limit(Resource::UpstreamConnections, limits.upstream);
        shared.set_destination_limit(&config);
        let control = {
            let shared = Arc::clone(&shared);
            let accepting = AcceptorParams { listener, workers: handles, max_connections: most };
            let body = move || control(shared, accepting, (plane, admin_listener), certificates, draining);
            thread("control".to_owned(), body)?
        };
        Ok(Self { shared, controls, convention, drain, listen, admin, listeners, workers, control })
    }

    /// Loads the certificates, keys and tokenizers of a configuration, as [`start`](Self::start) does, and the
    /// exporters' certificates. Also checks that the capture is writable. Binds no socket and leaves no files behind.
    ///
    /// # Errors
    /// [`StartError`], which names the setting to change.
    pub fn check(config: &ProxyConfig, otlp: &OtlpConfig) -> Result<(), StartError> {
        otlp::check(otlp)?;
        Certificates::load(config)?;
        let capture = &config.capture;
        capture_hook::check(capture)?;
        TokenCounter::check(&config.tokenizers, capture.tokenizer.as_deref().filter(|_| capture.folder().is_some()))?;
        Ok(())
    }

    /// Address of the client port.
    pub fn listen_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Address of the admin port (metrics and health).
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin
    }

    /// Applies a new configuration as far as possible without a restart, and reloads changed certificates. Returns the
    /// settings that need a restart.
    pub fn reload(&self, new: ProxyConfig) -> Vec<&'static str> {
        let (config, restart) = self.shared.config.load().reload(new);
        self.controls.apply(rules(&config, self.convention));
        let status = self.shared.gauges.status();
        status.set_limit(Resource::Streams, config.limits.streams);
        self.shared.set_destination_limit(&config);
        status.set_reload(ReloadSubject::Settings, true);
        self.shared.config.store(Arc::new(config));
        self.shared.certificate_check.notify_one();
        restart
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<ProxyConfig> {
        self.shared.config.load_full()
    }

    /// Lets the admin port show and change the process's settings.
    pub fn set_process_control(&self, control: Box<dyn ProcessControl>) {
        self.controls.set_process_control(control);
    }

    /// Records that a new configuration could not be loaded, so that the old one stays in force.
    pub fn reload_failed(&self) {
        self.shared.gauges.status().set_reload(ReloadSubject::Settings, false);
    }

    /// The current figures, from the same counts as a scrape.
    pub fn snapshot(&self) -> LiveSnapshot {
        self.controls.live_snapshot()
    }

    /// The client socket and the admin socket, in the order of [`SOCKET_NAMES`], for a successor process.
    ///
    /// # Errors
    /// The system refuses, or draining has begun.
    pub fn listeners(&self) -> io::Result<[TcpListener; 2]> {
        match &*self.listeners.lock().unwrap_or_else(PoisonError::into_inner) {
            Some([listen, admin]) => Ok([listen.try_clone()?, admin.try_clone()?]),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Starts to drain: not ready any more, listeners and idle connections close, open streams continue.
    pub fn drain(&self) {
        self.start_drain(DrainState::Draining);
    }

    /// Starts to drain beside a process that took over the [`listeners`](Self::listeners). Unlike
    /// [`drain`](Self::drain), this releases the admin port at once, and lets a recently used connection send another
    /// request.
    pub fn hand_over(&self) {
        self.start_drain(DrainState::TakenOver);
    }

    fn start_drain(&self, how: DrainState) {
        drop(self.listeners.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Every thread holds a receiver; without one nothing is left to stop.
        let _told = self.drain.send(how).is_ok();
    }

    /// True if the last stream has ended since [`drain`](Self::drain).
    pub fn is_drained(&self) -> bool {
        self.workers.iter().all(JoinHandle::is_finished)
    }

    /// Stops now: closes open streams and flushes telemetry.
    pub fn stop(self) {
        let join = |thread: JoinHandle<()>| {
            if thread.join().is_err() {
                tracing::error!("a thread of the proxy has panicked");
            }
        };
        // Workers report closed streams as they end, so the last export waits for all of them.
        let _told = self.drain.send(DrainState::Stop).is_ok();
        self.workers.into_iter().for_each(join);
        let _told = self.drain.send(DrainState::Flush).is_ok();
        join(self.control);
    }
}

/// Opens the listening socket of an address, inherited or new.
fn open(
    inherited: &mut InheritedSockets,
    address: SocketAddr,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let Some(listener) = inherited.take(flag, address) else { return bind(address, flag) };
    let address = listener.local_addr().map_err(|error| StartError::Listen { address, flag, error })?;
    Ok((listener, address))
}

fn bind(address: SocketAddr, flag: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let listen = || -> io::Result<_> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(LISTEN_BACKLOG)?;
        let listener = TcpListener::from(socket);
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    listen().map_err(|error| StartError::Listen { address, flag, error })
}

/// Starts a thread with its own runtime and waits until the runtime exists: later, clients may hold all descriptors, so
/// a failure must show now.
fn thread<F>(name: String, run: impl FnOnce() -> F + Send + 'static) -> Result<JoinHandle<()>, StartError>
where
    F: Future<Output = io::Result<()>>,
{
    let (fails, failed) = sync_channel(1);
    let body = move || {
        let runtime = match Builder::new_current_thread().enable_all().build_local(LocalOptions::default()) {
            Ok(runtime) => runtime,
            Err(error) => {
                let _told = fails.send(error).is_ok();
                return;
            }
        };
        drop(fails);
        if let Err(error) = runtime.block_on(run()) {
            tracing::error!(%error, "a thread of the proxy cannot run");
        }
        // A name lookup in progress cannot be cancelled, and its result is not needed.
        runtime.shutdown_background();
    };
    let thread = std::thread::Builder::new().name(name).spawn(body).map_err(StartError::Thread)?;
    failed.recv().map_or(Ok(thread), |error| Err(StartError::Thread(error)))
}

/// Where the live page's figures of the engine come from. The certificates are the upstream's: both are one server, or
/// its neighbour.
pub fn engine_metrics(config: &ProxyConfig) -> Option<EngineMetricsSource> {
    let url = config.engine_metrics.clone()?;
    Some(EngineMetricsSource { url, ca: config.upstream.ca.clone() })
}

/// The control thread's settings from a configuration.
fn rules(config: &ProxyConfig, convention: Convention) -> RuntimeSettings {
    RuntimeSettings {
        aggregate: aggregate::AggregateSettings {
            slos: Arc::clone(&config.slos),
            max_models: config.max_models,
            max_class_values: config.max_class_values,
            provider: config.provider.clone(),
            gen_ai_client: config.gen_ai_client,
            scheme: if config.tls.is_some() { "https" } else { "http" },
            convention,
        },
        tail_keep: config.tail_keep,
        access_log: config.access_log,
        trace_probes: config.trace_probes,
        admin_hosts: config.admin_hosts.clone().into(),
        config_digest: config.digest(),
    }
}

struct AcceptorParams {
    listener: TcpListener,
    workers: Vec<WorkerHandle>,
    /// Connection limit, and the setting that raises it.
    max_connections: (usize, &'static str),
}

/// The control thread: accepts until draining begins, and runs everything outside the request path.
async fn control(
    shared: Arc<WorkerShared>,
    accepting: AcceptorParams,
    (plane, admin): (ControlPlane, TcpListener),
    certificates: Certificates,
    mut draining: watch::Receiver<DrainState>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(accepting.listener)?;
    let admin = tokio::net::TcpListener::from_std(admin)?;
    // When it ends, its listener closes, and the workers see the end of new connections.
    let _accepting =
        tokio::spawn(acceptor::run(listener, accepting.workers, accepting.max_connections, draining.clone()));
    let admin_left = plane.admin_released();
    let renewing = tokio::spawn(reload::watch_certificates(Arc::clone(&shared), certificates));
    let beating = tokio::spawn(worker::ticker(Arc::clone(&shared)));
    let probing = health_probe::run(Arc::clone(&shared));
    let stopped = async move {
        shared.gauges.set_ready(true);
        let drain_state =
            draining.wait_for(|drain| *drain != DrainState::Serving).await.map_or(DrainState::Stop, |drain| *drain);
        shared.gauges.set_ready(false);
        admin_left.send_replace(drain_state == DrainState::TakenOver);
        let _stopped = draining.wait_for(|drain| *drain == DrainState::Flush).await.is_ok();
        renewing.abort();
        beating.abort();
        let _counted = Clock::Monotonic.timeout(FLUSH_TIMEOUT, wait_for_token_counts(&shared)).await.is_some();
    };
    tokio::select! {
        () = plane.run(Some(admin), stopped, FLUSH_TIMEOUT) => {}
        () = probing => {}
    }
    Ok(())
}

/// Waits until all pending token counts have been reported.
async fn wait_for_token_counts(shared: &WorkerShared) {
    while shared.tokenizing.as_ref().is_some_and(|tokenizing| !tokenizing.is_idle()) {
        Clock::Monotonic.sleep(TOKENIZER_POLL_INTERVAL).await;
    }
}
