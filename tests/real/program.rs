//! The program under test, as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::compare::only;
use super::http_client::{get, get_with};
use super::processes::{ChildProcess, SOON, address, until};
use super::support::client::{Client, Response};
use super::support::metrics_parser::{self, Labels, Series, Table};

/// A proxy.
pub(crate) struct ProxyProcess {
    pub(crate) running: ChildProcess,
    /// Where clients connect.
    pub(crate) addr: SocketAddr,
    /// Its admin port.
    pub(crate) admin: SocketAddr,
}

impl ProxyProcess {
    /// A proxy to `upstream` with nothing else configured.
    pub(crate) fn to(upstream: SocketAddr) -> Self {
        Self::with(upstream, |_| {})
    }

    /// A proxy to `upstream`; `more` adds flags and environment.
    pub(crate) fn with(upstream: SocketAddr, more: impl FnOnce(&mut Command)) -> Self {
        let (addr, admin) = (address(), address());
        let running = ChildProcess::start("streamgauge", Path::new(env!("CARGO_BIN_EXE_streamgauge")), |command| {
            command.arg("proxy");
            command.arg(format!("--upstream=http://{upstream}"));
            command.arg(format!("--listen={addr}")).arg(format!("--admin={admin}"));
            more(command);
        });
        let running = running.ready(admin, || get(admin, "/livez").status() == 200);
        Self { running, addr, admin }
    }

    /// Lets it end by itself, so that its capture is whole.
    pub(crate) fn end(mut self) {
        self.running.signal(Signal::SIGTERM);
        assert!(self.running.ended(SOON).is_some());
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// A page of the admin port.
    pub(crate) fn page(&self, path: &str) -> Response {
        get(self.admin, path)
    }

    /// A scrape as text.
    pub(crate) fn scrape(&self) -> Table {
        metrics_parser::text(&self.page("/metrics").text())
    }

    /// A scrape as protobuf, its histograms' native buckets only.
    pub(crate) fn scrape_native(&self) -> Table {
        let accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        let body = get_with(self.admin, "/metrics", &format!("Accept: {accept}\r\n")).body;
        only(&metrics_parser::protobuf(&body), |_, series| {
            let (value, count, native) = (series.value, series.count, series.native.clone());
            Some(Series { value, count, native, ..Series::default() })
        })
    }

    /// A scrape as OpenMetrics, which has exemplars.
    pub(crate) fn scrape_exemplars(&self) -> Table {
        metrics_parser::text(&get_with(self.admin, "/metrics", "Accept: application/openmetrics-text\r\n").text())
    }

    /// The scrape once so many requests are counted and none is open: a client has its answer a moment before it is.
    pub(crate) fn settled(&self, requests: usize) -> Table {
        let mut table = Table::new();
        until(&format!("{requests} requests are counted"), SOON, || {
            table = self.scrape();
            count(&table, "http_server_request_duration_seconds", &[]) == requests as u64
                && sum(&table, "http_server_active_requests", &[]) == 0.0
        });
        table
    }
}

/// Output of another verb of the program, run from the project's folder.
pub(crate) fn streamgauge(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

/// The JSON that a verb prints; the verb must succeed.
pub(crate) fn json_of(arguments: &[&str]) -> Value {
    let done = streamgauge(arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// Over the series with all these labels: the sum of counters or proxies, or of histograms' sums.
pub(crate) fn sum(table: &Table, name: &str, labels: &[(&str, &str)]) -> f64 {
    with(table, name, labels).map(|series| series.value).sum()
}

/// Over the series with all these labels: the sum of histograms' counts.
pub(crate) fn count(table: &Table, name: &str, labels: &[(&str, &str)]) -> u64 {
    with(table, name, labels).map(|series| series.count).sum()
}

fn with<'a>(table: &'a Table, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = &'a Series> {
    let has = |series: &Labels| labels.iter().all(|(key, value)| series.get(*key).is_some_and(|v| v == value));
    table.iter().filter(move |((family, series), _)| family == name && has(series)).map(|(_, series)| series)
}
