//! The URL of the engine's own metrics.

use std::fmt;
use std::str::FromStr;

use super::upstream::ServerAddress;

/// The path of every engine that is known.
const DEFAULT_PATH: &str = "/metrics";
const SHAPE: &str = "expected the URL of the engine's metrics without credentials or a query, as in \
                     http://127.0.0.1:8000/metrics";

/// A server, and the path of its metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineMetricsUrl {
    /// The server.
    pub server: ServerAddress,
    /// Absolute path.
    pub path: String,
}

impl FromStr for EngineMetricsUrl {
    /// The expected form. The error does not quote the text, which may hold credentials.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let host = text.find("://").ok_or(SHAPE)? + "://".len();
        let end = text[host..].find('/').map_or(text.len(), |at| host + at);
        let (server, path) = text.split_at(end);
        let is_path =
            path.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'"' | b'<' | b'>'));
        if !is_path {
            return Err(SHAPE);
        }
        let path = if matches!(path, "" | "/") { DEFAULT_PATH } else { path };
        Ok(Self { server: server.parse().map_err(|_| SHAPE)?, path: path.to_owned() })
    }
}

impl fmt::Display for EngineMetricsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.server, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_server_and_a_path_and_no_secret() {
        let shown = |text: &str| text.parse::<EngineMetricsUrl>().map(|url| url.to_string());
        for (text, url) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
            ("http://h/", "http://h/metrics"),
            ("https://[::1]:8443/a/metrics", "https://[::1]:8443/a/metrics"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(url));
        }
        for wrong in [
            "",
            "h:8000/metrics",
            "ftp://h",
            "http://",
            "http://u:p@h",
            "http://h?token=x",
            "http://h/m?token=x",
            "http://h/a b",
            "http://h/#x",
        ] {
            assert_eq!(shown(wrong), Err(SHAPE), "{wrong}");
        }
    }
}
