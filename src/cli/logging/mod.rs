//! Logs of this process: text or JSON lines on stderr.
//!
//! What we log is ours to answer for. Libraries are held at warnings whatever the level, because their debug lines
//! show headers, and headers hold credentials.

mod stderr_writer;

use std::io;
use std::sync::Arc;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry, fmt};

use self::stderr_writer::StderrWriter;
use crate::config::{LogConfig, LogFormat, LogLevel};
use crate::export::control::thread::ACCESS_LOG_TARGET;
use crate::measure::time::Gap;

/// How long the end of the process waits for the last lines to be written.
const FLUSH_TIMEOUT: Gap = Gap::from_millis(1_000);

/// The log of this process. Held until its end, so that the last lines are written.
#[derive(Debug)]
pub struct LogHandle {
    level: reload::Handle<Targets, Registry>,
    lines: Arc<StderrWriter>,
}

impl LogHandle {
    /// From now on logs at `level`.
    ///
    /// # Errors
    /// When nothing logs any more.
    pub fn reload(&self, level: LogLevel) -> anyhow::Result<()> {
        Ok(self.level.reload(targets(level))?)
    }
}

impl Drop for LogHandle {
    fn drop(&mut self) {
        self.lines.wait_until_written(FLUSH_TIMEOUT);
    }
}

/// Begins to log.
///
/// # Errors
/// When the process logs already, or no thread can be had.
pub fn start(log: LogConfig) -> anyhow::Result<LogHandle> {
    let (filter, level) = reload::Layer::new(targets(log.level));
    let lines = StderrWriter::spawn()?;
    let layer =
        fmt::layer().with_writer(Arc::clone(&lines)).with_ansi(crate::cli::terminal::supports_colour(&io::stderr()));
    let layer = match log.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()?;
    Ok(LogHandle { level, lines })
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
    libraries.with_target(env!("CARGO_CRATE_NAME"), level).with_target(ACCESS_LOG_TARGET, level.max(LevelFilter::INFO))
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
        assert!(targets(LogLevel::Error).would_enable(ACCESS_LOG_TARGET, &At::INFO));
    }
}
