//! Checks the host of a request to the admin port: the defense against DNS rebinding.
//!
//! A page from `evil.example` may let that name resolve to 127.0.0.1. The victim's browser would then read this port as
//! the page's own origin, including model names and rates. The browser still sends `Host: evil.example`. So only names
//! that an attacker cannot own are accepted: IP addresses, `localhost` and the names in `--admin-hosts`. A request
//! without a `Host` does not come from a browser.

use std::net::{IpAddr, Ipv6Addr};

use http::Request;
use http::header::HOST;

use crate::measure::glob::glob;

/// Returns `true` if every host in the request is allowed. `names` are lower-case patterns.
pub(super) fn is_allowed<B>(request: &Request<B>, names: &[String]) -> bool {
    let target = request.uri().authority().map(|authority| authority.as_str());
    let fields = request.headers().get_all(HOST).iter().map(|value| value.to_str().ok());
    target.map(Some).into_iter().chain(fields).all(|host| host.is_some_and(|host| is_allowed_host(host, names)))
}

fn is_allowed_host(host: &str, names: &[String]) -> bool {
    if let Some(bracketed) = host.strip_prefix('[') {
        return bracketed
            .split_once(']')
            .is_some_and(|(address, port)| is_port(port) && address.parse::<Ipv6Addr>().is_ok());
    }
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_own = name.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost");
    is_port(port) && (is_own || !name.is_empty() && names.iter().any(|pattern| glob(pattern, &name)))
}

/// Returns `true` for an empty text or a colon with a port.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_configured_names_are_allowed_and_nothing_else() {
        let names = ["streamgauge".to_owned(), "*.svc.cluster.local".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "10.1.2.3:9464",
            "[::1]:9464",
            "[fd00::1]",
            "localhost",
            "LocalHost:9464",
            "localhost.",
            "gauge.localhost:1",
            "streamgauge:9464",
            "STREAMGAUGE",
            "a.b.svc.cluster.local:80",
        ] {
            assert!(is_allowed_host(host, &names), "{host}");
        }
        for host in [
            "",
            ":9464",
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "svc.cluster.local",
            "streamgauge.evil.example",
            "[::1].evil.example",
            "[evil.example]",
            "localhost:9464@evil.example",
            "localhost evil.example",
            "a:1:2",
        ] {
            assert!(!is_allowed_host(host, &names), "{host}");
        }
    }

    #[test]
    fn each_host_of_a_request_counts_and_one_without_any_is_no_browsers() {
        let request = |target: &str, hosts: &[&str]| {
            let builder = hosts.iter().fold(Request::get(target), |builder, host| builder.header(HOST, *host));
            is_allowed(&builder.body(()).unwrap(), &[])
        };
        assert!(request("/", &[]) && request("/", &["localhost"]) && request("http://localhost/", &["localhost"]));
        assert!(!request("/", &["localhost", "evil.example"]));
        assert!(!request("http://evil.example/", &["localhost"]));
    }
}
