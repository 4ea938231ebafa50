//! The address of a server, and its form as a URL.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

/// Scheme, host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// True if the scheme is `https`.
    pub tls: bool,
    /// Name or address, an IPv6 address without brackets.
    pub host: Arc<str>,
    /// Port number.
    pub port: u16,
}

impl ServerAddress {
    /// Host and port for `Host` and `:authority`: IPv6 in brackets, without the scheme's default port.
    pub fn authority(&self) -> String {
        let host = match self.host.parse() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ => self.host.to_string(),
        };
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { host } else { format!("{host}:{}", self.port) }
    }
}

impl From<SocketAddr> for ServerAddress {
    /// A server without TLS.
    fn from(address: SocketAddr) -> Self {
        Self { tls: false, host: address.ip().to_string().into(), port: address.port() }
    }
}

impl fmt::Display for ServerAddress {
    /// The server's URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

const SHAPE: &str = "expected http://host[:port] or https://host[:port]";
const BRACKETS: &str = "expected an IPv6 address in brackets, as in http://[::1]:8000";
const CREDENTIALS: &str = "expected a URL without credentials: clients send their own Authorization header, which \
                           goes through untouched";
const PATH: &str = "expected a URL that ends after the port: clients send the path and the query, which go through \
                    untouched";

impl FromStr for ServerAddress {
    /// The expected form. The error does not quote the text, which may hold credentials.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once("://").ok_or(SHAPE)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(SHAPE),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        if authority.contains('@') {
            return Err(CREDENTIALS);
        }
        if !matches!(tail, "" | "/") {
            return Err(PATH);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => {
                let (host, port) = bracketed.split_once(']').ok_or(SHAPE)?;
                host.parse::<Ipv6Addr>().map_err(|_| SHAPE)?;
                (host, port)
            }
            None if authority.matches(':').count() > 1 => return Err(BRACKETS),
            None => {
                let colon = authority.find(':').unwrap_or(authority.len());
                authority.split_at(colon)
            }
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or("expected a port from 1 to 65535")?,
            None if port.is_empty() => {
                if tls {
                    443
                } else {
                    80
                }
            }
            None => return Err(SHAPE),
        };
        if !is_host(host) {
            return Err(SHAPE);
        }
        Ok(Self { tls, host: host.to_ascii_lowercase().into(), port })
    }
}

/// True if a text is a host name or an address.
pub(super) fn is_host(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    text.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.bytes().all(is_name))
}
