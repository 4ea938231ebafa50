//! The trace file's rows, and every name in them. Pure.
//!
//! JSON Lines: the first line is a [`Header`], each other line an [`Entry`]. What a row cannot tell by itself (the zero
//! of its times, what a block id stands for, whether a turn repeats its history) is said in the header; a field that is
//! absent is unknown, never zero. Times are nanoseconds on the run's own line; wall time stands in the header alone.
//!
//! It is past 400 lines, for it is one list: every field that a file can have, with what it means.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::measure::record::{CountSource, Ending, FinishReason, Outcome};

/// The version that is written. Whatever was written by an older one can be read.
pub const VERSION: u32 = 1;

/// The longest line that is written or read, in bytes. A request of a million tokens in blocks of 16 takes 1.3 MB.
pub const MAX_ROW_BYTES: usize = 8 << 20;

/// Bytes that are taken for a token where a trace knows only bytes: what tokenizers make of English text.
pub const BYTES_PER_TOKEN: u64 = 4;

/// The `source` of what this program itself records: a capture, or a run's result.
pub const SOURCE: &str = concat!("streamgauge ", env!("CARGO_PKG_VERSION"));

/// What holds for every row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceHeader {
    /// The version of this format.
    pub streamgauge_trace: u32,
    /// Who made the trace, as `program version`, or the public format it was read from.
    pub source: String,
    /// The wall-clock moment of time zero, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// What `blocks` of the rows are; absent where rows have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockScheme>,
    /// Whether the later turns of a session repeat their history.
    #[serde(default)]
    pub turns: TurnContent,
}

impl TraceHeader {
    /// A header of this version, which says nothing more.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            streamgauge_trace: VERSION,
            source: source.into(),
            started_unix_ns: None,
            blocks: None,
            turns: TurnContent::Full,
        }
    }

    /// Whether the program itself recorded it, in whatever version: its rows stand in the order of ends then.
    pub fn is_in_completion_order(&self) -> bool {
        self.source.starts_with("streamgauge ")
    }

    /// Reads the first line of a trace.
    ///
    /// # Errors
    /// When it is no header, or one of a later version.
    pub fn read(line: &[u8]) -> Result<Self, HeaderError> {
        #[derive(Deserialize)]
        struct VersionField {
            streamgauge_trace: u64,
        }
        let Ok(VersionField { streamgauge_trace: version }) = serde_json::from_slice(line) else {
            return Err(HeaderError::NotAHeader);
        };
        if version > u64::from(VERSION) {
            return Err(HeaderError::UnsupportedVersion(version));
        }
        serde_json::from_slice(line).map_err(HeaderError::Invalid)
    }
}

/// Why a line is no header that can be read.
#[derive(Debug)]
pub enum HeaderError {
    /// It is something else.
    NotAHeader,
    /// It is one of this later version.
    UnsupportedVersion(u64),
    /// It says that it is one, and something in it is wrong.
    Invalid(serde_json::Error),
}

/// The JSON Schema of a file in this format: of its first line, and of every other.
pub fn schema() -> schemars::Schema {
    /// A line of a trace file.
    #[derive(JsonSchema)]
    #[serde(untagged)]
    #[expect(dead_code, clippy::large_enum_variant, reason = "only its schema is wanted")]
    enum TraceLine {
        /// The first line.
        Header(TraceHeader),
        /// Every other line.
        Entry(TraceEntry),
    }
    schemars::schema_for!(TraceLine)
}

/// A row says when it came, whatever it leaves out: the reader sees to that.
fn require_at(entry: &mut schemars::Schema) {
    entry.insert("required".to_owned(), serde_json::json!(["at"]));
    if let Some(at) = entry.pointer_mut("/properties/at").and_then(serde_json::Value::as_object_mut) {
        at.remove("default");
    }
}

/// What the block ids of a trace are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockScheme {
    /// Length of a block, in `unit`s.
    pub size: u32,
    /// What the size counts.
    pub unit: BlockUnit,
    /// Whether a last block that is not full has an id.
    pub last: LastBlock,
    /// What an id stands for.
    pub ids: BlockIds,
    /// Where equal ids mean equal blocks.
    pub scope: BlockScope,
    /// Which key the ids were made with: a digest of it, by which two traces can be told to share ids. Never the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What the length of a block counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockUnit {
    /// Tokens.
    Tokens,
    /// Bytes of the prompt's text.
    Bytes,
}

/// What becomes of a last block that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LastBlock {
    /// It has an id as well: ceil(length / size) ids.
    Kept,
    /// It has none: floor(length / size) ids.
    Dropped,
}

/// What a block id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockIds {
    /// The block and everything before it: equal ids are equal prefixes.
    Chained,
    /// The block by itself: equal ids at different places are no shared prefix.
    Single,
}

/// Where equal ids mean equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockScope {
    /// In the whole trace.
    Trace,
    /// Within one session.
    Session,
}

/// Whether a session's later turns repeat its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnContent {
    /// Every row is a whole request.
    #[default]
    Full,
    /// A later turn holds only what was added to the one before.
    Delta,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(transform = require_at)]
pub struct TraceEntry {
    /// Arrival: nanoseconds from time zero. Of a later turn that only knows its pause, when it would come if no answer
    /// took any time.
    pub at: u64,
    /// When a replay had planned to send it, on the same line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<u64>,
    /// The route under which it was counted, never the path itself: that may carry ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Name of the dialect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// The model asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether a stream was asked for; where the request does not say it, whether it was answered with one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// What else was asked for.
    #[serde(skip_serializing_if = "RequestParams::is_empty")]
    pub params: RequestParams,
    /// The prompt.
    #[serde(skip_serializing_if = "PromptShape::is_empty")]
    pub prompt: PromptShape,
    /// The session it belongs to: a keyed digest of what a client calls it, a random name where it was inferred, or the id
    /// that a public trace has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Its place in the session, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Nanoseconds between the end of the answer before and this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<u64>,
    /// Response status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How the bytes stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// What that means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why generation stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish: Option<FinishReason>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Who counted them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_source: Option<CountSource>,
    /// Output tokens that were reasoning, as the server says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// When things happened.
    #[serde(skip_serializing_if = "Timing::is_empty")]
    pub timing: Timing,
    /// Tokens that the client had received when it left an unfinished reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_tokens: Option<u64>,
    /// Requests in flight when it arrived, itself left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// What a replay had wanted of it.
    #[serde(skip_serializing_if = "RequestTargets::is_empty")]
    pub wanted: RequestTargets,
    /// How a replay's bytes went; apart, for a request that is open holds its row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Box<TransferStats>>,
    /// Host and port of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
}

impl TraceEntry {
    /// Whether the client left before its reply was finished. A client that closes after the end of the stream has its
    /// whole reply, whatever `ending` says of the bytes.
    pub fn is_aborted(&self) -> bool {
        match self.outcome {
            Some(outcome) => outcome == Outcome::Cancelled && self.ending == Some(Ending::DownstreamGone),
            None => self.ending == Some(Ending::DownstreamGone) && !self.has_finish_reason(),
        }
    }

    /// Corrects a row of an earlier version, which wrote an abort for each client that closed first.
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

    /// Whether the row shows that the server finished the reply. A row holds the finish reason of the first choice
    /// alone, so that it shows nothing of several.
    fn has_finish_reason(&self) -> bool {
        self.params.n.is_none_or(|choices| choices <= 1)
            && self.finish.is_some_and(|finish| !matches!(finish, FinishReason::Abort | FinishReason::Error))
    }
}

/// What a request asks for that changes its cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RequestParams {
    /// Limit on generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Least number of generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u64>,
    /// Choices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Whether generation goes on past its natural end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Whether log probabilities are wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<bool>,
    /// Whether tools are offered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<bool>,
    /// Whether the output has to follow a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<bool>,
}

impl RequestParams {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a replay wanted of a request; what came of it stands in the row's other fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RequestTargets {
    /// Prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Output tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Nanoseconds between the end of the answer before and this request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub think: Option<u64>,
    /// Output tokens with which the client was to leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_tokens: Option<u64>,
    /// Nanoseconds after arrival at which the client was to leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort_after: Option<u64>,
}

impl RequestTargets {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How the bytes of a replay's request and reply went; times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TransferStats {
    /// How long a connection was made for it, name look-up and handshakes included; 0 where one was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connecting: Option<u64>,
    /// From arrival to the head of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<u64>,
    /// From arrival to the first byte of the reply's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte: Option<u64>,
    /// Bytes of the request's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Bytes of the reply's body, as far as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Reads that brought them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<u32>,
}

/// The shape of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PromptShape {
    /// Bytes of its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Who counted the tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<CountSource>,
    /// Tokens that the server says came from its cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<u64>,
    /// Ids of its blocks in order; the header says of what.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<u64>,
    /// What it has besides text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PromptPart>,
}

impl PromptShape {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A part of a prompt that is not text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromptPart {
    /// What it is.
    pub kind: PartKind,
    /// Its bytes, once decoded; absent where it is only pointed to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Width and height in pixels, where its first bytes tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<(u32, u32)>,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// An image.
    Image,
    /// Sound.
    Audio,
    /// Moving images.
    Video,
    /// A document.
    File,
}

impl PartKind {
    /// The name under which it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
            Self::Video => "video",
            Self::File => "file",
        }
    }
}

/// When things happened, in nanoseconds after arrival.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Timing {
    /// When the request had been handed to the server whole (`t_up`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// First proof of a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<u64>,
    /// First generated text: TTFT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<u64>,
    /// First generated text that is not reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_output: Option<u64>,
    /// The end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
    /// Tokens of the first token event, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_tokens: Option<u32>,
    /// Every gap between token events with the later event's tokens, packed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<String>,
    /// Gaps that were not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_gaps: Option<u64>,
}

impl Timing {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
