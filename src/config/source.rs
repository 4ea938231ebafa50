//! Where a configuration comes from, so that it can be loaded again.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::believe::believe;
use super::environment;
use super::error::{ConfigError, Problem};
use super::file;
use super::layer::{Place, Settings};
use super::otlp::Otlp;
use super::proxy::ProxyConfig;
use super::typed::{PREFIX, Typed};

/// The command line, the environment and the configuration file of this process.
///
/// It has no `Debug`: the environment holds the headers that OTLP authenticates with.
#[derive(Clone)]
pub struct Source {
    flags: Typed,
    variables: Vec<(String, String)>,
    file: Option<PathBuf>,
}

/// What a source gave.
#[derive(Debug)]
pub struct Loaded {
    /// What is believed.
    pub config: ProxyConfig,
    /// Where telemetry goes.
    pub otlp: Otlp,
    /// What was typed, and where; for [`ProxyConfig::explain`].
    pub settings: Settings,
    /// What was typed in vain, a sentence each.
    pub warnings: Vec<String>,
}

impl Source {
    /// Flags, `--config` and the process's environment.
    pub fn of_process(flags: Typed, file: Option<PathBuf>) -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::new(flags, file, std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// Flags, `--config` and an environment. Without `--config`, `STREAMGAUGE_CONFIG` names the file.
    pub fn new(flags: Typed, file: Option<PathBuf>, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = |(name, _): &(String, String)| name.starts_with(PREFIX) || name.starts_with("OTEL_");
        let variables: Vec<_> = variables.into_iter().filter(ours).collect();
        let named = || variables.iter().find(|(name, path)| name == environment::CONFIG_FILE && !path.is_empty());
        let file = file.or_else(|| named().map(|(_, path)| path.into()));
        Self { flags, variables, file }
    }

    /// The configuration file, if there is one: when it changes, [`load`](Self::load) gives something new.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the file and merges the layers: flag over environment over file over default.
    ///
    /// # Errors
    /// Everything in it that cannot be believed, and files it names that cannot be read.
    pub fn load(&self) -> Result<Loaded, ConfigError> {
        let file = self.file().map(read).transpose()?.unwrap_or_default();
        let typed = Settings::of_flags(&self.flags).over(environment::read(&self.variables));
        let settings = typed.over(file).over(Settings::defaults());
        let mut warnings = environment::warnings(&self.variables);
        let believed = believe(&settings).and_then(|config| open_files(&config, &settings).map(|()| config));
        // A variable with a slip in its name is often why something is missing.
        let config = believed.map_err(|error| error.and(&warnings))?;
        let lookup = |name: &str| self.variables.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
        let (otlp, of_otlp) = Otlp::of_environment(lookup);
        warnings.extend(of_otlp);
        Ok(Loaded { config, otlp, settings, warnings })
    }
}

/// The largest configuration file, in bytes. What is larger is another file, or a device.
const MAX_FILE: u64 = 1 << 20;

fn read(path: &Path) -> Result<Settings, ConfigError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    let why = match read {
        Ok(_) if text.len() as u64 > MAX_FILE => format!("it is larger than {MAX_FILE} bytes"),
        Ok(_) => return file::read(path, &text).map_err(ConfigError),
        Err(error) => error.to_string(),
    };
    let problem = format!("cannot read the configuration file {}: {why}", path.display());
    Err(Problem::at(Place::Default, problem).into())
}

/// Settings that name files.
const FILES: [&str; 6] = ["upstream_ca", "upstream_cert", "upstream_key", "tls_cert", "tls_key", "tls_client_ca"];

/// Files that the configuration names are opened once, so that `--check` finds the one that is missing.
fn open_files(config: &ProxyConfig, settings: &Settings) -> Result<(), ConfigError> {
    let problem = |(key, value): (&'static str, Value)| {
        let path = value.as_str().filter(|_| FILES.contains(&key))?;
        let error = File::open(path).err()?;
        Some(Problem::with(key, settings.place(key), format!("cannot read {path}: {error}")))
    };
    let problems: Vec<Problem> = config.settings().into_iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems)) }
}
