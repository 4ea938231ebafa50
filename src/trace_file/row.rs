//! The rows of the trace file and all their field names. Pure.
//!
//! JSON Lines: the first line is a [`TraceHeader`](super::header::TraceHeader), each other line a [`TraceEntry`]. An
//! absent field is unknown, never zero. Times are nanoseconds since the trace's time zero.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::dialect::prompt::Medium;
use crate::measure::record::{CountSource, Ending, FinishReason, Outcome};
use crate::measure::request_class::ClassValues;
use crate::measure::slo::{Metric, RequestSlo};
use crate::measure::time::Gap;

/// Maximum length of a line, in bytes. A request of a million tokens in blocks of 16 takes 1.3 MB.
pub const MAX_ROW_BYTES: usize = 8 << 20;

/// Assumed bytes per token where a trace has only bytes: typical of tokenizers on English text.
pub const BYTES_PER_TOKEN: u64 = 4;

/// Requires only `at` in the schema, as the reader does.
fn require_at(entry: &mut schemars::Schema) {
    entry.insert("required".to_owned(), serde_json::json!(["at"]));
    if let Some(at) = entry.pointer_mut("/properties/at").and_then(serde_json::Value::as_object_mut) {
        at.remove("default");
    }
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = require_at)]
pub struct TraceEntry {
    /// Arrival in nanoseconds since time zero. If a later turn has only a pause, its arrival assumes that replies take
    /// no time.
    pub at: u64,
    /// Send time planned by a replay, in nanoseconds since time zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
    /// Route label of the request; never its path, which may contain ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Name of the API dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// Requested model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether the client requested a stream; if the request does not specify it, whether the reply was a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Other request parameters.
    #[serde(skip_serializing_if = "RequestParams::is_empty")]
    pub params: RequestParams,
    /// Shape of the prompt.
    #[serde(skip_serializing_if = "PromptShape::is_empty")]
    pub prompt: PromptShape,
    /// Session of the request: a keyed digest of the client's session id, a random name if the session was inferred, or
    /// the id in a public trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Position in the session, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Session that this one is a sub-agent of, as in `session`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Nanoseconds between the end of the previous reply and this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<u64>,
    /// HTTP status of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How the response body ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// Result of the request, derived from its ending, status and content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why generation stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinishReason>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Source of the output token count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_source: Option<CountSource>,
    /// Output tokens used for reasoning, as reported by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Times of the request's events.
    #[serde(skip_serializing_if = "Timing::is_empty")]
    pub timing: Timing,
    /// Tokens that the client had received when it left an unfinished reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_tokens: Option<u64>,
    /// Other requests in flight at arrival.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Targets that a replay had for the request.
    #[serde(skip_serializing_if = "RequestTargets::is_empty")]
    pub wanted: RequestTargets,
    /// Transfer details of a replayed request. Boxed, because each open request holds its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Box<TransferStats>>,
    /// Host and port of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Values of the configured classes, by name.
    #[serde(skip_serializing_if = "ClassValues::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, String>")]
    pub class: ClassValues,
    /// Limits that the request set for itself. Boxed, because few requests have any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo: Option<Box<SloLimits>>,
}

/// Limits that a request sets for itself, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SloLimits {
    /// Limit on the time to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft: Option<u64>,
    /// Limit on the time per output token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot: Option<u64>,
}

impl SloLimits {
    /// The limits of a request; `None` if it set none.
    pub fn of(slo: RequestSlo) -> Option<Box<Self>> {
        let nanos = |metric| slo.limit(metric).map(Gap::as_nanos);
        let limits = Self { ttft: nanos(Metric::Ttft), tpot: nanos(Metric::Tpot) };
        (limits != Self::default()).then(|| Box::new(limits))
    }
}

impl TraceEntry {
    /// Limits that the request set for itself.
    pub fn request_slo(&self) -> RequestSlo {
        self.slo.as_ref().map_or_else(RequestSlo::default, |slo| RequestSlo::of_nanos(slo.ttft, slo.tpot))
    }

    /// True if the client left before its reply was finished. A client that closes after the end of the stream has its
    /// complete reply, even if `ending` is `DownstreamGone`.
    pub fn is_aborted(&self) -> bool {
        match self.outcome {
            Some(outcome) => outcome == Outcome::Cancelled && self.ending == Some(Ending::DownstreamGone),
            None => self.ending == Some(Ending::DownstreamGone) && !self.has_finish_reason(),
        }
    }

    /// Names the server after its capture or instance: every sidecar calls its own server 127.0.0.1.
    pub fn name_server(&mut self, owner: &str) {
        self.upstream = Some(match self.upstream.take() {
            Some(upstream) => format!("{owner} {upstream}"),
            None => owner.to_owned(),
        });
    }

    /// Corrects rows of earlier versions, which recorded an abort for each client that closed first.
    pub(super) fn correct_abort(&mut self) {
        let closed = self.ending == Some(Ending::DownstreamGone);
        let success = matches!(self.status, Some(200..=299));
        if closed && success && self.outcome == Some(Outcome::Cancelled) && self.has_finish_reason() {
            self.outcome = Some(Outcome::Success);
        }
        if closed && !self.is_aborted() {
            self.abort_tokens = None;
        }
    }

    /// True if the row proves that the server finished the reply. A row has only the finish reason of the first choice,
    /// so it proves nothing for several choices.
    fn has_finish_reason(&self) -> bool {
        self.params.n.is_none_or(|choices| choices <= 1)
            && self.finish.is_some_and(|finish| !matches!(finish, FinishReason::Abort | FinishReason::Error))
    }
}

/// Request parameters that change the cost of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RequestParams {
    /// Maximum number of generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Minimum number of generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u64>,
    /// Number of choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Whether generation continues past the end-of-sequence token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Whether the client requested log probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Whether the request offers tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// Whether the output must follow a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<bool>,
}

impl RequestParams {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Targets of a replay for one request; the other fields of the row have the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RequestTargets {
    /// Target number of prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Target number of output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Target nanoseconds between the end of the previous reply and this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<u64>,
    /// Output tokens after which the client had to leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_tokens: Option<u64>,
    /// Nanoseconds after arrival at which the client had to leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_after: Option<u64>,
}

impl RequestTargets {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Transfer details of a replayed request and its reply; times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TransferStats {
    /// Time to open a connection, including name look-up and handshakes; 0 if an open connection was reused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connecting: Option<u64>,
    /// From arrival to the head of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<u64>,
    /// From arrival to the first byte of the reply's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<u64>,
    /// Bytes of the request body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Bytes of the reply body received so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Number of socket reads for the reply body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<u32>,
}

/// Shape of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PromptShape {
    /// Bytes of the prompt's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Source of the prompt token count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<CountSource>,
    /// Prompt tokens served from the prefix cache, as reported by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Block ids in order; the header defines their scheme.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<u64>,
    /// Non-text parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PromptPart>,
}

impl PromptShape {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A non-text part of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromptPart {
    /// Media type of the part.
    pub kind: PartKind,
    /// Decoded size in bytes; absent if the request only has a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Width and height in pixels, if its first bytes contain them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<(u32, u32)>,
}

/// Media type of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// An image.
    Image,
    /// Audio.
    Audio,
    /// Video.
    Video,
    /// A document.
    File,
}

impl From<Medium> for PartKind {
    fn from(medium: Medium) -> Self {
        match medium {
            Medium::Image => Self::Image,
            Medium::Audio => Self::Audio,
            Medium::Video => Self::Video,
            Medium::File => Self::File,
        }
    }
}

impl PartKind {
    /// The name in a row.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::File => "file",
        }
    }
}

/// Times of a request's events, in nanoseconds after arrival.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Timing {
    /// Complete request passed to the server (`t_up`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// First evidence that a token exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<u64>,
    /// First generated text (TTFT).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<u64>,
    /// First generated text that is not reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_output: Option<u64>,
    /// End of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// Tokens of the first token event, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_tokens: Option<u32>,
    /// Every gap between token events with the tokens of the later event, packed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<String>,
    /// Number of gaps that were not stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_gaps: Option<u64>,
}

impl Timing {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
