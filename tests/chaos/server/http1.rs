//! HTTP/1.1 connections of the server.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use super::{DRIBBLED_BYTES, OpenRequest, Server};
use crate::io::Io;
use crate::plan::{Framing, Plan, SEED_HEADER, ServerFault};
use crate::support::body::{BodyReader, Part};
use crate::support::client::Response;
use crate::support::upstream::field;

/// How a reply ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Whole,
    /// The connection has to close.
    Cut,
    Reset,
}

/// A connection with what arrived ahead of the next request.
struct Connection {
    io: Io,
    unread: Vec<u8>,
}

/// Answers requests until either side closes.
pub(super) async fn serve(io: Io, server: &Server) {
    let mut connection = Connection { io, unread: Vec::new() };
    let mut keeps = Duration::from_secs(600);
    while let Ok(Some((head, body))) = connection.request(keeps).await {
        let Some(plan) = field(&head, SEED_HEADER).and_then(|seed| server.plan(seed, &body)) else { return };
        let _open = OpenRequest::new(server);
        if plan.server == ServerFault::NoReply {
            return;
        }
        // The proxy closes when its client has left.
        match connection.reply(&plan).await.unwrap_or(Sent::Cut) {
            Sent::Reset => return connection.io.reset(),
            Sent::Cut => return,
            Sent::Whole if plan.framing == Framing::Close || plan.server == ServerFault::LateClose => {
                if plan.server == ServerFault::LateClose {
                    sleep(plan.pause).await;
                }
                return;
            }
            Sent::Whole => keeps = plan.keeps,
        }
    }
}

impl Connection {
    /// The next request, whole; `None` if the proxy closed, or sent no byte of it within `patience`.
    ///
    /// A server that closes an idle connection announces nothing, so the next request may be on its way.
    async fn request(&mut self, patience: Duration) -> std::io::Result<Option<(String, Vec<u8>)>> {
        let mut request: Option<(String, BodyReader)> = None;
        let mut body = Response::default();
        loop {
            if request.is_none()
                && let Some(end) = self.unread.windows(4).position(|window| window == b"\r\n\r\n")
            {
                let head = String::from_utf8_lossy(&self.unread.drain(..end + 4).collect::<Vec<_>>()).into_owned();
                let length = field(&head, "content-length").and_then(|length| length.parse().ok());
                let reader = match field(&head, "transfer-encoding") {
                    Some(_) => BodyReader::Chunked(Part::Size),
                    None => BodyReader::Length(length.unwrap_or(0)),
                };
                request = Some((head, reader));
            }
            if let Some((head, reader)) = &mut request
                && reader.read(&mut self.unread, &mut body)
            {
                return Ok(Some((std::mem::take(head), body.body)));
            }
            let mut buffer = [0; 16 << 10];
            let received = match request.is_none() && self.unread.is_empty() {
                true => timeout(patience, self.io.read(&mut buffer)).await.unwrap_or(Ok(0))?,
                false => self.io.read(&mut buffer).await?,
            };
            if received == 0 {
                return Ok(None);
            }
            self.unread.extend_from_slice(&buffer[..received]);
        }
    }

    async fn reply(&mut self, plan: &Plan) -> std::io::Result<Sent> {
        let Plan { status, reply, .. } = plan;
        let framing = match plan.framing {
            Framing::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
            Framing::Length => format!("Content-Length: {}\r\n", reply.bytes.len()),
            Framing::Close => String::new(),
        };
        let closes = plan.framing == Framing::Close || plan.server == ServerFault::LateClose;
        let close = if closes { "Connection: close\r\n" } else { "" };
        let coding = reply.coding.map(|coding| format!("Content-Encoding: {coding}\r\n")).unwrap_or_default();
        let media_type = reply.media_type;
        let head = format!("HTTP/1.1 {status} Soak\r\nContent-Type: {media_type}\r\n{framing}{coding}{close}\r\n");
        if plan.server == ServerFault::CutHead {
            self.io.write_all(&head.as_bytes()[..Plan::place(plan.server_at, head.len())]).await?;
            return Ok(Sent::Cut);
        }
        self.io.write_all(head.as_bytes()).await?;
        self.body(plan).await
    }

    /// Sends the body in its pieces; the fault occurs at its place among the bytes of the connection.
    async fn body(&mut self, plan: &Plan) -> std::io::Result<Sent> {
        let (mut from, mut sent) = (0, 0);
        let mut pieces: Vec<(Vec<u8>, Duration)> = Vec::new();
        for (end, pause) in &plan.pieces {
            let payload = &plan.reply.bytes[from..*end];
            let piece = match plan.framing {
                Framing::Chunked => [format!("{:x}\r\n", payload.len()).as_bytes(), payload, b"\r\n"].concat(),
                _ => payload.to_vec(),
            };
            pieces.push((piece, *pause));
            from = *end;
        }
        if plan.framing == Framing::Chunked {
            pieces.push((b"0\r\n\r\n".to_vec(), Duration::ZERO));
        }
        let total: usize = pieces.iter().map(|(piece, _)| piece.len()).sum();
        let fault_at = Plan::place(plan.server_at, total);
        for (piece, pause) in pieces {
            sleep(pause).await;
            let until_fault = fault_at.checked_sub(sent).filter(|left| *left < piece.len());
            sent += piece.len();
            let Some(before) = until_fault.filter(|_| plan.server != ServerFault::None) else {
                self.io.write_all(&piece).await?;
                continue;
            };
            match plan.server {
                ServerFault::BrokenChunk => {
                    // Only between two chunks it is a size.
                    self.io.write_all(b"zz\r\n").await?;
                    return Ok(Sent::Cut);
                }
                ServerFault::Cut | ServerFault::Reset => {
                    self.io.write_all(&piece[..before]).await?;
                    self.io.flush().await?;
                    return Ok(if plan.server == ServerFault::Cut { Sent::Cut } else { Sent::Reset });
                }
                ServerFault::Dribble => {
                    let end = (before + DRIBBLED_BYTES).min(piece.len());
                    self.io.write_all(&piece[..before]).await?;
                    for byte in &piece[before..end] {
                        self.io.write_all(&[*byte]).await?;
                        sleep(Duration::from_millis(2)).await;
                    }
                    self.io.write_all(&piece[end..]).await?;
                }
                _ => {
                    self.io.write_all(&piece[..before]).await?;
                    if plan.server == ServerFault::Stall {
                        sleep(plan.pause).await;
                    }
                    self.io.write_all(&piece[before..]).await?;
                }
            }
        }
        Ok(Sent::Whole)
    }
}
