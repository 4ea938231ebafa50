//! A run's configuration, and the commands during it.

use std::sync::Arc;

use rustls::ClientConfig;
use tokio::sync::Semaphore;

use super::pool::ConnectionReuse;
use super::target::TargetUrl;
use crate::measure::slo::Slos;
use crate::measure::time::{Gap, Stamp};
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::request::encoder::RequestEncoder;
use crate::replay::result::row::CompletedRequest;
use crate::trace_file::row::TraceEntry;

/// Receives every record with its row, on the collector thread. The row has no packed gaps.
pub type CompletionCallback = Box<dyn FnMut(&CompletedRequest, &TraceEntry) + Send>;

/// Open or closed loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopMode {
    /// The schedule decides when each request is sent.
    #[default]
    Open,
    /// A request is sent when a slot is free.
    Closed,
}

/// The order of a session's turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionMode {
    /// A turn waits for the previous response, and then for the trace's think time.
    #[default]
    Live,
    /// Each turn is sent at its own time.
    Timed,
}

/// A run's configuration.
pub struct Config {
    /// Servers under load.
    pub targets: Vec<TargetUrl>,
    /// TLS client configuration, if a target uses TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// Encodes the requests.
    pub encoder: RequestEncoder,
    /// Open or closed loop.
    pub loop_mode: LoopMode,
    /// Limit on requests in flight.
    pub slots: Option<Arc<Semaphore>>,
    /// Order of a session's turns.
    pub sessions: SessionMode,
    /// Turns due later than this are not sent, nor are the session's further turns.
    pub session_time_limit: Option<Gap>,
    /// Connection policy.
    pub connections: ConnectionReuse,
    /// Timeout of a connection attempt.
    pub connect_timeout: Gap,
    /// Timeout of a request.
    pub timeout: Gap,
    /// Run time per trace time between turns.
    pub think_time_scale: f64,
    /// SLOs for goodput.
    pub slos: Arc<Slos>,
    /// Gaps from this length on count as stalls.
    pub stall: Gap,
    /// Number of sending threads.
    pub workers: usize,
    /// Selects the measured requests.
    pub measurement_window: MeasurementWindow,
    /// Time zero; `None` starts as soon as possible.
    pub begin: Option<Stamp>,
}

/// A command to every thread of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCommand {
    /// Continue to send.
    Run,
    /// The duration of a closed loop is over: send nothing more and finish open requests.
    End,
    /// As `End`, but early.
    Drain,
    /// Stop immediately.
    Halt,
}
