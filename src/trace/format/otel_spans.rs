//! OpenTelemetry spans of inference in OTLP/JSON, as the Collector's file exporter writes them: JSON Lines, a batch of
//! spans each. Attributes are those of the GenAI conventions; texts in attributes are dropped.

use std::collections::VecDeque;

use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{LenientNumber, StringOrNumber};
use super::super::session_table::SessionTable;
use super::super::{Error, Trace, TraceProblem};
use super::time_zero::TimeZero;
use super::{
    ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, nanos, rows_of_lines, stream,
};
use crate::measure::dialect::finish_reason;
use crate::measure::record::Outcome;
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::{PromptShape, RequestParams, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "otel_spans",
    aliases: &["otlp", "otel"],
    about: "OpenTelemetry GenAI spans: OTLP JSON Lines, as the Collector's file exporter writes them (no texts are read)",
    time_unit: "nanoseconds of the wall clock",
    detected_by: "rows with `resourceSpans`",
    keys: &["resourceSpans"],
    detect: |source| has_keys(source, &["resourceSpans"], &[]),
    read: Some(read),
    write: None,
    unsupported_reason: "the proxy exports spans itself",
    fields: EntryFields::NONE,
    has_wall_clock: true,
    delta_fields: None,
};

/// `gen_ai.operation.name` of requests to a model. Agents and tools have spans of their own.
const OPERATIONS: [&str; 4] = ["chat", "text_completion", "generate_content", "embeddings"];
/// `STATUS_CODE_ERROR`, as a number and by its name.
const ERROR_STATUS: [&str; 2] = ["2", "STATUS_CODE_ERROR"];

row!(Batch { resource_spans = "resourceSpans": Vec<NestedRow<ResourceSpans>> });
row!(ResourceSpans { scope_spans = "scopeSpans": Vec<NestedRow<ScopeSpans>> });
row!(ScopeSpans { spans: Vec<NestedRow<Span>> });
row!(Span {
    start = "startTimeUnixNano": StringOrNumber,
    end = "endTimeUnixNano": StringOrNumber,
    attributes: Vec<NestedRow<Attribute>>,
    status: NestedRow<Status>,
});
row!(Status { code: StringOrNumber });
row!(Attribute { key: String, value: NestedRow<AttributeValue> });
row!(AttributeValue {
    text = "stringValue": String,
    integer = "intValue": LenientNumber,
    real = "doubleValue": LenientNumber,
    truth = "boolValue": bool,
    list = "arrayValue": NestedRow<List>,
});
row!(List { values: Vec<NestedRow<ListItem>> });
row!(ListItem { text = "stringValue": String });

impl Span {
    fn attribute(&self, key: &str) -> Option<&AttributeValue> {
        let mut attributes = self.attributes.iter().flatten().map(|NestedRow(attribute)| attribute);
        attributes.find(|attribute| attribute.key.as_deref() == Some(key))?.value.as_ref().map(|NestedRow(value)| value)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.attribute(key)?.text.as_deref()
    }

    fn number(&self, key: &str) -> Option<LenientNumber> {
        self.attribute(key).and_then(|value| value.integer.or(value.real))
    }

    /// A count; counts above 2^53 are not exact, and no real one is.
    fn count(&self, key: &str) -> Option<u64> {
        self.number(key).map(|LenientNumber(number)| number as u64)
    }

    fn is_inference(&self) -> bool {
        match self.text("gen_ai.operation.name") {
            Some(operation) => OPERATIONS.contains(&operation),
            None => self.attribute("gen_ai.request.model").is_some(),
        }
    }

    fn started(&self) -> Option<u64> {
        unix_nanos(self.start.as_ref())
    }

    fn entry(&self, zero: &TimeZero) -> Result<TraceEntry, TraceProblem> {
        const START: &str = "resourceSpans.scopeSpans.spans.startTimeUnixNano";
        let started = self.started().ok_or_else(|| TraceProblem::in_field(START, "expected nanoseconds since 1970"))?;
        let failed = self.text("error.type").is_some()
            || self
                .status
                .as_ref()
                .and_then(|NestedRow(status)| status.code.as_ref())
                .is_some_and(|code| ERROR_STATUS.contains(&code.0.as_str()));
        let mut entry = TraceEntry {
            at: zero.since(started),
            model: self.text("gen_ai.request.model").map(str::to_owned),
            stream: self.attribute("gen_ai.request.stream").and_then(|value| value.truth),
            outcome: Some(if failed { Outcome::Failed } else { Outcome::Success }),
            output_tokens: self.count("gen_ai.usage.output_tokens"),
            reasoning_tokens: self.count("gen_ai.usage.reasoning.output_tokens"),
            params: RequestParams {
                max_tokens: self.count("gen_ai.request.max_tokens"),
                n: self.count("gen_ai.request.choice.count"),
                temperature: self.number("gen_ai.request.temperature").map(|LenientNumber(number)| number),
                ..RequestParams::default()
            },
            prompt: PromptShape {
                tokens: self.count("gen_ai.usage.input_tokens"),
                cached: self.count("gen_ai.usage.cache_read.input_tokens"),
                ..PromptShape::default()
            },
            ..TraceEntry::default()
        };
        let reasons = self.attribute("gen_ai.response.finish_reasons").and_then(|reasons| reasons.list.as_ref());
        let first = reasons.and_then(|NestedRow(list)| list.values.as_ref()?.first());
        entry.finish = first.and_then(|NestedRow(item)| finish_reason(item.text.as_deref()?));
        let waited = self.number("gen_ai.response.time_to_first_chunk");
        entry.timing.first_token =
            waited.map(|waited| nanos("gen_ai.response.time_to_first_chunk", waited, 1e9)).transpose()?;
        entry.timing.ended = unix_nanos(self.end.as_ref()).and_then(|end| end.checked_sub(started));
        Ok(entry)
    }
}

/// OTLP/JSON writes 64-bit integers as strings.
fn unix_nanos(time: Option<&StringOrNumber>) -> Option<u64> {
    time?.0.parse().ok()
}

fn spans(batch: &Batch) -> impl Iterator<Item = &Span> {
    let resources = batch.resource_spans.iter().flatten();
    let scopes = resources.flat_map(|NestedRow(resource)| resource.scope_spans.iter().flatten());
    scopes.flat_map(|NestedRow(scope)| scope.spans.iter().flatten()).map(|NestedRow(span)| span)
}

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    // Names of fields that no request needs, such as ids and events, are no losses.
    let ignored = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let sample = stream.sample_lines().filter_map(|line| parse::<Batch>(line, &ignored).ok());
    let starts =
        sample.filter_map(|batch| spans(&batch).filter(|span| span.is_inference()).filter_map(Span::started).min());
    header.started_unix_ns = starts.min();
    let (zero, counted) = (TimeZero::new(header.started_unix_ns, &losses), losses.clone());
    let mut turns: SessionTable<u32> = SessionTable::new(&losses);
    let entries = rows_of_lines(stream.lines(), move |line, pending: &mut VecDeque<TraceEntry>| {
        let batch: Batch = parse(line, &ConversionLosses::default())?;
        for span in spans(&batch) {
            if !span.is_inference() {
                counted.count("spans that are no requests to a model");
                continue;
            }
            let mut entry = span.entry(&zero)?;
            if let Some(session) = span.text("gen_ai.conversation.id") {
                (entry.session, entry.turn) = (Some(session.to_owned()), Some(turns.next_turn(session)));
            }
            pending.push_back(entry);
        }
        Ok(())
    });
    Ok(Trace { header, entries, losses })
}
