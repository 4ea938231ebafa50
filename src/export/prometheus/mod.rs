//! The scrape: one snapshot in any of the formats that a Prometheus server asks for.
//!
//! | format | what it has that the others have not |
//! |---|---|
//! | text 0.0.4 | every scraper since 2014 reads it |
//! | OpenMetrics 1.0 | exemplars, start times, units |
//! | [`protobuf`] | the same and native histograms, beside the classic buckets |

pub mod name;
mod negotiate;
pub mod protobuf;
mod text;

pub use negotiate::{ScrapeFormat, accepts_gzip, negotiate};

use super::snapshot::Snapshot;

impl ScrapeFormat {
    /// The `Content-Type` that names it.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// A snapshot in this format.
    pub fn encode(self, snapshot: &Snapshot) -> Vec<u8> {
        match self {
            Self::Text => text::encode(snapshot, false).into_bytes(),
            Self::OpenMetrics => text::encode(snapshot, true).into_bytes(),
            Self::Protobuf => protobuf::encode(snapshot),
        }
    }
}
