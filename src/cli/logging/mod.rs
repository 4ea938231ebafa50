//! Logs of this process: text or JSON lines on stderr, and records for an OTLP collector.
//!
//! Libraries log warnings at most, whatever the level, because their debug lines show headers, and headers hold
//! credentials. Their lines are not exported: an export's own lines would be exported in turn.

mod stderr_writer;

use std::io;
use std::sync::Arc;

use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt};

use self::stderr_writer::StderrWriter;
use crate::config::otlp::OtlpConfig;
use crate::config::{LogConfig, LogFormat, LogLevel};
use crate::export::control::thread::ACCESS_LOG_TARGET;
use crate::export::otlp::logs::LogPipeline;
use crate::measure::time::Gap;

/// How long the end of the process waits for the last lines to be written.
const FLUSH_TIMEOUT: Gap = Gap::from_millis(1_000);

/// The log of this process. Held until its end, so that the last lines are written.
#[derive(Debug)]
pub struct LogHandle {
    level: LevelHandle,
    pipeline: Option<LogPipeline>,
    lines: Arc<StderrWriter>,
}

/// Changes the level of the log.
#[derive(Clone, Debug)]
pub struct LevelHandle {
    stderr: reload::Handle<Targets, Registry>,
    export: Option<reload::Handle<Targets, Registry>>,
}

impl LevelHandle {
    /// From now on logs at `level`.
    ///
    /// # Errors
    /// When nothing logs any more.
    pub fn reload(&self, level: LogLevel) -> anyhow::Result<()> {
        if let Some(exported) = &self.export {
            exported.reload(own_targets(level))?;
        }
        Ok(self.stderr.reload(targets(level))?)
    }
}

impl LogHandle {
    /// Returns what changes the level.
    pub fn level(&self) -> LevelHandle {
        self.level.clone()
    }

    /// The records for a control plane to export, if logs are exported.
    pub fn exported(&self) -> Option<&LogPipeline> {
        self.pipeline.as_ref()
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
pub fn start(log: LogConfig, otlp: &OtlpConfig) -> anyhow::Result<LogHandle> {
    let lines = StderrWriter::spawn()?;
    let layer =
        fmt::layer().with_writer(Arc::clone(&lines)).with_ansi(crate::cli::terminal::supports_colour(&io::stderr()));
    let layer = match log.format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let (layer, stderr) = reloadable(layer, targets(log.level));
    let mut layers = vec![layer];
    let export = otlp.logs.as_ref().map(|settings| {
        let pipeline = LogPipeline::new(settings);
        let bridge = OpenTelemetryTracingBridge::new(pipeline.provider());
        let (layer, level) = reloadable(bridge.boxed(), own_targets(log.level));
        layers.push(layer);
        (pipeline, level)
    });
    tracing_subscriber::registry().with(layers).try_init()?;
    let (pipeline, export) = export.unzip();
    Ok(LogHandle { level: LevelHandle { stderr, export }, pipeline, lines })
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn reloadable(layer: BoxedLayer, targets: Targets) -> (BoxedLayer, reload::Handle<Targets, Registry>) {
    let (filter, level) = reload::Layer::new(targets);
    (layer.with_filter(filter).boxed(), level)
}

fn targets(level: LogLevel) -> Targets {
    own_targets(level).with_default(filter(level).min(LevelFilter::WARN))
}

fn own_targets(level: LogLevel) -> Targets {
    let level = filter(level);
    // The access log has a switch of its own.
    Targets::new()
        .with_target(env!("CARGO_CRATE_NAME"), level)
        .with_target(ACCESS_LOG_TARGET, level.max(LevelFilter::INFO))
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    }
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
    fn the_access_log_is_written_and_exported_whatever_the_level() {
        for targets in [targets(LogLevel::Error), own_targets(LogLevel::Error)] {
            assert!(targets.would_enable(ACCESS_LOG_TARGET, &At::INFO));
        }
    }

    #[test]
    fn lines_of_libraries_are_not_exported() {
        let exported = own_targets(LogLevel::Debug);
        assert!(exported.would_enable("streamgauge::proxy", &At::DEBUG));
        assert!(!exported.would_enable("h2::codec", &At::ERROR));
    }
}
