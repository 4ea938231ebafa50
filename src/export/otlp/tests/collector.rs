//! A scripted collector that stores the requests it receives.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::config::otlp::{Endpoint, ExportHeaders, ExporterConfig, Protocol};
use crate::measure::time::Gap;

/// One received request.
pub(super) struct ReceivedExport {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    /// Decompressed, without the gRPC frame.
    pub(super) message: Vec<u8>,
    /// Index of the connection, from 0.
    pub(super) connection: usize,
}

/// A scripted reply. The default is a success with an empty message.
#[derive(Clone, Default)]
pub(super) struct CollectorReply {
    /// HTTP or gRPC status; 0 is success.
    pub(super) status: u16,
    /// HTTP headers or gRPC trailers.
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) message: Vec<u8>,
    /// Never reply.
    pub(super) hang: bool,
}

#[derive(Clone)]
pub(super) struct Collector {
    pub(super) address: SocketAddr,
    protocol: Protocol,
    pub(super) seen: Arc<Mutex<Vec<ReceivedExport>>>,
    replies: Arc<Mutex<VecDeque<CollectorReply>>>,
}

impl Collector {
    pub(super) async fn start(protocol: Protocol, replies: Vec<CollectorReply>) -> Self {
        Self::start_with(protocol, replies, None).await
    }

    pub(super) async fn start_with(
        protocol: Protocol,
        replies: Vec<CollectorReply>,
        tls: Option<Arc<rustls::ServerConfig>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let replies = Arc::new(Mutex::new(replies.into()));
        let collector = Self { address, protocol, seen: Arc::default(), replies };
        let serving = collector.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                let (collector, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => collector.connection(socket, connection).await,
                        Some(tls) => {
                            if let Ok(stream) = TlsAcceptor::from(tls).accept(socket).await {
                                collector.connection(stream, connection).await;
                            }
                        }
                    }
                });
            }
        });
        collector
    }

    /// Returns the exporter configuration for this collector.
    pub(super) fn exporter(&self) -> ExporterConfig {
        ExporterConfig {
            endpoint: Endpoint {
                tls: false,
                host: self.address.ip().to_string(),
                port: self.address.port(),
                target: "/v1/anything".to_owned(),
            },
            protocol: self.protocol,
            headers: ExportHeaders::new(vec![("x-tenant".to_owned(), "one".to_owned())]),
            timeout: Gap::from_millis(5_000),
            gzip: false,
            ca: None,
            identity: None,
        }
    }

    async fn connection(self, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, connection: usize) {
        let protocol = self.protocol;
        let service = service_fn(move |request| {
            let collector = self.clone();
            async move { collector.answer(request, connection).await }
        });
        let io = TokioIo::new(io);
        let _ended = match protocol {
            Protocol::HttpProtobuf => {
                hyper::server::conn::http1::Builder::new().serve_connection(io, service).await.is_ok()
            }
            Protocol::Grpc => {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                server.serve_connection(io, service).await.is_ok()
            }
        };
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        connection: usize,
    ) -> Result<Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>>, hyper::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let message = message(self.protocol, &head.headers, &body);
        let path = head.uri.path().to_owned();
        self.seen.lock().unwrap().push(ReceivedExport { path, headers: head.headers, message, connection });
        let reply = self.replies.lock().unwrap().pop_front().unwrap_or_default();
        if reply.hang {
            std::future::pending::<()>().await;
        }
        let mut fields = HeaderMap::new();
        for (name, value) in &reply.fields {
            fields.insert(*name, value.parse().unwrap());
        }
        let mut response = Response::builder();
        Ok(match self.protocol {
            Protocol::HttpProtobuf => {
                response = response.status(if reply.status == 0 { 200 } else { reply.status });
                response.headers_mut().unwrap().extend(fields);
                response.body(Full::new(reply.message.into()).boxed()).unwrap()
            }
            Protocol::Grpc => {
                fields.insert("grpc-status", HeaderValue::from(reply.status));
                let mut frame = vec![0];
                frame.extend((reply.message.len() as u32).to_be_bytes());
                frame.extend(reply.message);
                let body = Full::new(Bytes::from(frame)).with_trailers(async { Some(Ok(fields)) });
                response.header("content-type", "application/grpc").body(body.boxed()).unwrap()
            }
        })
    }
}

fn message(protocol: Protocol, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let (compressed, body) = match protocol {
        Protocol::HttpProtobuf => (headers.get("content-encoding").is_some_and(|coding| coding == "gzip"), body),
        Protocol::Grpc => (body[0] == 1, &body[5..]),
    };
    if !compressed {
        return body.to_vec();
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut plain).unwrap();
    plain
}
