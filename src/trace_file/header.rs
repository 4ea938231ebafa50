//! The first line of the trace file: the properties that its rows share. Pure.
//!
//! These are the zero of the rows' times, the meaning of block ids, and whether turns repeat their history. Only the
//! header has wall time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::TraceEntry;

/// The version that is written. All older versions are readable.
pub const VERSION: u32 = 1;

/// `source` of traces recorded by this program: captures and run results.
pub const SOURCE: &str = concat!("streamgauge ", env!("CARGO_PKG_VERSION"));

/// Label of a twin's rows. Every output that shows figures of such rows states it.
pub const SIMULATED: &str = "SIMULATED: a twin's prediction, not a measurement";

/// Properties of all rows of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TraceHeader {
    /// Version of this format.
    pub streamgauge_trace: u32,
    /// Producer of the trace, as `program version`, or the public format it was converted from.
    pub source: String,
    /// Wall-clock time of time zero, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_unix_ns: Option<u64>,
    /// Scheme of the block ids in `prompt.blocks`; absent if rows have no ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlockScheme>,
    /// Whether later turns of a session repeat their history.
    #[serde(default)]
    pub turns: TurnContent,
    /// Share of sessions that the capture kept, above 0 and below 1; absent if it kept all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<f64>,
    /// True if a twin predicted the results of the rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
}

impl TraceHeader {
    /// A header of this version with only its source set.
    pub fn new(source: impl Into<String>) -> Self {
        Self {
            streamgauge_trace: VERSION,
            source: source.into(),
            started_unix_ns: None,
            blocks: None,
            turns: TurnContent::Full,
            sample: None,
            simulated: false,
        }
    }

    /// True if any version of this program recorded the trace, so rows are in completion order.
    pub fn is_in_completion_order(&self) -> bool {
        self.source.starts_with("streamgauge ")
    }

    /// Parses the first line of a trace.
    ///
    /// # Errors
    /// If the line is no header, or one of a newer version.
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

/// The line is no readable header.
#[derive(Debug)]
pub enum HeaderError {
    /// The line is something else.
    NotAHeader,
    /// The header has this newer version.
    UnsupportedVersion(u64),
    /// The line declares itself a header but is invalid.
    Invalid(serde_json::Error),
}

/// JSON Schema of one line of a trace file: the header or a row.
pub fn schema() -> schemars::Schema {
    /// One line of a trace file.
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

/// How the block ids of a trace were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockScheme {
    /// Block length, in `unit`s.
    pub size: u32,
    /// Unit of `size`.
    pub unit: BlockUnit,
    /// Whether a partial last block has an id.
    pub last: LastBlock,
    /// Whether an id covers the prefix before its block.
    pub ids: BlockIds,
    /// Where equal ids mean equal blocks.
    pub scope: BlockScope,
    /// Digest of the key that the ids were made with; never the key. Traces with equal digests share ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Unit of the block length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockUnit {
    /// Tokens of the prompt.
    Tokens,
    /// Bytes of the prompt's text.
    Bytes,
}

/// Treatment of a partial last block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LastBlock {
    /// A partial block has an id: ceil(length / size) ids.
    Kept,
    /// A partial block has no id: floor(length / size) ids.
    Dropped,
}

/// Part of the prompt that a block id identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockIds {
    /// The block and everything before it: equal ids are equal prefixes.
    Chained,
    /// The block alone: equal ids at different positions are no shared prefix.
    Single,
}

/// Where equal ids mean equal blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockScope {
    /// In the whole trace.
    Trace,
    /// Only within one session.
    Session,
}

/// Whether later turns of a session repeat its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnContent {
    /// Every row is a complete request.
    #[default]
    Full,
    /// A later turn contains only what it adds to the turn before.
    Delta,
}
