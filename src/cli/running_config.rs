//! The configuration in force of a running proxy, for `/config` and `/log-level`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::effective_config::explain;
use super::logging::LevelHandle;
use crate::config::otlp::OtlpConfig;
use crate::config::{LoadedConfig, LogLevel, ProxyConfig, SettingsLayer};
use crate::export::control::process_control::ProcessControl;

/// The configuration in force. A reload holds some settings until a restart, and the admin port may have changed the
/// log level.
pub(super) struct RunningConfig {
    level: LevelHandle,
    state: Mutex<RunningState>,
}

struct RunningState {
    config: ProxyConfig,
    settings: SettingsLayer,
    otlp: OtlpConfig,
    log_level: LogLevel,
    /// Settings whose new values wait for a restart.
    held: Vec<String>,
}

impl RunningConfig {
    pub(super) fn new(loaded: &LoadedConfig, level: LevelHandle) -> Self {
        let (config, settings) = (loaded.config.clone(), loaded.settings.clone());
        let log_level = config.log.level;
        let state = RunningState { config, settings, otlp: loaded.otlp.clone(), log_level, held: Vec::new() };
        Self { level, state: Mutex::new(state) }
    }

    /// Takes over a configuration that was loaded again; `held` are the settings that keep their old values. The log
    /// level is the configuration's again.
    pub(super) fn replace(&self, config: Arc<ProxyConfig>, loaded: LoadedConfig, held: &[&str]) {
        let mut state = self.lock();
        let mut settings = loaded.settings;
        settings.hold(&state.settings, held);
        (state.config, state.settings) = (Arc::unwrap_or_clone(config), settings);
        state.held = held.iter().map(ToString::to_string).collect();
        let level = state.config.log.level;
        match self.level.reload(level) {
            Ok(()) => state.log_level = level,
            Err(error) => tracing::error!("the log level stays as it was: {error}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessControl for Arc<RunningConfig> {
    fn config(&self) -> String {
        let state = self.lock();
        let (mut config, mut settings) = (state.config.clone(), state.settings.clone());
        if state.log_level != config.log.level {
            config.log.level = state.log_level;
            settings.set_at_run_time("log_level", "");
        }
        // The digest is that of the loaded configuration, as in /api/state.
        let digest = state.config.digest();
        let text = explain(&LoadedConfig { config, otlp: state.otlp.clone(), settings, warnings: Vec::new() }, &digest);
        match &state.held[..] {
            [] => text,
            held => format!("{text}# restart pending: the new values of {} are not in force\n", held.join(", ")),
        }
    }

    fn log_level(&self) -> LogLevel {
        self.lock().log_level
    }

    fn set_log_level(&self, level: LogLevel) -> Result<(), String> {
        let mut state = self.lock();
        self.level.reload(level).map_err(|error| format!("the log level stays as it was: {error}"))?;
        state.log_level = level;
        tracing::warn!(?level, "the admin port changed the log level");
        Ok(())
    }
}
