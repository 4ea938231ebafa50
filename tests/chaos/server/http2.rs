//! HTTP/2 connections of the server. Each ends after its lifetime with a GOAWAY.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Response};
use tokio::time::sleep;

use super::{DRIBBLED_BYTES, OpenRequest, Server};
use crate::client::send;
use crate::io::Io;
use crate::plan::{Plan, SEED_HEADER, ServerFault};

/// Answers requests until either side closes.
pub(super) async fn serve(io: Io, server: Arc<Server>, lifetime: Duration) {
    // The other side may have left during the handshake.
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    let mut end = std::pin::pin!(sleep(lifetime));
    let mut is_ending = false;
    loop {
        tokio::select! {
            () = &mut end, if !is_ending => {
                is_ending = true;
                connection.graceful_shutdown();
            }
            request = connection.accept() => {
                let Some(Ok((request, respond))) = request else { return };
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    // The proxy resets a stream when its client has left.
                    let _reset = answer(request, respond, &server).await.is_ok();
                });
            }
        }
    }
}

async fn answer(
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    server: &Server,
) -> Result<(), h2::Error> {
    let seed = request.headers().get(SEED_HEADER).and_then(|seed| seed.to_str().ok()).unwrap_or_default().to_owned();
    let (mut body, mut received) = (request.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        let data = data?;
        received.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len())?;
    }
    let Some(plan) = server.plan(&seed, &received) else {
        respond.send_reset(Reason::PROTOCOL_ERROR);
        return Ok(());
    };
    let _open = OpenRequest::new(server);
    if plan.server.is_silent() {
        respond.send_reset(Reason::INTERNAL_ERROR);
        return Ok(());
    }
    let mut head = Response::builder().status(plan.status).header("content-type", plan.reply.media_type);
    if let Some(coding) = plan.reply.coding {
        head = head.header("content-encoding", coding);
    }
    if plan.server == ServerFault::BrokenChunk || plan.framing == crate::plan::Framing::Length {
        head = head.header("content-length", plan.reply.bytes.len());
    }
    let mut stream = respond.send_response(head.body(()).expect("a valid reply"), false)?;
    reply(&mut stream, &plan).await
}

/// Sends the body in its pieces; the fault occurs at its place among the bytes.
async fn reply(stream: &mut SendStream<Bytes>, plan: &Plan) -> Result<(), h2::Error> {
    let fault_at = Plan::place(plan.server_at, plan.reply.bytes.len());
    let mut from = 0;
    for (end, pause) in &plan.pieces {
        sleep(*pause).await;
        let is_faulty = plan.server != ServerFault::None && (from..*end).contains(&fault_at);
        let until = if is_faulty { fault_at } else { *end };
        send(stream, &plan.reply.bytes[from..until], false).await?;
        if is_faulty {
            match plan.server {
                ServerFault::Cut | ServerFault::Reset => {
                    let is_cut = plan.server == ServerFault::Cut;
                    stream.send_reset(if is_cut { Reason::INTERNAL_ERROR } else { Reason::CANCEL });
                    return Ok(());
                }
                ServerFault::BrokenChunk => return stream.send_data(Bytes::new(), true),
                ServerFault::Stall => sleep(plan.pause).await,
                _ => {}
            }
            let dribbled = if plan.server == ServerFault::Dribble { DRIBBLED_BYTES.min(*end - until) } else { 0 };
            for byte in &plan.reply.bytes[until..until + dribbled] {
                send(stream, &[*byte], false).await?;
                sleep(Duration::from_millis(2)).await;
            }
            send(stream, &plan.reply.bytes[until + dribbled..*end], false).await?;
        }
        from = *end;
    }
    if plan.server == ServerFault::LateClose {
        sleep(plan.pause).await;
        return stream.send_trailers(HeaderMap::new());
    }
    stream.send_data(Bytes::new(), true)
}
