//! AIPerf's raw payloads: one complete request body per line, without times. Only lengths are read.

use super::super::{Error, Trace};
use super::api_body::set_request;
use super::{ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, rows, stream};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::TraceEntry;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "raw_payload",
    aliases: &[],
    about: "AIPerf raw_payload, or prompts as OpenAI requests: JSON Lines of request bodies (only lengths are read)",
    time_unit: "no unit: each request begins at 0",
    detected_by: "rows with `messages`",
    keys: &["messages"],
    detect: |source| has_keys(source, &["messages"], &["conversation_id", "timestamp", "session_id"]),
    read: Some(read),
    write: None,
    unsupported_reason: "a trace has no texts",
    fields: EntryFields::NONE,
    has_wall_clock: false,
    delta_fields: None,
};

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let counted = losses.clone();
    let entries = rows(stream.lines(), move |line| {
        counted.count("rows without a time, taken to come at 0");
        let mut entry = TraceEntry::default();
        set_request(&mut entry, line, None)?;
        Ok(Some(entry))
    });
    Ok(Trace { header: TraceHeader::new(FORMAT.name), entries, losses })
}
