//! Targets of requests, and new connections to them.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use rustls::ClientConfig;

use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::net::dial::Dialer;
use crate::net::io::MaybeTlsStream;
use crate::replay::request::template::is_request_path;

/// Time to live of a resolved address.
const DNS_CACHE_TTL: Gap = Gap::from_millis(30_000);

/// A server's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetUrl {
    /// True if the scheme is `https`.
    pub tls: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Port number.
    pub port: u16,
    /// Path prefix of all requests, without a trailing `/`.
    pub base: String,
}

impl FromStr for TargetUrl {
    type Err = &'static str;

    /// The error names the expected form and does not quote the text, which may hold credentials.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a URL, as in http://127.0.0.1:8000 or https://host/prefix";
        let uri: http::Uri = text.parse().map_err(|_| EXPECTED)?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(EXPECTED),
        };
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("expected a URL without credentials; give them with --header or --api-key-env");
        }
        // `Uri` drops the fragment.
        if uri.query().is_some() || text.contains('#') {
            return Err("expected a URL without a query or a fragment");
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(EXPECTED)?;
        if uri.port_u16().is_none() && uri.authority().is_some_and(|authority| authority.as_str() != host) {
            return Err("expected a port from 1 to 65535 behind the host, or none");
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        // Users paste the base URL of OpenAI clients, which ends with the version; each dialect's path has its own.
        let base = uri.path().trim_end_matches('/');
        if is_request_path(base) {
            return Err(
                "expected the server's URL without a request's path, such as /v1/chat/completions: every dialect \
                        has its own (--dialect)",
            );
        }
        let base = base.strip_suffix("/v1").unwrap_or(base).to_owned();
        Ok(Self { tls, host, port, base })
    }
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.authority(), self.base)
    }
}

impl TargetUrl {
    /// Host and port, with IPv6 addresses in brackets.
    pub fn authority(&self) -> String {
        match self.host.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Opens connections to one target, for one thread.
pub(in crate::replay) struct TargetConnector {
    host: String,
    dialer: Dialer,
    tls: Option<Arc<ClientConfig>>,
    timeout: Gap,
}

impl TargetConnector {
    /// `timeout` limits connection, name resolution and TLS handshake together.
    pub(in crate::replay) fn new(target: TargetUrl, tls: Option<Arc<ClientConfig>>, timeout: Gap) -> Self {
        let dialer = Dialer::new(&*target.host, target.port, DNS_CACHE_TTL);
        Self { host: target.host, dialer, tls, timeout }
    }

    /// Opens a connection and completes the TLS handshake.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::TimedOut`] after the timeout.
    pub(in crate::replay) async fn connect(&self) -> io::Result<MaybeTlsStream> {
        let tls = self.tls.as_ref().map(|tls| (Arc::clone(tls), &*self.host));
        let connected = Clock::Monotonic.timeout(self.timeout, self.dialer.dial(tls)).await;
        connected.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Checks that a connection can be opened.
///
/// # Errors
/// The reason why it cannot.
pub async fn check_reachable(target: &TargetUrl, tls: Option<Arc<ClientConfig>>, timeout: Gap) -> io::Result<()> {
    let tls = tls.filter(|_| target.tls);
    TargetConnector::new(target.clone(), tls, timeout).connect().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_url_with_or_without_a_prefix() {
        let target = |text: &str| text.parse::<TargetUrl>().map(|target| (target.to_string(), target.tls));
        assert_eq!(target("http://127.0.0.1:8000"), Ok(("http://127.0.0.1:8000".to_owned(), false)));
        assert_eq!(target("http://h:1/v1/"), Ok(("http://h:1".to_owned(), false)));
        assert_eq!(target("https://h/openai"), Ok(("https://h:443/openai".to_owned(), true)));
        assert_eq!(target("http://[::1]:80"), Ok(("http://[::1]:80".to_owned(), false)));
        for bad in [
            "",
            "h:1",
            "ftp://h",
            "http://",
            "http://u:p@h",
            "http://h?x=1",
            "http://h/#x",
            "http://h:99999",
            "http://h:",
        ] {
            assert!(target(bad).is_err(), "{bad}");
        }
        assert!(
            target("http://h:1/v1/chat/completions/").is_err_and(|error| error.contains("without a request's path"))
        );
    }
}
