//! Data capture of SageMaker endpoints: JSON Lines with the bodies of requests and replies as text or base64. Only
//! lengths are read.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

use super::super::json::{NestedRow, parse, row};
use super::super::{Error, Trace, TraceProblem};
use super::api_body::{set_reply, set_request};
use super::azure::unix_nanos;
use super::time_zero::TimeZero;
use super::{ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, rows, stream};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "sagemaker",
    aliases: &["sagemaker_data_capture"],
    about: "SageMaker data capture of an endpoint with OpenAI's API: JSON Lines (only lengths are read)",
    time_unit: "the wall clock",
    detected_by: "rows with `captureData` and `eventMetadata`",
    keys: &["captureData", "eventMetadata"],
    detect: |source| has_keys(source, &["captureData", "eventMetadata"], &[]),
    read: Some(read),
    write: None,
    unsupported_reason: "a trace has no texts",
    fields: EntryFields::NONE,
    has_wall_clock: true,
    delta_fields: None,
};

row!(Row {
    data = "captureData": NestedRow<CaptureData>,
    metadata = "eventMetadata": NestedRow<EventMetadata>,
    version = "eventVersion": IgnoredAny,
});
row!(CaptureData { input = "endpointInput": NestedRow<Payload>, output = "endpointOutput": NestedRow<Payload> });
row!(Payload {
    content_type = "observedContentType": IgnoredAny,
    mode: IgnoredAny,
    data: String,
    encoding: String,
});
row!(EventMetadata { id = "eventId": IgnoredAny, time = "inferenceTime": String });

const TIME: &str = "eventMetadata.inferenceTime";
const INPUT: &str = "captureData.endpointInput.data";

impl Payload {
    /// The body; `None` if it is absent or not in its encoding.
    fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        let data = self.data.as_deref()?.as_bytes();
        // AWS writes base64 unless the content type is configured as JSON or CSV.
        if self.encoding.as_deref().is_none_or(|encoding| encoding == "BASE64") {
            return STANDARD.decode(data).ok().map(Cow::Owned);
        }
        Some(Cow::Borrowed(data))
    }
}

fn wall(row: &Row) -> Option<u64> {
    unix_nanos(row.metadata.as_ref()?.0.time.as_deref()?)
}

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let sample = stream.sample_lines().filter_map(|line| parse::<Row>(line, &ConversionLosses::default()).ok());
    header.started_unix_ns = sample.filter_map(|row| wall(&row)).min();
    let (zero, counted) = (TimeZero::new(header.started_unix_ns, &losses), losses.clone());
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        let wall = wall(&row).ok_or_else(|| TraceProblem::in_field(TIME, "expected a time as 2026-04-29T00:03:18Z"))?;
        let mut entry = TraceEntry { at: zero.since(wall), ..TraceEntry::default() };
        let data = row.data.map(|NestedRow(data)| data).ok_or_else(|| TraceProblem::missing("captureData"))?;
        let input = data.input.ok_or_else(|| TraceProblem::missing("captureData.endpointInput"))?.0;
        let input = input.bytes().ok_or_else(|| TraceProblem::in_field(INPUT, "expected base64, or JSON as a text"))?;
        set_request(&mut entry, &input, None)
            .map_err(|problem| TraceProblem { field: Some(INPUT.to_owned()), ..problem })?;
        match data.output.as_ref().and_then(|NestedRow(output)| output.bytes()) {
            Some(output) => set_reply(&mut entry, &output),
            None => counted.count("requests without a captured reply"),
        }
        Ok(Some(entry))
    });
    Ok(Trace { header, entries, losses })
}
