//! The endpoint of one signal.

use std::fmt;

use crate::config::upstream::ServerAddress;

/// A collector's address.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// True if the scheme is `https`.
    pub tls: bool,
    /// Name or address, an IPv6 address without brackets.
    pub host: String,
    /// Port number.
    pub port: u16,
    /// Path and query of HTTP requests; gRPC defines its own paths. May hold a token.
    pub target: String,
}

impl Endpoint {
    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}", self.port)
    }

    /// Parses a URL. The error does not quote it, because it may hold a token.
    ///
    /// `path` is appended to the URL's own path, for the base URL that all signals share. A URL without a path has `/`.
    pub(super) fn parse(text: &str, path: Option<&str>) -> Result<Self, String> {
        let shape = || "expected http://host[:port][/path] or https://host[:port][/path]".to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(shape)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        if authority.contains('@') {
            return Err("credentials in a URL are not sent; put them into OTEL_EXPORTER_OTLP_HEADERS".to_owned());
        }
        let ServerAddress { tls, host, port } = format!("{scheme}://{authority}").parse().map_err(|_| shape())?;
        let tail = tail.split('#').next().unwrap_or_default();
        let (own, query) = tail.find('?').map_or((tail, ""), |at| tail.split_at(at));
        let target = match path {
            Some(path) => format!("{}/{path}{query}", own.trim_end_matches('/')),
            None if own.is_empty() => format!("/{query}"),
            None => tail.to_owned(),
        };
        if target.parse::<http::uri::PathAndQuery>().is_err() || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("its path has a character that a URL cannot hold; percent-encode it".to_owned());
        }
        Ok(Self { tls, host: host.to_string(), port, target })
    }

    /// Host and port, an IPv6 address in brackets.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Endpoint {
    /// Omits the query, which may hold a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.target.split('?').next().unwrap_or_default();
        write!(f, "{}://{}{path}", if self.tls { "https" } else { "http" }, self.authority())
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}
