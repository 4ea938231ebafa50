//! OTLP/gRPC over one channel that reconnects automatically.

use std::error::Error;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use super::connect::CollectorConnector;
use super::payload::{ExportPayload, ExportResponse, OtlpSignal};
use crate::config::otlp::ExporterConfig;
use crate::measure::time::Gap;

/// gRPC client of one collector.
pub(super) struct GrpcTransport {
    connector: CollectorConnector,
    origin: String,
    metadata: MetadataMap,
    gzip: bool,
    /// Created with the first request, because it needs a runtime. It is kept only after a reply. Without one, the host
    /// may be gone, which the kernel would detect only after about 15 minutes.
    channel: Option<Channel>,
}

impl GrpcTransport {
    pub(super) fn new(exporter: &ExporterConfig, connector: CollectorConnector) -> Self {
        let mut metadata = MetadataMap::new();
        for (name, value) in exporter.headers.iter() {
            // A `-bin` name would need a base64 value, which environment variables do not provide.
            if let (Ok(name), Ok(value)) = (MetadataKey::from_bytes(name.as_bytes()), MetadataValue::try_from(value)) {
                metadata.insert(name, value);
            }
        }
        let scheme = if exporter.endpoint.tls { "https" } else { "http" };
        let origin = format!("{scheme}://{}", exporter.endpoint.authority());
        Self { connector, origin, metadata, gzip: exporter.gzip, channel: None }
    }

    /// Sends once. Dropping the future closes the connection.
    pub(super) async fn send(&mut self, payload: &ExportPayload) -> ExportResponse {
        let channel = match self.channel.take().map_or_else(|| self.connect(), Ok) {
            Ok(channel) => channel,
            Err(error) => return ExportResponse::Rejected(error.to_string()),
        };
        let mut client = tonic::client::Grpc::new(channel.clone());
        if self.gzip {
            client = client.send_compressed(CompressionEncoding::Gzip);
        }
        let method = PathAndQuery::from_static(match payload.signal {
            OtlpSignal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            OtlpSignal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            OtlpSignal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        });
        let mut request = Request::new(payload.message.clone());
        request.metadata_mut().clone_from(&self.metadata);
        let ready = client.ready().await.map_err(|error| Status::from_error(error.into()));
        let response = match ready {
            Ok(()) => client.unary(request, method, RawBytesCodec).await,
            Err(status) => Err(status),
        };
        self.channel = Some(channel);
        match response {
            Ok(response) => payload.parse_success(response.get_ref()),
            Err(status) => response_of_status(&status),
        }
    }

    fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(self.origin.clone())?.user_agent(super::USER_AGENT)?;
        // The connector handles TLS itself, so the channel bypasses tonic's connection setup.
        Ok(Channel::new(self.connector.clone(), endpoint))
    }
}

/// Codec for messages that are already encoded.
struct RawBytesCodec;

impl Codec for RawBytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawBytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for RawBytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Maps a gRPC status by <https://opentelemetry.io/docs/specs/otlp/#failures>.
fn response_of_status(status: &Status) -> ExportResponse {
    let retry_after = retry_after(status);
    let causes = || std::iter::successors(status.source(), |cause| (*cause).source());
    let broken = causes().any(is_transport);
    let again = match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => true,
        Code::ResourceExhausted => retry_after.is_some(),
        _ => broken,
    };
    let why = match causes().last() {
        // An HTTP/1.1 reply appears to the frame parser as this error.
        Some(cause) if broken && cause.to_string().ends_with("frame with invalid size") => format!(
            "{cause}; a collector that speaks HTTP, as on port 4318, needs OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        ),
        // There was no reply: tonic's own message omits the cause.
        Some(cause) if broken => cause.to_string(),
        _ => format!("the collector answered {:?}: {}", status.code(), status.message()),
    };
    if again { ExportResponse::Retryable { retry_after, why } } else { ExportResponse::Rejected(why) }
}

fn is_transport(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<tonic::transport::Error>() || cause.is::<hyper::Error>() || cause.is::<std::io::Error>()
}

/// The time after which the collector wants the next attempt.
fn retry_after(status: &Status) -> Option<Gap> {
    status.get_details_retry_info()?.retry_delay.map(Gap::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::otlp::{Endpoint, ExportHeaders, Protocol};

    #[tokio::test]
    async fn a_collector_that_is_not_there_is_told_by_its_cause() {
        let exporter = ExporterConfig {
            endpoint: Endpoint { tls: false, host: "127.0.0.1".to_owned(), port: 1, target: "/".to_owned() },
            protocol: Protocol::Grpc,
            headers: ExportHeaders::default(),
            timeout: Gap::from_millis(1_000),
            gzip: false,
            ca: None,
            identity: None,
        };
        let mut grpc = GrpcTransport::new(&exporter, CollectorConnector::new(&exporter));
        let payload = ExportPayload { signal: OtlpSignal::Traces, message: Bytes::new() };
        let ExportResponse::Retryable { why, .. } = grpc.send(&payload).await else { panic!() };
        assert_eq!(why, "Connection refused (os error 111)");
    }

    #[test]
    fn statuses_are_retried_as_the_protocol_says() {
        let again = |status: &Status| matches!(response_of_status(status), ExportResponse::Retryable { .. });
        for code in [Code::Cancelled, Code::DeadlineExceeded, Code::Aborted, Code::Unavailable, Code::DataLoss] {
            assert!(again(&Status::new(code, "")), "{code:?}");
        }
        for code in [Code::InvalidArgument, Code::Unauthenticated, Code::Unimplemented, Code::ResourceExhausted] {
            assert!(!again(&Status::new(code, "")), "{code:?}");
        }
        let exhausted = |details: &[u8]| Status::with_details(Code::ResourceExhausted, "", details.to_vec().into());
        // A `google.rpc.Status` with a delay of 2.5 s, as a collector writes it.
        let delay = b"\x1a\x36\x0a\x28type.googleapis.com/google.rpc.RetryInfo\
            \x12\x0a\x0a\x08\x08\x02\x10\x80\xca\xb5\xee\x01";
        let ExportResponse::Retryable { retry_after, .. } = response_of_status(&exhausted(delay)) else { panic!() };
        assert_eq!(retry_after, Some(Gap::from_millis(2_500)));
        assert!(!again(&exhausted(b"nonsense")));
    }
}
