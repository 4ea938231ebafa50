//! Metrics of an operator's alerts: targets, limits, reloads and certificates.

use std::fs;
use std::path::Path;

use crate::support::captured::{run_without_capture, until};
use crate::support::proxy::TestProxy;
use crate::support::upstream::Upstream;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn resource(kind: &str, resource: &str) -> String {
    format!("streamgauge_proxy_resource_{kind}{{resource=\"{resource}\"}}")
}

#[test]
fn every_slo_exports_its_target_and_a_reload_changes_it() {
    let slos = [("slos", "chat: ttft<=1s target=99.95%; batch: e2e<=9s")];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &slos);
    let target = |slo: &str| proxy.metric(&format!("streamgauge_slo_target_ratio{{slo=\"{slo}\"}}"));
    assert_eq!((target("chat"), target("batch")), (0.9995, 0.99));
    let other = TestProxy::with(Upstream::answering(OK).addr, &[("slos", "chat: ttft<=1s target=90%")]);
    proxy.reload(|config| config.slos = other.config().slos.clone());
    assert_eq!((target("chat"), target("batch")), (0.9, 0.0));
}

#[test]
fn the_use_of_a_resource_stands_beside_its_limit() {
    let settings = [("max_streams", "7"), ("max_connections", "5")];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &settings);
    let _idle = [proxy.client(), proxy.client()];
    until("both clients are connected", || proxy.metric(&resource("usage", "client_connections")) == 2.0);
    assert_eq!(proxy.metric(&resource("limit", "client_connections")), 5.0);
    assert_eq!(proxy.metric(&resource("limit", "streams")), 7.0);
    assert_eq!(proxy.metric(&resource("usage", "streams")), 0.0);
    let open = proxy.metric(&resource("usage", "file_descriptors"));
    assert!(open > 4.0 && open < proxy.metric(&resource("limit", "file_descriptors")), "{open}");
    proxy.reload(|config| config.limits.streams = 9);
    assert_eq!(proxy.metric(&resource("limit", "streams")), 9.0);
}

#[test]
fn a_configuration_that_cannot_be_loaded_shows_until_one_can() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("streamgauge.yaml");
    fs::write(&file, "slos: ['chat: ttft<=1s']\n").unwrap();
    let config = format!("--config={}", file.display());
    let run = run_without_capture(Upstream::answering(OK).addr, &[&config]);
    let shows = |value: u8| run.page("/metrics").contains(&format!("reload_success{{subject=\"settings\"}} {value}\n"));
    assert!(shows(1));
    fs::write(&file, "slos: ['chat: ttft<=canary7f3a']\n").unwrap();
    until("the failure shows", || shows(0));
    fs::write(&file, "slos: ['chat: ttft<=2s']\n").unwrap();
    until("the failure is over", || shows(1));
}

#[test]
fn a_certificate_shows_when_it_ends_and_the_renewed_one_does_too() {
    let folder = tempfile::tempdir().unwrap();
    let write = |cert: &Path, key: &Path, year| {
        let pair = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        fs::write(key, pair.serialize_pem()).unwrap();
        fs::write(cert, params.self_signed(&pair).unwrap().pem()).unwrap();
    };
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    write(&cert, &key, 2030);
    let settings = [("tls_cert", cert.to_str().unwrap()), ("tls_key", key.to_str().unwrap())];
    let proxy = TestProxy::with(Upstream::answering(OK).addr, &settings);
    let end = || proxy.metric("streamgauge_tls_certificate_not_after_seconds{setting=\"tls_cert\"}");
    let success = || proxy.metric("streamgauge_reload_success{subject=\"certificates\"}");
    until("the end shows", || end() == 1_893_456_000.0);
    fs::write(&cert, "rubbish").unwrap();
    proxy.renew();
    until("the failure shows", || success() == 0.0);
    assert_eq!(end(), 1_893_456_000.0, "the old certificate is in force");
    write(&cert, &key, 2040);
    proxy.renew();
    until("the renewed one shows", || end() == 2_208_988_800.0 && success() == 1.0);
}
