//! Exporter settings of one signal. Each variable exists for all signals and for each one.

use std::fmt;
use std::path::PathBuf;

use super::endpoint::Endpoint;
use super::environment::{OtelEnvironment, parse_name};
use super::key_value::parse_pairs;
use crate::config::proxy::ClientIdentity;
use crate::measure::time::Gap;

/// Exporter settings of one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExporterConfig {
    /// The collector's address.
    pub endpoint: Endpoint,
    /// Transport and encoding.
    pub protocol: Protocol,
    /// Headers of every request.
    pub headers: ExportHeaders,
    /// Timeout of one request. 10 seconds, as specified.
    pub timeout: Gap,
    /// True if requests are compressed. Off by default, as specified.
    pub gzip: bool,
    /// Certificates to trust instead of the system's, as PEM.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub identity: Option<ClientIdentity>,
}

/// OTLP transport and encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP/gRPC.
    Grpc,
    /// OTLP/HTTP with protobuf bodies; the default, as specified.
    HttpProtobuf,
}

impl Protocol {
    /// Value of `OTEL_EXPORTER_OTLP_PROTOCOL`.
    fn name(self) -> &'static str {
        PROTOCOLS.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

/// Headers of export requests. Their values are credentials: `Debug` prints names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExportHeaders(Vec<(String, String)>);

impl ExportHeaders {
    /// Takes (name, value) pairs, names in lower case.
    pub fn new(headers: Vec<(String, String)>) -> Self {
        Self(headers)
    }

    /// Iterates over (name, value), names in lower case.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    fn names(&self) -> String {
        self.0.iter().map(|(name, _)| &**name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Debug for ExportHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Headers({})", self.names())
    }
}

const DEFAULT_TIMEOUT: Gap = Gap::from_millis(10_000);

impl ExporterConfig {
    /// Reads the settings of `signal`; `None` without an endpoint.
    pub(super) fn for_signal(environment: &mut OtelEnvironment<'_>, signal: &str) -> Option<Self> {
        let names =
            |option: &str| [format!("OTEL_EXPORTER_OTLP_{signal}_{option}"), format!("OTEL_EXPORTER_OTLP_{option}")];
        let protocol = protocol(environment, &names("PROTOCOL"));
        let endpoint = match protocol {
            Protocol::Grpc => {
                let plain_text = environment.switch(&names("INSECURE"));
                environment.first(&names("ENDPOINT"), |text| grpc_endpoint(text, plain_text))
            }
            Protocol::HttpProtobuf => {
                let [own, all] = names("ENDPOINT");
                let path = format!("v1/{}", signal.to_ascii_lowercase());
                let endpoint = environment.first(&[own], |text| Endpoint::parse(text, None));
                endpoint.or_else(|| environment.first(&[all], |text| Endpoint::parse(text, Some(&path))))
            }
        };
        let endpoint = endpoint?;
        warn_of_other_port(environment, &endpoint, protocol);
        Some(Self {
            endpoint,
            protocol,
            headers: headers(environment, &names("HEADERS")),
            timeout: environment.timeout(&names("TIMEOUT")).unwrap_or(DEFAULT_TIMEOUT),
            gzip: environment.one_of(&names("COMPRESSION"), &[("gzip", true), ("none", false)]).unwrap_or(false),
            ca: file(environment, &names("CERTIFICATE")),
            identity: identity(environment, &names("CLIENT_CERTIFICATE"), &names("CLIENT_KEY")),
        })
    }
}

impl fmt::Display for ExporterConfig {
    /// A short description; prints header names only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.protocol.name(), self.endpoint)?;
        if self.headers != ExportHeaders::default() {
            write!(f, " with headers {}", self.headers.names())
        } else {
            Ok(())
        }
    }
}

const PROTOCOLS: [(&str, Protocol); 2] = [("grpc", Protocol::Grpc), ("http/protobuf", Protocol::HttpProtobuf)];

/// Warns of a port that is registered for the other protocol: a collector accepts the connection, and takes nothing.
fn warn_of_other_port(environment: &mut OtelEnvironment<'_>, endpoint: &Endpoint, protocol: Protocol) {
    let of_port = match endpoint.port {
        4317 => "grpc",
        4318 => "http/protobuf",
        _ => return,
    };
    if of_port != protocol.name() {
        environment.warn(format!(
            "the OTLP endpoint {} has the port of {of_port}, and the protocol is {}; remedy: \
             OTEL_EXPORTER_OTLP_PROTOCOL={of_port}, or the other port",
            endpoint.origin(),
            protocol.name()
        ));
    }
}

fn protocol(environment: &mut OtelEnvironment<'_>, names: &[String]) -> Protocol {
    let json = "http/json is not spoken here; http/protobuf goes to the same endpoints";
    let given = environment.first(names, |text| match text.to_ascii_lowercase().as_str() {
        "http/json" => Err(json.to_owned()),
        _ => parse_name(text, &PROTOCOLS),
    });
    given.unwrap_or(Protocol::HttpProtobuf)
}

/// True if a signal's exporter list contains OTLP. Other known exporters have no effect: Prometheus can always scrape
/// the admin address.
pub(super) fn is_selected(environment: &mut OtelEnvironment<'_>, name: &str) -> bool {
    let Some(list) = environment.text(name) else { return true };
    let (mut otlp, mut known) = (false, false);
    for exporter in list.split(',').map(|exporter| exporter.trim().to_ascii_lowercase()) {
        match exporter.as_str() {
            "otlp" => (otlp, known) = (true, true),
            "none" => known = true,
            "prometheus" if name == "OTEL_METRICS_EXPORTER" => known = true,
            other => environment
                .warn(format!("{name}: `{}` is not an exporter here; otlp and none are", other.escape_debug())),
        }
    }
    otlp || !known
}

/// gRPC also accepts `host:port`, with TLS unless `plain_text`.
fn grpc_endpoint(text: &str, plain_text: bool) -> Result<Endpoint, String> {
    let scheme = if plain_text { "http" } else { "https" };
    if text.contains("://") {
        Endpoint::parse(text, None)
    } else {
        Endpoint::parse(&format!("{scheme}://{text}"), None)
    }
}

fn headers(environment: &mut OtelEnvironment<'_>, names: &[String]) -> ExportHeaders {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_header = |(name, value): &(String, String)| name.bytes().all(is_name) && !value.contains(char::is_control);
    let given = environment.first(names, |text| {
        let wrong = |at: usize| format!("its entry {at} is not name=value with percent-encoding");
        let mut headers = parse_pairs(text).map_err(wrong)?;
        if let Some(at) = headers.iter().position(|header| !is_header(header)) {
            return Err(wrong(at + 1));
        }
        headers.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
        Ok(ExportHeaders(headers))
    });
    given.unwrap_or_default()
}

fn file(environment: &mut OtelEnvironment<'_>, names: &[String]) -> Option<PathBuf> {
    environment.first(names, |path| Ok(path.into()))
}

fn identity(environment: &mut OtelEnvironment<'_>, cert: &[String], key: &[String]) -> Option<ClientIdentity> {
    match (file(environment, cert), file(environment, key)) {
        (Some(cert), Some(key)) => Some(ClientIdentity { cert, key }),
        (None, None) => None,
        _ => {
            let [cert, key] = [cert, key].map(|names| names.last().map_or("", |name| name));
            environment.warn(format!("{cert} and {key} need each other; the one that is set is ignored"));
            None
        }
    }
}
