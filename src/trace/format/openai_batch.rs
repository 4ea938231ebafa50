//! Files of OpenAI's Batch API, without times: a request per line, or the replies to them. Only lengths are read.

use serde::de::IgnoredAny;

use super::super::json::{NestedRow, parse, row};
use super::super::json_values::RawJson;
use super::super::{Error, Trace, TraceProblem};
use super::api_body::{set_reply, set_request};
use super::{ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, rows, stream};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "openai_batch",
    aliases: &["batch"],
    about: "OpenAI batch files, of requests or of replies: JSON Lines (only lengths are read)",
    time_unit: "no unit: each request begins at 0",
    detected_by: "rows with `custom_id`",
    keys: &["custom_id"],
    detect: |source| has_keys(source, &["custom_id"], &[]),
    read: Some(read),
    write: None,
    unsupported_reason: "a trace has no texts",
    fields: EntryFields::NONE,
    has_wall_clock: false,
    delta_fields: None,
};

row!(Row {
    custom_id: IgnoredAny,
    method: IgnoredAny,
    url: String,
    body: RawJson,
    id: IgnoredAny,
    response: NestedRow<Response>,
    error: IgnoredAny,
});
row!(Response { status_code: u32, request_id: IgnoredAny, body: RawJson });

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let counted = losses.clone();
    let entries = rows(stream.lines(), move |line| {
        let row: Row = parse(line, &counted)?;
        counted.count("rows without a time, taken to come at 0");
        let mut entry = TraceEntry::default();
        match (row.body, row.response) {
            (Some(body), _) => {
                set_request(&mut entry, body.bytes(), row.url.as_deref())
                    .map_err(|problem| TraceProblem { field: Some("body".to_owned()), ..problem })?;
            }
            (None, Some(NestedRow(response))) => {
                entry.status = response.status_code.and_then(|code| u16::try_from(code).ok());
                if let Some(body) = response.body {
                    set_reply(&mut entry, body.bytes());
                }
            }
            (None, None) => {
                counted.count("rows with neither a request nor a reply");
                return Ok(None);
            }
        }
        Ok(Some(entry))
    });
    Ok(Trace { header: TraceHeader::new(FORMAT.name), entries, losses })
}
