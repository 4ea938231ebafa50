//! A proxy in front of an address, in this process.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use streamgauge::config::{ConfigSource, ProxyConfig, RawSettings};
use streamgauge::proxy::Proxy;

use super::client::Client;

/// A proxy in this process. Stops when it is dropped.
pub struct TestProxy {
    proxy: Option<Proxy>,
    config: ProxyConfig,
    pub addr: SocketAddr,
    /// The admin port.
    pub admin: SocketAddr,
}

impl TestProxy {
    /// A proxy to `upstream` with nothing else configured.
    pub fn new(upstream: SocketAddr) -> Self {
        Self::with(upstream, &[])
    }

    /// A proxy to `upstream` with these settings, as (key, value); OpenTelemetry's go by their own names.
    pub fn with(upstream: SocketAddr, settings: &[(&str, &str)]) -> Self {
        Self::to(&format!("http://{upstream}"), settings)
    }

    /// A proxy to a URL.
    pub fn to(upstream: &str, settings: &[(&str, &str)]) -> Self {
        let given = [("upstream", upstream), ("listen", "127.0.0.1:0"), ("admin", "127.0.0.1:0")];
        Self::start(&[&given, settings].concat())
    }

    /// A proxy with these settings alone.
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let environment = settings.iter().map(|(key, value)| match key.starts_with("OTEL_") {
            true => ((*key).to_owned(), (*value).to_owned()),
            false => (format!("STREAMGAUGE_{}", key.to_uppercase()), (*value).to_owned()),
        });
        let loaded = ConfigSource::new(RawSettings::default(), None, environment).load().unwrap();
        let proxy = Proxy::start(loaded.config.clone(), &loaded.otlp).unwrap();
        let (addr, admin) = (proxy.listen_addr(), proxy.admin_addr());
        Self { proxy: Some(proxy), config: loaded.config, addr, admin }
    }

    /// Loads everything again, as a signal does.
    pub fn renew(&self) {
        self.reload(|_| ());
    }

    /// Loads the configuration with what this makes of it, all of which is to change at once.
    pub fn reload(&self, change: impl FnOnce(&mut ProxyConfig)) {
        let mut config = self.config.clone();
        change(&mut config);
        let restart = self.proxy.as_ref().unwrap().reload(config);
        assert!(restart.is_empty(), "{restart:?}");
    }

    /// True if `/readyz` answers 200, and its text.
    pub fn ready(&self) -> (bool, String) {
        let response = Client::connect(self.admin).send("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").response();
        (response.status() == 200, response.text())
    }

    /// Stops it as a signal does: waits for open streams, but not longer than `limit`; whether all have ended.
    pub fn stop(self, limit: Duration) -> bool {
        let proxy = self.proxy.as_ref().unwrap();
        proxy.drain();
        let started_at = Instant::now();
        while !proxy.is_drained() && started_at.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        proxy.is_drained()
    }

    /// The configuration at its start.
    pub fn config(&self) -> &ProxyConfig {
        &self.config
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// The value of a series, as `/metrics` has it: the line that begins with this; 0 if there is none.
    pub fn metric(&self, series: &str) -> f64 {
        let mut client = Client::connect(self.admin);
        let scrape = client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").response();
        let text = scrape.text();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0.0)
    }

    /// The last request, as `/api/state` shows it.
    pub fn last_request(&self) -> Value {
        for _ in 0..2_000 {
            let mut client = Client::connect(self.admin);
            client.send("GET /api/state HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            let state: Value = serde_json::from_slice(&client.response().body).unwrap();
            if let Some(last) = state["recent"].get(0) {
                return last.clone();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("no request within ten seconds");
    }
}

impl Drop for TestProxy {
    fn drop(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            proxy.stop();
        }
    }
}
