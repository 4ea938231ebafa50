//! The fields of a [`TraceEntry`] as a set, used to find the fields that a format cannot hold.

use super::conversion_loss::ConversionLosses;
use crate::trace_file::row::TraceEntry;

/// A set of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryFields(u64);

macro_rules! fields {
    ($($name:ident $path:literal $present:expr;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "positions, only used here")]
        #[derive(Clone, Copy)]
        enum Position { $($name),* }

        impl EntryFields {
            $(
                #[doc = concat!("`", $path, "`.")]
                pub const $name: Self = Self(1 << Position::$name as u32);
            )*

            /// The fields present in a request.
            pub fn of(entry: &TraceEntry) -> Self {
                let mut fields = 0;
                $(
                    let present: fn(&TraceEntry) -> bool = $present;
                    fields |= u64::from(present(entry)) << Position::$name as u32;
                )*
                Self(fields)
            }
        }

        const PATHS: &[&str] = &[$($path),*];
    };
}

fields! {
    PLANNED "planned" |entry| entry.planned.is_some();
    ROUTE "route" |entry| entry.route.is_some();
    DIALECT "dialect" |entry| entry.dialect.is_some();
    MODEL "model" |entry| entry.model.is_some();
    STREAM "stream" |entry| entry.stream.is_some();
    MAX_TOKENS "params.max_tokens" |entry| entry.params.max_tokens.is_some();
    MIN_TOKENS "params.min_tokens" |entry| entry.params.min_tokens.is_some();
    N "params.n" |entry| entry.params.n.is_some();
    TEMPERATURE "params.temperature" |entry| entry.params.temperature.is_some();
    IGNORE_EOS "params.ignore_eos" |entry| entry.params.ignore_eos.is_some();
    LOGPROBS "params.logprobs" |entry| entry.params.logprobs.is_some();
    TOOLS "params.tools" |entry| entry.params.tools.is_some();
    STRUCTURED "params.structured" |entry| entry.params.structured.is_some();
    PROMPT_BYTES "prompt.bytes" |entry| entry.prompt.bytes.is_some();
    PROMPT_TOKENS "prompt.tokens" |entry| entry.prompt.tokens.is_some();
    PROMPT_SOURCE "prompt.source" |entry| entry.prompt.source.is_some();
    CACHED "prompt.cached" |entry| entry.prompt.cached.is_some();
    BLOCKS "prompt.blocks" |entry| !entry.prompt.blocks.is_empty();
    PARTS "prompt.parts" |entry| !entry.prompt.parts.is_empty();
    SESSION "session" |entry| entry.session.is_some();
    TURN "turn" |entry| entry.turn.is_some();
    PARENT "parent" |entry| entry.parent.is_some();
    THINK "think" |entry| entry.think.is_some();
    STATUS "status" |entry| entry.status.is_some();
    ENDING "ending" |entry| entry.ending.is_some();
    OUTCOME "outcome" |entry| entry.outcome.is_some();
    FINISH "finish" |entry| entry.finish.is_some();
    OUTPUT "output_tokens" |entry| entry.output_tokens.is_some();
    OUTPUT_SOURCE "output_source" |entry| entry.output_source.is_some();
    REASONING "reasoning_tokens" |entry| entry.reasoning_tokens.is_some();
    SENT "timing.sent" |entry| entry.timing.sent.is_some();
    EVIDENCE "timing.evidence" |entry| entry.timing.evidence.is_some();
    FIRST_TOKEN "timing.first_token" |entry| entry.timing.first_token.is_some();
    FIRST_OUTPUT "timing.first_output" |entry| entry.timing.first_output.is_some();
    ENDED "timing.ended" |entry| entry.timing.ended.is_some();
    FIRST_TOKENS "timing.first_tokens" |entry| entry.timing.first_tokens.is_some();
    GAPS "timing.gaps" |entry| entry.timing.gaps.is_some();
    LOST_GAPS "timing.lost_gaps" |entry| entry.timing.lost_gaps.is_some();
    ABORT "abort_tokens" |entry| entry.abort_tokens.is_some();
    IN_FLIGHT "in_flight" |entry| entry.in_flight.is_some();
    WANTED_INPUT "wanted.input_tokens" |entry| entry.wanted.input_tokens.is_some();
    WANTED_OUTPUT "wanted.output_tokens" |entry| entry.wanted.output_tokens.is_some();
    WANTED_THINK "wanted.think" |entry| entry.wanted.think.is_some();
    WANTED_ABORT "wanted.abort_tokens" |entry| entry.wanted.abort_tokens.is_some();
    WANTED_LEAVE "wanted.abort_after" |entry| entry.wanted.abort_after.is_some();
    CONNECTING "transfer.connecting" |entry| entry.transfer.as_ref().is_some_and(|of| of.connecting.is_some());
    HEAD "transfer.head" |entry| entry.transfer.as_ref().is_some_and(|of| of.head.is_some());
    FIRST_BYTE "transfer.first_byte" |entry| entry.transfer.as_ref().is_some_and(|of| of.first_byte.is_some());
    BYTES_SENT "transfer.sent" |entry| entry.transfer.as_ref().is_some_and(|of| of.sent.is_some());
    BYTES_RECEIVED "transfer.received" |entry| entry.transfer.as_ref().is_some_and(|of| of.received.is_some());
    READS "transfer.reads" |entry| entry.transfer.as_ref().is_some_and(|of| of.reads.is_some());
    UPSTREAM "upstream" |entry| entry.upstream.is_some();
    CLASS "class" |entry| !entry.class.is_empty();
    SLO_TTFT "slo.ttft" |entry| entry.slo.as_ref().is_some_and(|slo| slo.ttft.is_some());
    SLO_TPOT "slo.tpot" |entry| entry.slo.as_ref().is_some_and(|slo| slo.tpot.is_some());
}

impl EntryFields {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All fields.
    pub const ALL: Self = Self((1 << PATHS.len()) - 1);

    /// Fields in `self` or `other`.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Fields in `self` but not in `others`.
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// True if `self` includes all of `others`.
    pub const fn contains(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// Field paths in a row.
    pub fn paths(self) -> impl Iterator<Item = &'static str> {
        PATHS.iter().enumerate().filter(move |(at, _)| self.0 >> at & 1 == 1).map(|(_, path)| *path)
    }

    /// Adds 1 to the count of each field.
    pub fn count_into(self, losses: &ConversionLosses) {
        if self.0 != 0 {
            self.paths().for_each(|path| losses.count(path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_fields_that_it_has() {
        let mut entry = TraceEntry { model: Some("m".to_owned()), ..TraceEntry::default() };
        entry.prompt.blocks = vec![1];
        let has = EntryFields::of(&entry);
        assert_eq!(has, EntryFields::MODEL.union(EntryFields::BLOCKS));
        assert_eq!(has.without(EntryFields::BLOCKS).paths().collect::<Vec<_>>(), ["model"]);
        assert!(EntryFields::ALL.contains(has) && !EntryFields::MODEL.contains(has));
    }

    #[test]
    fn every_field_of_the_schema_is_listed() {
        let schema = serde_json::to_value(schemars::schema_for!(TraceEntry)).unwrap();
        let properties = |path: &str| -> Vec<String> {
            schema.pointer(path).unwrap().as_object().unwrap().keys().cloned().collect()
        };
        let nested = [
            ("params", "RequestParams"),
            ("prompt", "PromptShape"),
            ("timing", "Timing"),
            ("wanted", "RequestTargets"),
            ("transfer", "TransferStats"),
            ("slo", "SloLimits"),
        ];
        let mut expected: Vec<String> = properties("/properties");
        expected.retain(|name| name != "at" && nested.iter().all(|(field, _)| field != name));
        for (field, of) in nested {
            expected
                .extend(properties(&format!("/$defs/{of}/properties")).iter().map(|name| format!("{field}.{name}")));
        }
        let mut listed: Vec<&str> = PATHS.to_vec();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }
}
