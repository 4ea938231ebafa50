//! Encodes a snapshot in each format that a Prometheus server accepts.
//!
//! | format | advantage |
//! |---|---|
//! | text 0.0.4 | every scraper since 2014 reads it |
//! | OpenMetrics 1.0 | exemplars, start times, units |
//! | [`protobuf`] | all of OpenMetrics 1.0, and native histograms beside classic buckets |

pub mod name;
mod negotiate;
pub mod protobuf;
mod text;

pub use negotiate::{ScrapeFormat, negotiate};

use super::registry::snapshot::Snapshot;

impl ScrapeFormat {
    /// Returns the format's `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Encodes a snapshot in this format.
    pub fn encode(self, snapshot: &Snapshot) -> Vec<u8> {
        match self {
            Self::Text => text::encode(snapshot, false).into_bytes(),
            Self::OpenMetrics => text::encode(snapshot, true).into_bytes(),
            Self::Protobuf => protobuf::encode(snapshot),
        }
    }
}
