//! The sources of a configuration, kept so that it can be reloaded.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::environment;
use super::error::{ConfigError, ConfigProblem};
use super::file;
use super::layer::{SettingOrigin, SettingsLayer};
use super::otlp::OtlpConfig;
use super::proxy::ProxyConfig;
use super::raw_settings::{PREFIX, RawSettings};
use super::validate::{self, validate};
use crate::measure::slo::Slos;

/// The command line, the environment, and the configuration file of this process.
///
/// No `Debug`: the environment holds the credentials for OTLP.
#[derive(Clone)]
pub struct ConfigSource {
    flags: RawSettings,
    variables: Vec<(String, String)>,
    file: Option<PathBuf>,
}

/// A loaded configuration.
#[derive(Debug)]
pub struct LoadedConfig {
    /// The validated configuration.
    pub config: ProxyConfig,
    /// OTLP export settings.
    pub otlp: OtlpConfig,
    /// Raw settings with their origins, for [`ProxyConfig::explain`].
    pub settings: SettingsLayer,
    /// Warnings, one sentence each.
    pub warnings: Vec<String>,
}

impl ConfigSource {
    /// From flags, `--config`, and the process's environment.
    pub fn from_process(flags: RawSettings, file: Option<PathBuf>) -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::new(flags, file, std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// From flags, `--config`, and an environment. Without `--config`, `STREAMGAUGE_CONFIG` names the file.
    pub fn new(
        flags: RawSettings,
        file: Option<PathBuf>,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let ours = |(name, _): &(String, String)| name.starts_with(PREFIX) || name.starts_with("OTEL_");
        let variables: Vec<_> = variables.into_iter().filter(ours).collect();
        let named =
            || variables.iter().find(|(name, path)| name == environment::CONFIG_FILE_VARIABLE && !path.is_empty());
        let file = file.or_else(|| named().map(|(_, path)| path.into()));
        Self { flags, variables, file }
    }

    /// The configuration file, if there is one; a change of it calls for another [`load`](Self::load).
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file and merges the layers: flag over environment over file over default.
    ///
    /// # Errors
    /// Every invalid setting, and every named file that cannot be read.
    pub fn load(&self) -> Result<LoadedConfig, ConfigError> {
        let settings = self.settings()?;
        let mut warnings = environment::warnings(&self.variables);
        let believed = validate(&settings).and_then(|config| open_files(&config, &settings).map(|()| config));
        // A misspelled variable is often the cause of a missing setting.
        let config = believed.map_err(|error| error.with_warnings(&warnings))?;
        let lookup = |name: &str| self.variables.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
        let (otlp, of_otlp) = OtlpConfig::from_environment(lookup);
        warnings.extend(of_otlp);
        warnings.extend(validate::warnings(&config));
        Ok(LoadedConfig { config, otlp, settings, warnings })
    }

    /// Reads the SLOs alone, which need no upstream.
    ///
    /// # Errors
    /// Every invalid SLO, and a configuration file that cannot be read.
    pub fn load_slos(&self) -> Result<Arc<Slos>, ConfigError> {
        validate::slos(&self.settings()?)
    }

    fn settings(&self) -> Result<SettingsLayer, ConfigError> {
        let file = self.file().map(read).transpose()?.unwrap_or_default();
        let typed = SettingsLayer::from_flags(&self.flags).layered_over(environment::read(&self.variables));
        Ok(typed.layered_over(file).layered_over(SettingsLayer::defaults()))
    }
}

/// Limit on the configuration file, in bytes. A larger one is a wrong file or a device.
const MAX_FILE_BYTES: u64 = 1 << 20;

fn read(path: &Path) -> Result<SettingsLayer, ConfigError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text));
    let why = match read {
        Ok(_) if text.len() as u64 > MAX_FILE_BYTES => format!("it is larger than {MAX_FILE_BYTES} bytes"),
        Ok(_) => return file::read(path, &text).map_err(ConfigError),
        Err(error) => error.to_string(),
    };
    let problem = format!("cannot read the configuration file {}: {why}", path.display());
    Err(ConfigProblem::at_origin(SettingOrigin::Default, problem).into())
}

/// Settings that name files.
const FILE_SETTINGS: [&str; 9] = [
    "upstream_ca",
    "upstream_cert",
    "upstream_key",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "admin_tls_cert",
    "admin_tls_key",
    "admin_tls_client_ca",
];

/// Settings that name files of tokens. Someone may write the token instead of its file, so it is never quoted.
const TOKEN_SETTINGS: [&str; 2] = ["admin_token_file", "admin_metrics_token_file"];

/// Opens every file that the configuration names, so that `--check` finds missing ones.
fn open_files(config: &ProxyConfig, settings: &SettingsLayer) -> Result<(), ConfigError> {
    let problem = |(key, value): (&'static str, Value)| {
        let is_token = TOKEN_SETTINGS.contains(&key);
        let path = value.as_str().filter(|_| is_token || FILE_SETTINGS.contains(&key))?;
        let error = File::open(path).err()?;
        let shown = if is_token { "the file that it names" } else { path };
        Some(ConfigProblem::for_setting(key, settings.origin(key), format!("cannot read {shown}: {error}")))
    };
    let problems: Vec<ConfigProblem> = config.settings().into_iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems)) }
}
