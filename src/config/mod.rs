//! What the program may believe.
//!
//! [`Typed`] is the one list of settings: each is a flag, a key of the YAML configuration file and an environment
//! variable. Layers of them are merged by overlaying (flag over environment over file over default), every text with
//! its place, and then *parsed, not validated*: [`ProxyConfig`] holds addresses, times and rules within their bounds,
//! and nothing downstream checks them again. What cannot be believed is an error that names the thing, its place and
//! what to type instead.
//!
//! Where telemetry goes is told by OpenTelemetry's own environment variables: [`otlp`].
//!
//! [`Source`] loads all of it, and can load it again; [`ProxyConfig::reload`] says what of a new configuration can be
//! had without a restart.

mod believe;
mod defaults;
mod effective;
mod environment;
mod error;
mod file;
mod layer;
pub mod otlp;
mod proxy;
mod schema;
mod source;
mod typed;
mod upstream;
pub(crate) mod yaml;

pub(crate) use error::nearest;
pub use error::{ConfigError, Problem};
pub use layer::{Place, Settings};
pub use proxy::{
    AddHeaders, Capture, Identity, Limits, Log, LogFormat, LogLevel, ProxyConfig, SessionKey, TailKeep, TlsFiles,
    TokenizerFile, Upstream, UpstreamHttp,
};
pub use schema::schema;
pub use source::{Loaded, Source};
pub use typed::Typed;
