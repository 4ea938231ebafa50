//! What a file's values let a latency be. Two files of different tools have figures of one name and of two meanings.
//!
//! | | begins, without a planned time | E2E ends | ITL | TPOT divides by |
//! |---|---|---|---|---|
//! | our rows | at the first byte of the request | at the end of the response | gaps ÷ their tokens | tokens after the first event |
//! | AIPerf, inference-perf | before the connection is made | at the end of the response | gaps between chunks | tokens − 1 |
//! | vLLM's tool | likewise | at the last token: the file has no later time | likewise | likewise |
//! | GuideLLM | likewise | at the end of the response | none: the file has no gaps | likewise |

use super::detect::PeerFormat;

/// Meaning of the latencies of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileDefinitions {
    /// Begin of TTFT and E2E of a request without a planned time.
    pub begin: &'static str,
    /// End of E2E.
    pub e2e_end: &'static str,
    /// Values of ITL.
    pub itl: &'static str,
    /// Divisor of TPOT.
    pub tpot_divisor: &'static str,
}

impl FileDefinitions {
    /// Returns the definitions of a format; `None` for our own rows.
    pub const fn of(format: Option<PeerFormat>) -> Self {
        let Some(format) = format else {
            return Self {
                begin: "at the first byte of the request",
                e2e_end: "at the end of the response",
                itl: "gaps ÷ their tokens",
                tpot_divisor: "tokens after the first event",
            };
        };
        Self {
            begin: "before the connection is made",
            e2e_end: match format {
                PeerFormat::VllmBench => "at the last token",
                _ => "at the end of the response",
            },
            itl: match format {
                PeerFormat::Guidellm => "none: the file has no gaps",
                _ => "gaps between chunks",
            },
            tpot_divisor: "tokens − 1",
        }
    }
}
