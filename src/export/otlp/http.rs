//! OTLP/HTTP with protobuf bodies over one kept-alive connection.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};

use super::connect::CollectorConnector;
use super::payload::{ExportPayload, ExportResponse};
use crate::config::otlp::ExporterConfig;
use crate::measure::time::Gap;

/// Maximum size of a reply, in bytes. Normal replies are short.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// HTTP client of one collector.
pub(super) struct HttpTransport {
    connector: CollectorConnector,
    target: String,
    headers: HeaderMap,
    gzip: bool,
    /// The kept-alive connection.
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl HttpTransport {
    pub(super) fn new(exporter: &ExporterConfig, connector: CollectorConnector) -> Self {
        let mut headers = HeaderMap::new();
        let own = [
            (header::HOST, exporter.endpoint.authority()),
            (header::CONTENT_TYPE, "application/x-protobuf".to_owned()),
            (header::USER_AGENT, super::USER_AGENT.to_owned()),
        ];
        let given = exporter.headers.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.to_owned())));
        for (name, value) in own.into_iter().chain(given) {
            let name: HeaderName = name;
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        if exporter.gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Self { connector, target: exporter.endpoint.target.clone(), headers, gzip: exporter.gzip, connection: None }
    }

    /// Sends once. Dropping the future closes the connection.
    pub(super) async fn send(&mut self, payload: &ExportPayload) -> ExportResponse {
        match self.exchange(payload).await {
            Ok(answer) => answer,
            Err(error) => {
                let why = describe(&*error);
                // A gRPC server sends before it receives a request.
                let is_other = why.contains("unexpected message") || why.contains("invalid HTTP version");
                let remedy = "; a collector that speaks gRPC, as on port 4317, needs OTEL_EXPORTER_OTLP_PROTOCOL=grpc";
                ExportResponse::retryable(if is_other { why + remedy } else { why })
            }
        }
    }

    async fn exchange(
        &mut self,
        payload: &ExportPayload,
    ) -> Result<ExportResponse, Box<dyn std::error::Error + Send + Sync>> {
        let body = if self.gzip { gzipped(&payload.message)?.into() } else { payload.message.clone() };
        let mut request = http::Request::builder().method(Method::POST).uri(self.target.as_str());
        if let Some(headers) = request.headers_mut() {
            headers.clone_from(&self.headers);
        }
        let request = request.body(Full::new(body))?;
        let mut previous = self.connection.take();
        if let Some(connection) = &mut previous
            && connection.ready().await.is_err()
        {
            previous = None;
        }
        let mut connection = match previous {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let response = connection.send_request(request).await?;
        let answer = read(payload, response).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let io = self.connector.clone().connect().await?;
        let (mut sender, connection) = handshake(io).await?;
        // The sender receives the connection's errors too.
        tokio::spawn(async move { connection.await.is_ok() });
        sender.ready().await?;
        Ok(sender)
    }
}

async fn read(
    payload: &ExportPayload,
    response: http::Response<Incoming>,
) -> Result<ExportResponse, Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await?.to_bytes();
    let why = || format!("the collector answered {}", head.status);
    Ok(match head.status {
        status if status.is_success() => payload.parse_success(&body),
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            let after = head.headers.get(header::RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
            let retry_after = after.map(|seconds: u64| Gap::from_millis(seconds.saturating_mul(1_000)));
            ExportResponse::Retryable { retry_after, why: why() }
        }
        _ => ExportResponse::Rejected(why()),
    })
}

fn gzipped(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

/// Formats an error with its chain of causes.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
