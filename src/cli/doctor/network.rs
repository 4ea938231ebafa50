//! Checks of ports, time stamps, the upstream and the collectors.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::io::{AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

use super::finding::{DoctorFinding, FindingStatus};
use crate::clock::Clock;
use crate::config::ProxyConfig;
use crate::config::otlp::OtlpConfig;
use crate::export::otlp::connect_collector;
use crate::measure::record::StampSource;
use crate::measure::time::Gap;
use crate::net::dial::Dialer;
use crate::net::io::{MaybeTlsStream, enable_rx_timestamps};
use crate::net::tls::describe_error;
use crate::proxy::{accept_foreign_addresses, engine_metrics, upstream_tls};
use crate::storage::{Bucket, StorageError};

/// Tries for a time stamp: the kernel turns them on shortly after it was asked.
const STAMP_TRIES: usize = 20;
/// Pause between two tries.
const STAMP_PAUSE: Gap = Gap::from_millis(10);

/// Whether the proxy can listen.
pub(super) fn ports(config: &ProxyConfig) -> Vec<DoctorFinding> {
    vec![port("listen", config.listen, ""), admin_port(config)]
}

fn admin_port(config: &ProxyConfig) -> DoctorFinding {
    let (address, access) = (config.admin, &config.admin_access);
    if access.is_protected() {
        return port("admin", address, ", and asks for a token or a client certificate");
    }
    match port("admin", address, "") {
        found if found.status == FindingStatus::Ok && !address.ip().is_loopback() => DoctorFinding::warning(
            "admin",
            format!("{address} is free, and other machines can reach it: it has no access control"),
            "set admin_token_file, or let only Prometheus and the kubelet reach the port (NetworkPolicy, firewall)",
        ),
        found => found,
    }
}

fn port(setting: &'static str, address: SocketAddr, more: &str) -> DoctorFinding {
    match TcpListener::bind(address) {
        Ok(_) => DoctorFinding::ok(setting, format!("{address} is free{more}")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => DoctorFinding::warning(
            setting,
            format!("{address} is in use"),
            format!("none if the proxy runs already; else stop what listens there, or change {setting}"),
        ),
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => format!(
                    "change {setting}; or give the proxy CAP_NET_BIND_SERVICE (AmbientCapabilities of a unit), or the \
                     socket (systemd's .socket unit)"
                ),
                _ => format!("change {setting}"),
            };
            DoctorFinding::problem(setting, format!("cannot listen on {address}: {error}"), remedy)
        }
    }
}

/// Whether the kernel stamps received bytes.
pub(super) async fn time_stamps() -> DoctorFinding {
    const CHECK: &str = "time stamps";
    enable_rx_timestamps();
    match source_of_stamps().await {
        Ok(StampSource::Kernel) => DoctorFinding::ok(CHECK, "the kernel stamps each token on arrival"),
        Ok(StampSource::Read) => DoctorFinding::warning(
            CHECK,
            "the kernel stamps no received bytes, so a token's time is that of its read: up to milliseconds later on a \
             busy machine",
            "use Linux itself: gVisor and some sandboxes have no SO_TIMESTAMPING",
        ),
        Err(error) => {
            DoctorFinding::warning(CHECK, format!("cannot be tried on loopback: {error}"), "bring up the interface lo")
        }
    }
}

/// Sends bytes over loopback until the kernel has stamped some.
async fn source_of_stamps() -> io::Result<StampSource> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let mut stream = MaybeTlsStream::plain(TcpStream::connect(listener.local_addr()?).await?);
    let (mut peer, _) = listener.accept().await?;
    for _ in 0..STAMP_TRIES {
        peer.write_all(b"x").await?;
        let mut buffer = [0; 16];
        let arrival = poll_fn(|cx| stream.poll_fill(cx, &mut ReadBuf::new(&mut buffer))).await?;
        if arrival.source == StampSource::Kernel {
            return Ok(StampSource::Kernel);
        }
        Clock::Monotonic.sleep(STAMP_PAUSE).await;
    }
    Ok(StampSource::Read)
}

/// Whether a connection to the inference server can be opened, TLS included. Sends no request.
pub(super) async fn upstream(config: &ProxyConfig) -> DoctorFinding {
    const CHECK: &str = "upstream";
    let upstream = &config.upstream;
    let Some(server) = upstream.server() else { return transparent() };
    let connected = async {
        let name = upstream.server_name.as_deref().unwrap_or(&server.host);
        let tls = upstream_tls(config).map_err(|error| error.to_string())?;
        let dialer = Dialer::new(&*server.host, server.port, Gap::ZERO);
        let dialed = dialer.dial(tls.map(|tls| (Arc::new(tls), name))).await;
        dialed.map(drop).map_err(|error| describe_error(error, "upstream_ca"))
    };
    match Clock::Monotonic.timeout(upstream.connect_timeout, connected).await {
        Some(Ok(())) => DoctorFinding::ok(CHECK, format!("{server} accepts connections")),
        Some(Err(error)) => DoctorFinding::problem(
            CHECK,
            format!("cannot connect to {server}: {error}"),
            "start the inference server, or correct upstream",
        ),
        None => DoctorFinding::problem(
            CHECK,
            format!("no connection to {server} within {}", upstream.connect_timeout),
            "check the network and its policies, or raise upstream_connect_timeout",
        ),
    }
}

/// Which redirected connections the proxy can take in transparent mode.
fn transparent() -> DoctorFinding {
    const CHECK: &str = "transparent";
    let listener = TcpListener::bind(("127.0.0.1", 0));
    match listener.and_then(|listener| accept_foreign_addresses(&listener)) {
        Ok(()) => DoctorFinding::ok(CHECK, "connections of REDIRECT and of TPROXY can be taken"),
        Err(error) => DoctorFinding::warning(
            CHECK,
            format!("only connections of REDIRECT can be taken, not those of TPROXY: {error}"),
            "none with REDIRECT; for TPROXY, give the proxy CAP_NET_ADMIN",
        ),
    }
}

/// Whether the page of `engine_metrics` has figures, if it is set.
pub(super) async fn engine_page(config: &ProxyConfig) -> Option<DoctorFinding> {
    const CHECK: &str = "engine metrics";
    let source = engine_metrics(config)?;
    Some(match source.scrape(&Clock::Monotonic).await {
        Ok(figures) => DoctorFinding::ok(CHECK, format!("{} has {} known figures", source.url, figures.len())),
        Err(error) => DoctorFinding::warning(
            CHECK,
            format!("{}: {error}", source.url),
            "start the engine, or correct engine_metrics: it names the page that Prometheus scrapes",
        ),
    })
}

/// Whether each OTLP collector can be reached.
pub(super) async fn collectors(otlp: &OtlpConfig) -> Vec<DoctorFinding> {
    const CHECK: &str = "collector";
    let mut findings = Vec::new();
    for exporter in otlp.exporters() {
        let endpoint = exporter.endpoint.origin();
        findings.push(match connect_collector(exporter, &Clock::Monotonic).await {
            Ok(()) => DoctorFinding::ok(CHECK, format!("{endpoint} accepts connections")),
            Err(error) => DoctorFinding::problem(
                CHECK,
                format!("cannot connect to {endpoint}: {error}"),
                "start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT",
            ),
        });
    }
    if findings.is_empty() {
        findings.push(DoctorFinding::skipped(CHECK, "no OTLP endpoint is configured"));
    }
    findings
}

/// Whether the bucket of the capture answers, if there is one. Only lists, and writes nothing.
pub(super) fn bucket(config: &ProxyConfig) -> Option<DoctorFinding> {
    const CHECK: &str = "bucket";
    let url = config.capture.bucket()?;
    Some(match Bucket::open(url).and_then(|bucket| bucket.probe(url.key())) {
        Ok(()) => DoctorFinding::ok(CHECK, format!("{url} answers, and its objects may be listed")),
        Err(StorageError::Denied(_)) => DoctorFinding::warning(
            CHECK,
            format!("{url} answers, and its objects may not be listed"),
            "none if the credentials may put and get objects; else allow it in the bucket's policy",
        ),
        Err(error @ StorageError::Failed(_)) => DoctorFinding::problem(
            CHECK,
            format!("{url}: {error}"),
            "check the network and the storage's endpoint (AWS_ENDPOINT_URL, or its equal), or start the storage",
        ),
        Err(error) => DoctorFinding::problem(
            CHECK,
            format!("{url}: {error}"),
            "correct capture, or the credentials in the environment",
        ),
    })
}
