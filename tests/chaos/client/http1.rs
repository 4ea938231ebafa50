//! HTTP/1.1 clients.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

use super::{Clients, Target};
use crate::io::Io;
use crate::oracle::{End, Observed};
use crate::plan::{ClientFault, Framing, Plan, SEED_HEADER};
use crate::support::body::{BodyReader, Part};
use crate::support::client::Response;

/// One slot: requests one after another, on a kept connection where the plan reuses it.
pub(super) async fn run(clients: &Clients, kind: &'static str, target: &Target) {
    let mut idle: Option<Io> = None;
    while !clients.has_ended() {
        let plan = clients.plan();
        if plan.client == ClientFault::HalfOpen {
            clients.observe(kind, &plan, target.abandon(&plan)).await;
            continue;
        }
        let connection = idle.take();
        let exchange = async {
            if let Some(io) = connection {
                let (seen, io) = exchange(io, &plan).await;
                idle = io;
                if seen.status > 0 || seen.end == End::Left {
                    return Observed { reused: true, ..seen };
                }
                clients.oracle.closed.fetch_add(1, Ordering::SeqCst);
            }
            let io = match target.connect().await {
                Ok(io) => io,
                Err(error) => return Observed::broken(format!("connecting: {error}")),
            };
            let (seen, io) = exchange(io, &plan).await;
            idle = io;
            seen
        };
        clients.observe(kind, &plan, exchange).await;
    }
}

/// The client's observation, and the connection if it can be used again.
async fn exchange(mut io: Io, plan: &Plan) -> (Observed, Option<Io>) {
    if plan.client == ClientFault::Garbage {
        let _rejected = io.write_all(b"\x00\x01 no HTTP\r\n\r\n").await.is_ok();
    } else {
        match upload(&mut io, plan).await {
            Ok(true) => {}
            Ok(false) => {
                match plan.client_at < 0.5 {
                    true => io.reset(),
                    false => drop(io),
                }
                return (Observed::left(), None);
            }
            // The proxy may answer before the upload ends.
            Err(error) => {
                let (seen, io) = read(io, plan).await;
                return match plan.server.is_silent() || seen.proxy_error.is_some() {
                    true => (seen, io),
                    false => (Observed::broken(format!("sending: {error}")), None),
                };
            }
        }
    }
    read(io, plan).await
}

/// Sends the request; `false` if the client leaves in its middle.
async fn upload(io: &mut Io, plan: &Plan) -> std::io::Result<bool> {
    let (framing, body) = match plan.request_framing {
        Framing::Chunked => {
            let chunks = plan.request.chunks(5_000).map(|chunk| {
                let size = format!("{:x}\r\n", chunk.len());
                [size.as_bytes(), chunk, b"\r\n"].concat()
            });
            (
                "Transfer-Encoding: chunked".to_owned(),
                [chunks.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat(),
            )
        }
        _ => (format!("Content-Length: {}", plan.request.len()), plan.request.clone()),
    };
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n{SEED_HEADER}: {}\r\n{framing}\r\n\r\n",
        plan.seed
    );
    let whole = [head.as_bytes(), &body].concat();
    match plan.client {
        ClientFault::AbandonUpload => {
            io.write_all(&whole[..Plan::place(plan.client_at, whole.len())]).await?;
            sleep(plan.pause / 4).await;
            return Ok(false);
        }
        ClientFault::SlowUpload => {
            for piece in whole.chunks(whole.len().div_ceil(20)) {
                io.write_all(piece).await?;
                sleep(plan.pause / 20).await;
            }
        }
        _ => io.write_all(&whole).await?,
    }
    Ok(true)
}

/// Reads the reply with the plan's stalls.
async fn read(mut io: Io, plan: &Plan) -> (Observed, Option<Io>) {
    let mut buffer = vec![0; 32 << 10];
    let mut unread = Vec::new();
    let mut reply: Option<(Response, BodyReader)> = None;
    let fault_at = Plan::place(plan.client_at, plan.reply.bytes.len());
    let mut is_stalled = false;
    let end = loop {
        let received = match io.read(&mut buffer).await {
            Ok(0) if matches!(reply, Some((_, BodyReader::UntilClose))) => break End::Whole,
            Ok(0) => break End::Broken("closed".to_owned()),
            Err(error) => break End::Broken(error.to_string()),
            Ok(received) => received,
        };
        unread.extend_from_slice(&buffer[..received]);
        if reply.is_none() {
            let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&unread.drain(..end + 4).collect::<Vec<_>>()).into_owned();
            let response = Response { head, ..Response::default() };
            let reader = framing(&response);
            reply = Some((response, reader));
        }
        let Some((response, reader)) = &mut reply else { continue };
        if reader.read(&mut unread, response) {
            break End::Whole;
        }
        if response.body.len() > fault_at {
            match plan.client {
                ClientFault::Leave => break End::Left,
                ClientFault::Reset => {
                    io.reset();
                    return (observed(reply, End::Left), None);
                }
                ClientFault::Stall if !is_stalled => {
                    is_stalled = true;
                    sleep(plan.pause.max(Duration::from_secs(1))).await;
                }
                _ => {}
            }
        }
    };
    let is_kept =
        |response: &Response| !response.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let is_reusable = match &reply {
        Some((response, reader)) => {
            end == End::Whole && plan.reuses && !matches!(reader, BodyReader::UntilClose) && is_kept(response)
        }
        None => false,
    };
    (observed(reply, end), is_reusable.then_some(io))
}

fn framing(response: &Response) -> BodyReader {
    if response.field("transfer-encoding").is_some() {
        return BodyReader::Chunked(Part::Size);
    }
    let length = response.field("content-length").and_then(|length| length.parse().ok());
    length.map_or(BodyReader::UntilClose, BodyReader::Length)
}

fn observed(reply: Option<(Response, BodyReader)>, end: End) -> Observed {
    let response = reply.map(|(response, _)| response).unwrap_or_default();
    let proxy_error = response.field("x-streamgauge-error").map(str::to_owned);
    Observed { status: response.status(), proxy_error, body: response.body, end, reused: false }
}
