//! Access to the admin port: client certificates, tokens, and the layer that checks them.
//!
//! | role | reads | has it |
//! |---|---|---|
//! | `Probe` | `/livez`, `/readyz` without its reason | everyone: a kubelet can send neither a token nor a certificate |
//! | `Metrics` | also `/metrics` | a token of `admin_metrics_token_file` |
//! | `Full` | and changes everything | a token of `admin_token_file`, or a client certificate |
//!
//! Without any of these settings everyone has the full role. A token comes as `Authorization: Bearer TOKEN`, or as the
//! password of Basic authentication with any user name. A browser can only ask for the latter.
//!
//! Tokens are compared by their digests, in constant time: the time of a comparison does not depend on the token.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use rustls::ServerConfig;
use serde_json::json;
use tower::{Layer, Service};

use super::body::{AdminBody, json_reply};
use super::host;
use crate::config::AdminAccessConfig;
use crate::export::control::state::ControlState;
use crate::net::tls::{self, ClientCertificates, TlsError, TlsIdentity};

/// Limits on tokens. 16 bytes of a random token cannot be guessed over a network. Several in one file allow a rotation
/// during which a scraper's token is always valid.
const MIN_TOKEN_BYTES: usize = 16;
const MAX_TOKEN_BYTES: usize = 1_024;
const MAX_TOKENS: usize = 16;
const MAX_TOKEN_FILE_BYTES: u64 = 64 << 10;

/// The realm of both challenges.
const CHALLENGES: [&str; 2] = ["Bearer realm=\"streamgauge\"", "Basic realm=\"streamgauge\", charset=\"UTF-8\""];

/// Permissions of a client; each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AdminRole {
    Probe,
    Metrics,
    Full,
}

impl AdminRole {
    /// The role that a path needs.
    fn needed_for(path: &str) -> Self {
        match path {
            "/livez" | "/readyz" => Self::Probe,
            "/metrics" => Self::Metrics,
            _ => Self::Full,
        }
    }
}

/// Why the admin port's credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdminAccessError {
    /// TLS setup failed.
    #[error("cannot set up TLS of the admin port")]
    Tls(#[from] TlsError),
    /// A token file cannot be used. Names the setting only: its value may be a token.
    #[error("{setting}: {reason}")]
    Token {
        /// The setting.
        setting: &'static str,
        /// Cause and remedy.
        reason: String,
    },
}

/// The credentials in force, replaced when their files change.
#[derive(Debug, Default)]
pub struct AdminAccess(ArcSwap<AdminCredentials>);

/// The credentials that open the admin port.
pub struct AdminCredentials {
    tls: Option<Arc<ServerConfig>>,
    accepts_certificates: bool,
    tokens: Vec<(blake3::Hash, AdminRole)>,
}

impl Default for AdminCredentials {
    /// None are needed.
    fn default() -> Self {
        Self { tls: None, accepts_certificates: false, tokens: Vec::new() }
    }
}

impl std::fmt::Debug for AdminCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminCredentials").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl AdminCredentials {
    /// Reads the certificates and tokens.
    ///
    /// # Errors
    /// Names the file or the setting, and quotes no token.
    pub fn load(config: &AdminAccessConfig) -> Result<Self, AdminAccessError> {
        let client_ca = config.tls.as_ref().and_then(|files| files.client_ca.as_deref());
        let clients = client_ca.map_or(ClientCertificates::Ignored, ClientCertificates::Optional);
        let server = config.tls.as_ref().map(|files| {
            let identity = TlsIdentity { cert: &files.cert, key: &files.key };
            tls::server(identity, clients, &["http/1.1"]).map(Arc::new)
        });
        let files = [
            ("admin_token_file", &config.token_file, AdminRole::Full),
            ("admin_metrics_token_file", &config.metrics_token_file, AdminRole::Metrics),
        ];
        let mut tokens = Vec::new();
        for (setting, file, role) in files {
            let Some(file) = file else { continue };
            let read = read_tokens(file).map_err(|reason| AdminAccessError::Token { setting, reason })?;
            tokens.extend(read.into_iter().map(|token| (blake3::hash(token.as_bytes()), role)));
        }
        Ok(Self { tls: server.transpose()?, accepts_certificates: client_ca.is_some(), tokens })
    }

    fn is_open(&self) -> bool {
        !self.accepts_certificates && self.tokens.is_empty()
    }

    /// The role of a client by its verified certificate or its `Authorization`.
    fn role(&self, headers: &HeaderMap, has_certificate: bool) -> Option<AdminRole> {
        if self.is_open() || (has_certificate && self.accepts_certificates) {
            return Some(AdminRole::Full);
        }
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(only), None) = (given.next(), given.next()) else { return None };
        let digest = blake3::hash(&token(only)?);
        // Every token is compared, so the time does not depend on which one matches; a digest's `==` takes constant
        // time.
        let roles = self.tokens.iter().map(|(known, role)| (*known == digest).then_some(*role));
        roles.fold(None, Option::max)
    }
}

/// The token in a value of `Authorization`.
fn token(value: &HeaderValue) -> Option<Vec<u8>> {
    let (scheme, credentials) = value.to_str().ok()?.split_once(' ')?;
    let credentials = credentials.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(credentials.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(credentials).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// Reads a file with one token per line.
///
/// # Errors
/// Returns what is wrong with the file, without its name or content: either may be a token.
pub fn read_tokens(path: &Path) -> Result<Vec<String>, String> {
    let remedy = format!("write one token per line, as by `openssl rand -hex 32`; {MAX_TOKENS} tokens at most");
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read the token file: {error}"))?;
    let tokens: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if tokens.is_empty() || tokens.len() > MAX_TOKENS {
        return Err(format!("the token file has {} tokens; {remedy}", tokens.len()));
    }
    let is_token = |token: &&str| {
        (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if let Some(at) = tokens.iter().position(|token| !is_token(token)) {
        let expected = format!("{MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} visible ASCII characters");
        return Err(format!("token {} of the token file is not of {expected}; {remedy}", at + 1));
    }
    Ok(tokens.into_iter().map(str::to_owned).collect())
}

impl AdminAccess {
    /// Puts credentials in force.
    pub fn new(credentials: AdminCredentials) -> Self {
        Self(ArcSwap::from_pointee(credentials))
    }

    /// Replaces the credentials, also for open connections.
    pub fn store(&self, credentials: AdminCredentials) {
        self.0.store(Arc::new(credentials));
    }

    /// The TLS settings of new connections; `None` is plain text.
    pub(super) fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.0.load().tls.clone()
    }
}

/// Checks the host and the role of each request before the routes see it.
#[derive(Clone, Debug)]
pub(super) struct AccessLayer {
    pub(super) access: Arc<AdminAccess>,
    pub(super) telemetry: Arc<ControlState>,
    /// The connection's client showed a certificate, which the handshake verified.
    pub(super) has_certificate: bool,
}

impl AccessLayer {
    /// Returns the role of a request that is admitted.
    fn admit<B>(&self, request: &Request<B>) -> Result<AdminRole, AdminDenial> {
        if !host::is_allowed(request, &self.telemetry.admin_hosts()) {
            return Err(AdminDenial::UnknownHost);
        }
        let credentials = self.access.0.load();
        let known = credentials.role(request.headers(), self.has_certificate);
        let role = known.unwrap_or(AdminRole::Probe);
        match known {
            _ if role >= AdminRole::needed_for(request.uri().path()) => Ok(role),
            Some(_) => Err(AdminDenial::MetricsOnly),
            None if credentials.tokens.is_empty() => Err(AdminDenial::NoCertificate),
            None => Err(AdminDenial::NoToken),
        }
    }
}

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug)]
enum AdminDenial {
    UnknownHost,
    MetricsOnly,
    NoCertificate,
    NoToken,
}

impl AdminDenial {
    fn reply(self) -> Response<AdminBody> {
        let (status, error) = match self {
            Self::UnknownHost => (
                StatusCode::MISDIRECTED_REQUEST,
                "this port answers IP addresses, localhost and the names of --admin-hosts",
            ),
            Self::MetricsOnly => {
                (StatusCode::FORBIDDEN, "this token reads /metrics only; a token of --admin-token-file reads the rest")
            }
            Self::NoCertificate => {
                (StatusCode::FORBIDDEN, "this port needs a client certificate of --admin-tls-client-ca")
            }
            Self::NoToken => (
                StatusCode::UNAUTHORIZED,
                "this port needs a token of --admin-token-file: send Authorization: Bearer TOKEN",
            ),
        };
        let mut reply = json_reply(status, &json!({"error": error}));
        if matches!(self, Self::NoToken) {
            for challenge in CHALLENGES {
                reply.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            }
        }
        reply
    }
}

impl<S> Layer<S> for AccessLayer {
    type Service = AccessService<S>;

    fn layer(&self, inner: S) -> AccessService<S> {
        AccessService { rules: self.clone(), inner }
    }
}

/// A service behind an [`AccessLayer`]. An admitted request has its [`AdminRole`] as an extension.
#[derive(Clone, Debug)]
pub(super) struct AccessService<S> {
    rules: AccessLayer,
    inner: S,
}

impl<S, B> Service<Request<B>> for AccessService<S>
where
    S: Service<Request<B>, Response = Response<AdminBody>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.rules.admit(&request) {
            Ok(role) => {
                request.extensions_mut().insert(role);
                Box::pin(self.inner.call(request))
            }
            Err(denial) => Box::pin(std::future::ready(Ok(denial.reply()))),
        }
    }
}
