//! The inference server: short replies, replies without end, replies that a request names, and uploads that it never
//! reads. Each connection has a thread, so that no client waits for another one here.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::disturbance::{HostileBody, PLAIN_PATH};

/// Names the hostile body that a request asks for.
pub(crate) const REPLY_FIELD: &str = "x-reply";
/// Marks requests of the measured client.
pub(crate) const MEASURED_FIELD: &str = "x-measured";
/// Where replies have no end.
pub(crate) const ENDLESS_PATH: &str = "/endless";
/// Where nothing is read.
pub(crate) const UNREAD_PATH: &str = "/unread";

const EVENTS: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" deep\"}}]}\n\n\
                      data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

type ReplyBody = Either<Full<Bytes>, Channel<Bytes>>;

/// Starts a server that lasts as long as the process.
pub(crate) fn start(is_http2: bool, replies: Arc<Vec<HostileBody>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let replies = Arc::clone(&replies);
            thread::spawn(move || serve(socket, is_http2, &replies));
        }
    });
    address
}

fn serve(socket: std::net::TcpStream, is_http2: bool, replies: &Arc<Vec<HostileBody>>) {
    socket.set_nonblocking(true).unwrap();
    socket.set_nodelay(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = TokioIo::new(tokio::net::TcpStream::from_std(socket).unwrap());
        let replies = Arc::clone(replies);
        let service = service_fn(move |request| {
            let replies = Arc::clone(&replies);
            async move { Ok::<_, Infallible>(answer(request, &replies).await) }
        });
        let _ended = match is_http2 {
            true => http2::Builder::new(TokioExecutor::new()).serve_connection(socket, service).await.is_ok(),
            false => http1::Builder::new().serve_connection(socket, service).await.is_ok(),
        };
    });
}

async fn answer(request: Request<Incoming>, replies: &[HostileBody]) -> Response<ReplyBody> {
    if request.headers().contains_key(MEASURED_FIELD) {
        crate::raise_priority();
    }
    let stream = Response::builder().header("content-type", "text/event-stream");
    match request.uri().path() {
        UNREAD_PATH => std::future::pending().await,
        ENDLESS_PATH => {
            let (mut sender, body) = Channel::new(4);
            tokio::spawn(async move { while sender.send_data(Bytes::from_static(&[b'x'; 65_536])).await.is_ok() {} });
            stream.body(Either::Right(body)).unwrap()
        }
        _ => {
            let is_plain = request.uri().path() == PLAIN_PATH;
            let named = request.headers().get(REPLY_FIELD).and_then(|name| name.to_str().ok());
            let reply = named.and_then(|name| replies.iter().find(|reply| reply.name == name)).cloned();
            let mut body = request.into_body();
            while body.frame().await.is_some_and(|frame| frame.is_ok()) {}
            match reply {
                None => stream.body(Either::Left(Full::new(Bytes::from_static(EVENTS.as_bytes())))).unwrap(),
                Some(reply) => {
                    let head = Response::builder()
                        .header("content-type", if is_plain { "application/octet-stream" } else { reply.content_type });
                    let head = match reply.encoding {
                        "" => head,
                        encoding => head.header("content-encoding", encoding),
                    };
                    head.body(Either::Left(Full::new(reply.body))).unwrap()
                }
            }
        }
    }
}
