//! HTTP/2 and TLS by hyper and rustls, on a runtime of the test's own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Empty};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use streamgauge::net::tls::{self, ClientCertificates, TlsIdentity};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Certificates for 127.0.0.1 in a folder of their own.
pub struct Pki {
    pub folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        std::fs::write(folder.path().join("ca.key"), issuer.key().serialize_pem()).unwrap();
        let pki = Self { folder, issuer };
        pki.issue("server", &["127.0.0.1", "localhost"]);
        pki.issue("client", &["client.test"]);
        pki
    }

    /// Writes `name.pem` and `name.key`.
    pub fn issue(&self, name: &str, names: &[&str]) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub fn text(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }
}

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// An HTTP/2 server that answers with what `answer` makes of each request. Runs on a thread of its own.
pub fn upstream<F>(tls: Option<rustls::ServerConfig>, answer: F) -> SocketAddr
where
    F: Fn(Request<Bytes>, HeaderMap) -> (Response<Vec<Bytes>>, Option<HeaderMap>) + Clone + Send + 'static,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let acceptor = tls.map(|tls| tokio_rustls::TlsAcceptor::from(Arc::new(tls)));
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (answer, acceptor) = (answer.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let service = service_fn(move |request: Request<Incoming>| {
                        let answer = answer.clone();
                        async move { Ok::<_, Infallible>(answered(request, answer).await) }
                    });
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ended = match acceptor {
                        None => server.serve_connection(TokioIo::new(socket), service).await.is_ok(),
                        Some(acceptor) => {
                            let stream = acceptor.accept(socket).await.unwrap();
                            server.serve_connection(TokioIo::new(stream), service).await.is_ok()
                        }
                    };
                });
            }
        });
    });
    receiver.recv().unwrap()
}

/// An answer of no pieces and no trailers ends with its head.
async fn answered<F>(request: Request<Incoming>, answer: F) -> Response<Either<Channel<Bytes>, Empty<Bytes>>>
where
    F: Fn(Request<Bytes>, HeaderMap) -> (Response<Vec<Bytes>>, Option<HeaderMap>),
{
    let (parts, body) = request.into_parts();
    let collected = body.collect().await.unwrap();
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let (response, ending) = answer(Request::from_parts(parts, collected.to_bytes()), trailers);
    let (parts, pieces) = response.into_parts();
    if pieces.is_empty() && ending.is_none() {
        return Response::from_parts(parts, Either::Right(Empty::new()));
    }
    let (mut sender, body) = Channel::new(16);
    tokio::spawn(async move {
        for piece in pieces {
            sender.send_data(piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        if let Some(trailers) = ending {
            sender.send(Frame::trailers(trailers)).await.unwrap();
        }
    });
    Response::from_parts(parts, Either::Left(body))
}

/// A client's view of a response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
    /// The head ended the stream.
    pub ended_with_head: bool,
    /// The stream was reset.
    pub broken: bool,
}

/// One request over HTTP/2, in clear by prior knowledge or over TLS that agrees on it.
pub fn request(
    addr: SocketAddr,
    tls: Option<rustls::ClientConfig>,
    request: Request<Bytes>,
    trailers: Option<HeaderMap>,
) -> Reply {
    runtime().block_on(async move {
        let socket = TcpStream::connect(addr).await.unwrap();
        match tls {
            None => exchange(TokioIo::new(socket), request, trailers).await,
            Some(tls) => {
                let name = ServerName::try_from("127.0.0.1").unwrap();
                let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, socket).await.unwrap();
                assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                exchange(TokioIo::new(stream), request, trailers).await
            }
        }
    })
}

/// A connection in clear that stays open, on a thread of its own.
pub struct KeptConnection {
    requests: tokio::sync::mpsc::Sender<(Request<Bytes>, tokio::sync::oneshot::Receiver<()>)>,
}

impl KeptConnection {
    pub fn connect(addr: SocketAddr) -> Self {
        let (requests, mut made) = tokio::sync::mpsc::channel::<(Request<Bytes>, _)>(1);
        std::thread::spawn(move || {
            runtime().block_on(async move {
                let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
                let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await;
                let (mut sender, connection) = handshake.unwrap();
                tokio::spawn(connection);
                while let Some((request, given_up)) = made.recv().await {
                    let reply = sender.send_request(request.map(http_body_util::Full::new));
                    tokio::spawn(async move {
                        let whole = async { reply.await.unwrap().into_body().collect().await };
                        tokio::select! {
                            _whole = whole => {}
                            _given_up = given_up => {}
                        }
                    });
                }
            });
        });
        Self { requests }
    }

    /// A request whose stream is reset when what this returns is dropped.
    pub fn request(&self, path: &str, body: &str) -> tokio::sync::oneshot::Sender<()> {
        let (hold, given_up) = tokio::sync::oneshot::channel();
        let request = Request::post(format!("http://proxy.test{path}")).body(Bytes::from(body.to_owned())).unwrap();
        self.requests.blocking_send((request, given_up)).unwrap();
        hold
    }
}

async fn exchange<T>(io: T, request: Request<Bytes>, trailers: Option<HeaderMap>) -> Reply
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let (parts, payload) = request.into_parts();
    let (mut body, channel) = Channel::<Bytes>::new(4);
    tokio::spawn(async move {
        for piece in payload.chunks(16_000) {
            body.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        if let Some(trailers) = trailers {
            body.send(Frame::trailers(trailers)).await.unwrap();
        }
    });
    let response = sender.send_request(Request::from_parts(parts, channel)).await.unwrap();
    let (parts, mut body) = response.into_parts();
    let mut reply = Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: Bytes::new(),
        trailers: None,
        ended_with_head: body.is_end_stream(),
        broken: false,
    };
    let mut payload = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => match frame.into_data() {
                Ok(data) => payload.extend_from_slice(&data),
                Err(frame) => reply.trailers = frame.into_trailers().ok(),
            },
            Err(_) => {
                reply.broken = true;
                break;
            }
        }
    }
    reply.body = payload.into();
    reply
}

/// The client's side of TLS that trusts `pki`.
pub fn client_config(pki: &Pki, alpn: &[&str]) -> rustls::ClientConfig {
    tls::client(Some(&pki.path("ca.pem")), None, alpn).unwrap()
}

/// As [`client_config`], with a certificate.
pub fn client_config_with_certificate(pki: &Pki, alpn: &[&str]) -> rustls::ClientConfig {
    let (cert, key): (PathBuf, PathBuf) = (pki.path("client.pem"), pki.path("client.key"));
    let identity = TlsIdentity { cert: &cert, key: &key };
    tls::client(Some(&pki.path("ca.pem")), Some(identity), alpn).unwrap()
}

/// The server's side of TLS.
pub fn server_config(pki: &Pki, client_ca: Option<&Path>) -> rustls::ServerConfig {
    let (cert, key): (PathBuf, PathBuf) = (pki.path("server.pem"), pki.path("server.key"));
    let clients = client_ca.map_or(ClientCertificates::Ignored, ClientCertificates::Required);
    tls::server(TlsIdentity { cert: &cert, key: &key }, clients, &["h2", "http/1.1"]).unwrap()
}
