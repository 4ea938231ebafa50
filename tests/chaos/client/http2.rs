//! HTTP/2 clients: many slots on one connection.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, SendStream};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::{Clients, Target};
use crate::oracle::{End, Observed};
use crate::plan::{ClientFault, Plan, SEED_HEADER};

/// A connection that is opened again when it has ended.
pub(super) struct Connection {
    target: Target,
    current: Mutex<Option<SendRequest<Bytes>>>,
}

impl Connection {
    pub(super) fn new(target: Target) -> Self {
        Self { target, current: Mutex::new(None) }
    }

    async fn ready(&self) -> Result<SendRequest<Bytes>, String> {
        let mut current = self.current.lock().await;
        if let Some(sender) = current.take()
            && let Ok(sender) = sender.ready().await
        {
            return Ok(current.insert(sender).clone());
        }
        let io = self.target.connect().await.map_err(|error| format!("connecting: {error}"))?;
        // A reader that stalls must not use up the window of the other streams.
        let mut builder = h2::client::Builder::new();
        builder.initial_connection_window_size(8 << 20);
        let (sender, connection) = builder.handshake(io).await.map_err(|error| format!("handshake: {error}"))?;
        tokio::spawn(connection);
        Ok(current.insert(sender).clone())
    }
}

/// One slot: requests one after another.
pub(super) async fn run(clients: &Clients, kind: &'static str, connection: &Connection) {
    while !clients.has_ended() {
        let plan = clients.plan();
        if plan.client == ClientFault::HalfOpen {
            clients.observe(kind, &plan, connection.target.abandon(&plan)).await;
            continue;
        }
        let exchange = async {
            loop {
                match exchange(connection, &plan).await {
                    Ok(seen) => return seen,
                    // The proxy has not processed the request, so every client may send it again (RFC 9113, section 8.7).
                    Err(error) if is_unprocessed(&error) => {
                        _ = clients.oracle.sent_again.fetch_add(1, Ordering::SeqCst)
                    }
                    Err(error) => return Observed::broken(error),
                }
            }
        };
        clients.observe(kind, &plan, exchange).await;
    }
}

fn is_unprocessed(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    is_refused || error.is_remote() && error.is_go_away() && error.reason() == Some(Reason::NO_ERROR)
}

/// The client's observation; an error if no reply began.
async fn exchange(connection: &Connection, plan: &Plan) -> Result<Observed, h2::Error> {
    let mut sender = match connection.ready().await {
        Ok(sender) => sender.ready().await?,
        Err(reason) => return Ok(Observed::broken(reason)),
    };
    let request = http::Request::post("http://soak/v1/chat/completions").header("content-type", "application/json");
    let request = request.header(SEED_HEADER, plan.seed).body(()).expect("a valid request");
    let (reply, mut upload) = sender.send_request(request, false)?;
    match plan.client {
        ClientFault::Garbage => {
            upload.send_reset(Reason::CANCEL);
            return Ok(Observed::left());
        }
        ClientFault::AbandonUpload => {
            send(&mut upload, &plan.request[..Plan::place(plan.client_at, plan.request.len())], false).await?;
            sleep(plan.pause / 4).await;
            upload.send_reset(Reason::CANCEL);
            return Ok(Observed::left());
        }
        ClientFault::SlowUpload => {
            for piece in plan.request.chunks(plan.request.len().div_ceil(20)) {
                if send(&mut upload, piece, false).await.is_err() {
                    break;
                }
                sleep(plan.pause / 20).await;
            }
            _ = send(&mut upload, b"", true).await.is_ok();
        }
        // The reply states why an upload was not wanted.
        _ => _ = send(&mut upload, &plan.request, true).await.is_ok(),
    }
    let (head, mut body) = reply.await?.into_parts();
    let proxy_error =
        head.headers.get("x-streamgauge-error").map(|value| String::from_utf8_lossy(value.as_bytes()).into());
    let mut seen =
        Observed { status: head.status.as_u16(), proxy_error, body: Vec::new(), end: End::Whole, reused: false };
    let fault_at = Plan::place(plan.client_at, plan.reply.bytes.len());
    let mut is_stalled = false;
    while let Some(data) = body.data().await {
        let data = match data {
            Ok(data) => data,
            Err(error) => {
                seen.end = End::Broken(error.to_string());
                return Ok(seen);
            }
        };
        seen.body.extend_from_slice(&data);
        if seen.body.len() > fault_at {
            match plan.client {
                // Dropping the stream resets it.
                ClientFault::Leave => {
                    seen.end = End::Left;
                    return Ok(seen);
                }
                ClientFault::Reset => {
                    upload.send_reset(Reason::INTERNAL_ERROR);
                    seen.end = End::Left;
                    return Ok(seen);
                }
                ClientFault::Stall if !is_stalled => {
                    is_stalled = true;
                    sleep(plan.pause.max(Duration::from_secs(1))).await;
                }
                _ => {}
            }
        }
        // The stream may have been reset meanwhile, which the next read reports.
        let _open = body.flow_control().release_capacity(data.len()).is_ok();
    }
    if let Err(error) = body.trailers().await {
        seen.end = End::Broken(error.to_string());
    }
    Ok(seen)
}

/// Sends bytes as the other side's window allows.
pub(crate) async fn send(stream: &mut SendStream<Bytes>, bytes: &[u8], is_end: bool) -> Result<(), h2::Error> {
    let mut left = Bytes::copy_from_slice(bytes);
    while !left.is_empty() {
        stream.reserve_capacity(left.len());
        let granted = poll_fn(|context| stream.poll_capacity(context)).await;
        let granted = granted.unwrap_or_else(|| Err(Reason::CANCEL.into()))?;
        let piece = left.split_to(granted.min(left.len()));
        let is_last = is_end && left.is_empty();
        stream.send_data(piece, is_last)?;
    }
    if is_end && bytes.is_empty() {
        stream.send_data(Bytes::new(), true)?;
    }
    Ok(())
}
