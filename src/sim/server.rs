//! The listener, its connections, and the life cycle of the server.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::options::{SimOptions, SimOptionsError};
use super::routes::RouteContext;
use super::socket::{Socket, SocketControl};
use crate::clock::Clock;
use crate::measure::time::Gap;

/// Length of the kernel's accept queue.
const BACKLOG: i32 = 4_096;

/// Largest request head, in bytes; larger ones are rejected with 431.
const MAX_HEAD: usize = 64 << 10;

/// Reason why the server could not start.
#[derive(Debug, Error)]
pub enum BindError {
    /// The options are invalid.
    #[error(transparent)]
    Options(#[from] SimOptionsError),
    /// Listening on the address failed.
    #[error("cannot listen on {addr} (--listen)")]
    Listen {
        /// The requested address.
        addr: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// A simulated inference server that is listening.
#[derive(Debug)]
pub struct SimServer {
    listener: TcpListener,
    local_addr: SocketAddr,
    shared: Arc<RouteContext>,
}

impl SimServer {
    /// Listens on `addr`; port 0 selects a free port. Needs no runtime.
    ///
    /// # Errors
    /// If the options are invalid or the address is not available.
    pub fn bind(options: SimOptions, addr: SocketAddr) -> Result<Self, BindError> {
        options.check()?;
        let listen = || {
            let socket = RawSocket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.set_nonblocking(true)?;
            socket.bind(&addr.into())?;
            socket.listen(BACKLOG)?;
            let listener = TcpListener::from(socket);
            let local_addr = listener.local_addr()?;
            Ok((listener, local_addr))
        };
        let (listener, local_addr) = listen().map_err(|source| BindError::Listen { addr, source })?;
        Ok(Self { listener, local_addr, shared: Arc::new(RouteContext::new(options)) })
    }

    /// The listening address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` completes, then closes open connections. Needs a Tokio runtime with I/O and time; one
    /// thread suffices.
    ///
    /// # Errors
    /// If the listener or the engine's timer fails.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let mut serving = JoinSet::new();
        let work = async {
            tokio::select! {
                ended = self.shared.hub().drive() => ended,
                ended = accept(&listener, &self.shared, &mut serving) => ended,
            }
        };
        tokio::select! {
            biased;
            () = shutdown => Ok(()),
            ended = work => ended,
        }
    }

    /// Serves on a separate thread until the handle is dropped.
    ///
    /// # Errors
    /// If creating the thread or the runtime fails.
    pub fn spawn(self) -> io::Result<RunningServer> {
        let local_addr = self.local_addr;
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = runtime()?;
        let thread = std::thread::Builder::new().name("sim".to_owned()).spawn(move || {
            // Both a message and the drop of the sender are the signal.
            runtime.block_on(self.run(async { drop(stopped.await) }))
        })?;
        Ok(RunningServer { local_addr, stop: Some(stop), thread: Some(thread) })
    }
}

/// Creates a runtime with one thread that checks sockets and timers after every few polls. Each poll writes an event
/// and takes microseconds.
///
/// # Errors
/// If the system has no resources for a runtime.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().event_interval(8).enable_all().build()
}

/// A server on a separate thread. Drop stops it.
#[derive(Debug)]
pub struct RunningServer {
    local_addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl RunningServer {
    /// The listening address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops the server and returns its result.
    ///
    /// # Errors
    /// The error of [`SimServer::run`], if it ended before this call.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(io::Error::other("the simulated server's thread panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // Callers that need the result call `stop`.
        drop(self.end());
    }
}

/// Accepts connections while it is polled.
async fn accept(
    listener: &tokio::net::TcpListener,
    shared: &Arc<RouteContext>,
    serving: &mut JoinSet<()>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(shared.options().max_connections.min(Semaphore::MAX_PERMITS)));
    loop {
        let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
        let stream = loop {
            tokio::select! {
                Some(_ended) = serving.join_next() => {}
                accepted = listener.accept() => break accepted,
            }
        };
        match stream {
            Ok((stream, _)) => {
                let shared = shared.clone();
                serving.spawn(async move {
                    serve(stream, shared).await;
                    drop(place);
                });
            }
            // No free descriptor, or a client that left the accept queue: both conditions are temporary.
            Err(_) => Clock::Monotonic.sleep(Gap::from_millis(10)).await,
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<RouteContext>) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let idle = shared.options().idle_timeout;
    let Some(Ok(http2)) = Clock::Monotonic.timeout(idle, speaks_http2(&stream)).await else { return };
    let wire = Arc::new(if http2 { SocketControl::shared() } else { SocketControl::default() });
    let socket = Socket::new(stream, wire.clone());
    let answer = service_fn(move |request| {
        let (shared, wire) = (shared.clone(), wire.clone());
        async move { shared.answer(request, &wire).await }
    });
    // Every kind of connection end is acceptable. The drop of a reply aborts its sequences.
    if http2 {
        drop(http2::Builder::new(TokioExecutor::new()).serve_connection(socket, answer).await);
        return;
    }
    let served = http1::Builder::new()
        // hyper counts the wait for the next request as reading its head.
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from(idle))
        .max_buf_size(MAX_HEAD)
        .serve_connection(socket, answer);
    drop(served.await);
}

/// True if the client uses HTTP/2 with prior knowledge: no HTTP/1.1 method starts like its preface.
async fn speaks_http2(stream: &TcpStream) -> io::Result<bool> {
    const PREFACE: &[u8] = b"PRI";
    loop {
        let mut start = [0; PREFACE.len()];
        let got = stream.peek(&mut start).await?;
        if got == 0 || !PREFACE.starts_with(&start[..got]) {
            return Ok(false);
        }
        if got == PREFACE.len() {
            return Ok(true);
        }
        // Only part of the preface has arrived: the socket stays readable, so readiness cannot signal the rest.
        Clock::Monotonic.sleep(Gap::from_millis(1)).await;
    }
}
