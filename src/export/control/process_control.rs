//! The process settings that the admin port may show and change.

use crate::config::LogLevel;

/// Shows and changes the process's settings.
pub trait ProcessControl: Send + Sync {
    /// The configuration in force as YAML, without secrets.
    fn config(&self) -> String;

    /// The least severe level that is logged.
    fn log_level(&self) -> LogLevel;

    /// Logs at this level from now on.
    ///
    /// # Errors
    /// The reason why the level stays as it was.
    fn set_log_level(&self, level: LogLevel) -> Result<(), String>;
}

impl std::fmt::Debug for dyn ProcessControl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProcessControl")
    }
}
