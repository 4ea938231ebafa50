//! The HTTP client of object storage, on the libraries that the proxy has already.
//!
//! One request at a time per connection, HTTP/1. A few idle connections are kept. A request that an idle connection did
//! not send, because the server closed it, is sent on another. All other failures are the caller's to retry.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use http::header::HOST;
use http::uri::{Parts, Scheme};
use http::{HeaderValue, Uri};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};

use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::net::byte_stream;
use crate::net::tls;

/// Connections that are kept while they are idle.
const MAX_IDLE_CONNECTIONS: usize = 4;
const CONNECT_TIMEOUT: Gap = Gap::from_millis(5_000);
const TRUST: &str = "SSL_CERT_FILE";

/// Makes the client of a bucket.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Client::default()))
    }
}

type Origin = (Scheme, String, u16);
type Connection = SendRequest<HttpRequestBody>;

#[derive(Default)]
struct Client {
    tls: OnceLock<Arc<rustls::ClientConfig>>,
    idle: Mutex<Vec<(Origin, Connection)>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    fn take_idle(&self, origin: &Origin) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(_, connection)| !connection.is_closed());
        // One whose last body is still being read is not ready.
        let at = idle.iter().position(|(known, connection)| known == origin && connection.is_ready())?;
        Some(idle.swap_remove(at).1)
    }

    fn keep(&self, origin: Origin, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() == MAX_IDLE_CONNECTIONS {
            idle.remove(0);
        }
        idle.push((origin, connection));
    }

    fn tls(&self) -> Result<Arc<rustls::ClientConfig>, tls::TlsError> {
        match self.tls.get() {
            Some(config) => Ok(Arc::clone(config)),
            None => {
                let config = Arc::new(tls::client(None, None, &["http/1.1"])?);
                Ok(Arc::clone(self.tls.get_or_init(|| config)))
            }
        }
    }

    async fn connect(&self, origin: &Origin) -> io::Result<Connection> {
        let (scheme, host, port) = origin;
        let tls = (*scheme == Scheme::HTTPS).then(|| self.tls()).transpose().map_err(io::Error::other)?;
        let connected = Clock::Monotonic.timeout(CONNECT_TIMEOUT, byte_stream::connect(host, *port, tls)).await;
        let place = |what: String| io::Error::other(format!("cannot connect to {host}:{port}: {what}"));
        let stream = match connected {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => return Err(place(tls::describe_error(error, TRUST))),
            None => return Err(place(format!("no connection within {CONNECT_TIMEOUT}"))),
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        // It ends with the last handle to it, or with the server.
        tokio::spawn(async move { _ = connection.await });
        Ok(sender)
    }
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let invalid = || HttpError::new(HttpErrorKind::Unknown, io::Error::other("the URL of the storage has no host"));
        let (mut parts, body) = request.into_parts();
        let Parts { scheme, authority, path_and_query, .. } = parts.uri.into_parts();
        let (scheme, authority) = (scheme.unwrap_or(Scheme::HTTPS), authority.ok_or_else(invalid)?);
        let port = authority.port_u16().unwrap_or(if scheme == Scheme::HTTPS { 443 } else { 80 });
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let named = authority.as_str().rsplit('@').next().unwrap_or_default();
        parts.headers.entry(HOST).or_insert(HeaderValue::from_str(named).map_err(|_| invalid())?);
        parts.uri = path_and_query.map_or_else(|| Uri::from_static("/"), Uri::from);
        let origin = (scheme, host, port);
        let mut request = HttpRequest::from_parts(parts, body);
        while let Some(mut connection) = self.take_idle(&origin) {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(self.answer(origin, connection, response)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(failed(error.into_error())),
                },
            }
        }
        let connected = self.connect(&origin).await;
        let mut connection = connected.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?;
        let response = connection.send_request(request).await.map_err(failed)?;
        Ok(self.answer(origin, connection, response))
    }
}

impl Client {
    fn answer(
        &self,
        origin: Origin,
        connection: Connection,
        response: http::Response<hyper::body::Incoming>,
    ) -> HttpResponse {
        self.keep(origin, connection);
        response.map(|body| HttpResponseBody::new(body.map_err(failed)))
    }
}

/// A connection that broke; hyper's own text names the stage, and the innermost cause the reason.
fn failed(error: hyper::Error) -> HttpError {
    let mut cause: &dyn Error = &error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = match cause.to_string() {
        inner if inner == error.to_string() => inner,
        inner => format!("{error}: {inner}"),
    };
    let kind = if error.is_timeout() { HttpErrorKind::Timeout } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, io::Error::other(format!("the connection to the storage failed: {text}")))
}
