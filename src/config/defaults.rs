//! Default values as text, the lowest layer of settings. [`ProxyConfig`](super::ProxyConfig) gives the reason at each
//! field.

use std::ops::RangeInclusive;

use crate::measure::time::Gap;

/// Number of [`ADMIN_PORT`], also for text.
macro_rules! admin_port {
    () => {
        9464
    };
}

/// Port of the admin address. OpenTelemetry assigns it to Prometheus exporters.
pub const ADMIN_PORT: u16 = admin_port!();

/// Defaults that do not depend on the machine.
pub(super) const DEFAULTS: &[(&str, &str)] = &[
    ("listen", "127.0.0.1:8080"),
    ("admin", concat!("127.0.0.1:", admin_port!())),
    ("admin_hosts", NONE),
    ("admin_insecure", "false"),
    ("transparent", "false"),
    ("max_destinations", "64"),
    ("upstream_http", "auto"),
    ("upstream_connect_timeout", "5s"),
    ("headers", NONE),
    ("ask_usage", "false"),
    ("max_head_bytes", "65536"),
    ("head_timeout", "30s"),
    ("idle_timeout", "10m"),
    ("max_streams", "10000"),
    ("max_connections", "20000"),
    ("drain", "10m"),
    ("max_class_values", "20"),
    ("stall", "1s"),
    ("max_models", "64"),
    ("gen_ai_client", "true"),
    ("tail_keep", NONE),
    ("trace_probes", "false"),
    ("capture_spool", "capture-spool"),
    ("capture_flush", "1s"),
    ("capture_round", "0"),
    ("capture_key_rotate", "false"),
    ("capture_session", INFERRED),
    ("capture_names", "1"),
    ("capture_sample", "100%"),
    ("capture_format", "jsonl"),
    ("capture_keep_bytes", "10737418240"),
    ("capture_keep_age", "168h"),
    ("access_log", "false"),
    ("log_format", "text"),
    ("log_level", "info"),
];

/// Denotes an empty list.
pub(super) const NONE: &str = "none";

/// Denotes sessions that are inferred from messages.
pub(super) const INFERRED: &str = "inferred";

/// Default block length, in bytes and in tokens.
pub(super) const DEFAULT_BLOCK: (usize, usize) = (512, 16);

/// Upper limit of the default.
const MAX_DEFAULT_WORKERS: usize = 4;

/// The default: the cores available to the process, within a container's quota.
pub(super) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_WORKERS)
}

/// Bounds of numeric settings.
///
/// * `workers`: more threads than that only contend.
/// * `max_head_bytes`: below 1 KiB ordinary requests are rejected; the read buffer holds 64 KiB.
/// * `max_streams`, `max_connections`: a kernel allows one process a million open files.
/// * `capture_block`: below 16 bytes a prompt's ids are larger than the prompt; no cache has blocks below 16 tokens.
/// * `capture_names`: after a million successes a name is in effect never written.
/// * `capture_keep_bytes`: from a megabyte, a few segments' beginnings, to a terabyte.
/// * `max_destinations`, `max_models`, `max_class_values`: above, this process's metrics would burden the Prometheus server that scrapes them.
pub(super) const BOUNDS: &[(&str, RangeInclusive<usize>)] = &[
    ("workers", 1..=64),
    ("max_head_bytes", 1024..=65_536),
    ("max_streams", 1..=1_000_000),
    ("max_connections", 1..=1_000_000),
    ("max_destinations", 1..=1_000),
    ("max_models", 1..=1_000),
    ("max_class_values", 1..=1_000),
    ("capture_block", 16..=65_536),
    ("capture_names", 1..=1_000_000),
    ("capture_keep_bytes", 1_048_576..=1_099_511_627_776),
];
/// Bounds of time limits. A day is longer than any stream; a limit below a millisecond is a wrong unit.
pub(super) const TIMEOUT_BOUNDS: RangeInclusive<Gap> = Gap::from_millis(1)..=MAX_TIMEOUT;
/// Bounds of `drain`, which may be zero.
pub(super) const DRAIN_BOUNDS: RangeInclusive<Gap> = Gap::ZERO..=MAX_TIMEOUT;
pub(super) const CAPTURE_FLUSH_BOUNDS: RangeInclusive<Gap> = Gap::from_millis(10)..=Gap::from_millis(3_600_000);
/// Bounds of `capture_round`: rounding to a minute leaves no detail of a stream.
pub(super) const CAPTURE_ROUND_BOUNDS: RangeInclusive<Gap> = Gap::ZERO..=Gap::from_millis(60_000);
/// Bounds of `capture_keep_age`: one minute to ten years.
pub(super) const CAPTURE_KEEP_AGE_BOUNDS: RangeInclusive<Gap> =
    Gap::from_millis(60_000)..=Gap::from_millis(87_600 * 3_600_000);
const MAX_TIMEOUT: Gap = Gap::from_millis(24 * 3_600_000);
