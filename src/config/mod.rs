//! The configuration: settings, their layers, and their parsing.
//!
//! [`RawSettings`] is the single list of settings: each is a flag, a key of the YAML configuration file, and an
//! environment variable. The layers are merged (flag over environment over file over default), and each value keeps its
//! origin. Then every value is parsed once: [`ProxyConfig`] holds addresses, times and rules within their bounds, and
//! no other code checks them again. An invalid value is an error that names the setting, its origin, and the expected
//! value.
//!
//! OpenTelemetry's own environment variables configure the export: [`otlp`].
//!
//! [`ConfigSource`] loads everything and can reload it; [`ProxyConfig::reload`] separates the changes that need a
//! restart.

mod defaults;
mod dump;
mod engine_metrics_url;
mod environment;
mod error;
mod file;
mod layer;
pub mod otlp;
mod proxy;
mod raw_settings;
mod schema;
mod settings_reader;
mod source;
mod storage_url;
mod upstream;
mod validate;
pub(crate) mod yaml;

pub use defaults::ADMIN_PORT;
pub use engine_metrics_url::EngineMetricsUrl;
pub(crate) use error::closest_match;
pub use error::{ConfigError, ConfigProblem};
pub use layer::{SettingOrigin, SettingsLayer};
pub use proxy::{
    AdminAccessConfig, CaptureConfig, CaptureFormat, CaptureTarget, ClientIdentity, ForwardingHeaders, Limits,
    LogConfig, LogFormat, LogLevel, ProxyConfig, SessionKey, TailSampling, TlsFiles, TokenizerFile, UpstreamConfig,
    UpstreamHttp, UpstreamTarget,
};
pub use raw_settings::RawSettings;
pub use schema::schema;
pub use source::{ConfigSource, LoadedConfig};
pub use storage_url::{InvalidStorageUrl, StorageScheme, StorageUrl};
pub use upstream::ServerAddress;
