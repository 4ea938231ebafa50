//! Reloads certificates, and the tokens of the admin port, when their files change.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::worker_shared::WorkerShared;
use crate::clock::Clock;
use crate::config::{ProxyConfig, UpstreamHttp};
use crate::export::admin::access::{AdminAccess, AdminAccessError, AdminCredentials};
use crate::export::registry::proxy_status::{CertificateEnd, ReloadSubject};
use crate::measure::time::Gap;
use crate::net::certificate::first_not_after;
use crate::net::tls::{self, ClientCertificates, FileWatch, TlsError, TlsIdentity};

/// Interval of checks for changed files, both certificates and configuration.
pub const RELOAD_CHECK_INTERVAL: Gap = Gap::from_millis(2_000);

/// Why a certificate, a key or a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// TLS setup failed.
    #[error("cannot set up TLS")]
    Tls(#[from] TlsError),
    /// The admin port's certificates or tokens cannot be used.
    #[error(transparent)]
    Admin(#[from] AdminAccessError),
}

/// The TLS settings of both sides, and who may use the admin port.
pub(super) struct Certificates {
    pub(super) server: Option<Arc<ArcSwap<rustls::ServerConfig>>>,
    pub(super) upstream: Option<Arc<ArcSwap<rustls::ClientConfig>>>,
    pub(super) admin: Arc<AdminAccess>,
    ends: Vec<CertificateEnd>,
    watched: FileWatch,
}

impl Certificates {
    /// Loads all certificates of the configuration.
    pub(super) fn load(config: &ProxyConfig) -> Result<Self, CredentialError> {
        Ok(Self {
            server: server(config)?.map(|tls| Arc::new(ArcSwap::from_pointee(tls))),
            upstream: upstream_tls(config)?.map(|tls| Arc::new(ArcSwap::from_pointee(tls))),
            admin: Arc::new(AdminAccess::new(AdminCredentials::load(&config.admin_access)?)),
            ends: ends(config)?,
            watched: FileWatch::new(files(config)),
        })
    }

    /// Reloads certificates and tokens. If a file cannot be read, the current ones stay in force.
    fn reload(&mut self, config: &ProxyConfig) -> Result<(), CredentialError> {
        let (server, upstream) = (server(config)?, upstream_tls(config)?);
        let admin = AdminCredentials::load(&config.admin_access)?;
        self.ends = ends(config)?;
        self.admin.store(admin);
        if let (Some(current), Some(new)) = (&self.server, server) {
            current.store(Arc::new(new));
        }
        if let (Some(current), Some(new)) = (&self.upstream, upstream) {
            current.store(Arc::new(new));
        }
        Ok(())
    }
}

fn server(config: &ProxyConfig) -> Result<Option<rustls::ServerConfig>, TlsError> {
    let Some(files) = &config.tls else { return Ok(None) };
    let clients = files.client_ca.as_deref().map_or(ClientCertificates::Ignored, ClientCertificates::Required);
    tls::server(TlsIdentity { cert: &files.cert, key: &files.key }, clients, &["h2", "http/1.1"]).map(Some)
}

/// The TLS settings of connections to the upstream; `None` without TLS.
///
/// # Errors
/// Returns [`TlsError`], which names the file.
pub fn upstream_tls(config: &ProxyConfig) -> Result<Option<rustls::ClientConfig>, TlsError> {
    let target = &config.upstream;
    if !target.server().is_some_and(|server| server.tls) {
        return Ok(None);
    }
    let alpn: &[&str] = match target.http {
        UpstreamHttp::Auto => &["h2", "http/1.1"],
        UpstreamHttp::Http1 => &["http/1.1"],
        UpstreamHttp::Http2 => &["h2"],
    };
    let identity = target.identity.as_ref().map(|files| TlsIdentity { cert: &files.cert, key: &files.key });
    tls::client(target.ca.as_deref(), identity, alpn).map(Some)
}

/// When the certificates that the proxy shows end to be valid.
fn ends(config: &ProxyConfig) -> Result<Vec<CertificateEnd>, TlsError> {
    let server = config.tls.iter().map(|files| ("tls_cert", &files.cert));
    let admin = config.admin_access.tls.iter().map(|files| ("admin_tls_cert", &files.cert));
    let upstream = config.upstream.identity.iter().map(|files| ("upstream_cert", &files.cert));
    let end = |(setting, file): (_, &PathBuf)| Ok(CertificateEnd { setting, not_after: first_not_after(file)? });
    server.chain(admin).chain(upstream).map(end).collect()
}

fn files(config: &ProxyConfig) -> Vec<PathBuf> {
    let (access, target) = (&config.admin_access, &config.upstream);
    let served = config.tls.iter().chain(&access.tls);
    let served = served.flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
    let tokens = [access.token_file.as_ref(), access.metrics_token_file.as_ref()];
    let identity = target.identity.iter().flat_map(|identity| [Some(&identity.cert), Some(&identity.key)]);
    served.chain(tokens).chain(identity).chain([target.ca.as_ref()]).flatten().cloned().collect()
}

/// Checks the files periodically and on request, while the proxy runs.
pub(super) async fn watch_certificates(shared: Arc<WorkerShared>, mut certificates: Certificates) {
    let status = shared.gauges.status();
    status.set_certificates(certificates.ends.clone());
    loop {
        tokio::select! {
            () = Clock::Monotonic.sleep(RELOAD_CHECK_INTERVAL) => {}
            () = shared.certificate_check.notified() => {}
        }
        if certificates.watched.changed() {
            let reloaded = certificates.reload(&shared.config.load());
            status.set_reload(ReloadSubject::Certificates, reloaded.is_ok());
            match reloaded {
                Ok(()) => {
                    status.set_certificates(certificates.ends.clone());
                    tracing::info!("certificates and tokens were read again");
                }
                Err(error) => {
                    let error = describe(&error);
                    tracing::error!(
                        error,
                        "certificates or tokens have changed and cannot be used; the old ones stay in force"
                    );
                }
            }
        }
    }
}

/// The error with its cause.
fn describe(error: &CredentialError) -> String {
    match error {
        CredentialError::Tls(cause) => cause.to_string(),
        CredentialError::Admin(error) => error.to_string(),
    }
}
