//! Logs of this process: text or JSON lines on stderr.
//!
//! What we log is ours to answer for. Libraries are held at warnings whatever the level, because their debug lines
//! show headers, and headers hold credentials.

use std::io;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt};

use crate::config::{Log, LogFormat, LogLevel};
use crate::export::control::ACCESS;

/// Changes the level while the process runs.
#[derive(Clone, Debug)]
pub struct Level(reload::Handle<Targets, Registry>);

impl Level {
    /// From now on logs at `level`.
    ///
    /// # Errors
    /// When nothing logs any more.
    pub fn reload(&self, level: LogLevel) -> anyhow::Result<()> {
        Ok(self.0.reload(targets(level))?)
    }
}

/// Begins to log.
///
/// # Errors
/// When the process logs already.
pub fn start(log: Log) -> anyhow::Result<Level> {
    let (filter, handle) = reload::Layer::new(targets(log.level));
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(super::is_colourful(&io::stderr()));
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).try_init()?;
    Ok(Level(handle))
}

fn targets(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let libraries = Targets::new().with_default(level.min(LevelFilter::WARN));
    // The access log has a switch of its own.
    libraries.with_target(env!("CARGO_CRATE_NAME"), level).with_target(ACCESS, level.max(LevelFilter::INFO))
}

#[cfg(test)]
mod tests {
    use tracing::Level as At;

    use super::*;

    #[test]
    fn libraries_are_held_at_warnings_whatever_the_level() {
        let logs = |level, target: &str, at: At| targets(level).would_enable(target, &at);
        assert!(logs(LogLevel::Debug, "streamgauge::proxy", At::DEBUG));
        assert!(!logs(LogLevel::Info, "streamgauge::proxy", At::DEBUG));
        assert!(!logs(LogLevel::Debug, "h2::codec", At::DEBUG));
        assert!(!logs(LogLevel::Debug, "h2::codec", At::INFO));
        assert!(logs(LogLevel::Debug, "h2::codec", At::WARN));
        assert!(!logs(LogLevel::Error, "h2::codec", At::WARN));
    }

    #[test]
    fn the_access_log_is_written_whatever_the_level() {
        assert!(targets(LogLevel::Error).would_enable(ACCESS, &At::INFO));
    }
}
