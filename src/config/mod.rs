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

mod defaults;
mod dump;
mod environment;
mod error;
mod file;
mod layer;
pub mod otlp;
mod proxy;
mod raw_settings;
mod schema;
mod source;
mod upstream;
mod validate;
pub(crate) mod yaml;

pub(crate) use error::closest_match;
pub use error::{ConfigError, ConfigProblem};
pub use layer::{SettingOrigin, SettingsLayer};
pub use proxy::{
    CaptureConfig, ClientIdentity, ForwardingHeaders, Limits, LogConfig, LogFormat, LogLevel, ProxyConfig, SessionKey,
    TailSampling, TlsFiles, TokenizerFile, UpstreamConfig, UpstreamHttp,
};
pub use raw_settings::RawSettings;
pub use schema::schema;
pub use source::{ConfigSource, LoadedConfig};
