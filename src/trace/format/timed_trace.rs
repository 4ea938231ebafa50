//! vLLM's `timed_trace`: Mooncake's fields, but by default with seconds and blocks of 16 tokens.

use super::super::blocks::mooncake_scheme;
use super::super::{Error, Trace, TraceProblem};
use super::mooncake::{MooncakeWriter, read_rows};
use super::time_unit::{TIMED_TRACE_BLOCK_TOKENS, TIMED_TRACE_TYPE, TimeUnit, TimeUnitEvidence};
use super::{
    ConversionLosses, EntryFields, FormatWriter, InputSource, ReadOptions, ScaledTime, TraceFormat, TraceOutput,
    has_keys, stream,
};
use crate::trace_file::header::TraceHeader;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: TIMED_TRACE_TYPE,
    aliases: &["vllm"],
    about: "vLLM bench serve timed_trace: as mooncake, but for its unit of time, and blocks of 16 tokens",
    time_unit: "seconds",
    detected_by: "mooncake's fields with timestamps in seconds",
    keys: &["timestamp", "input_length", "output_length", "hash_ids"],
    detect,
    read: Some(read),
    write: Some(write),
    unsupported_reason: "",
    fields: EntryFields::PROMPT_TOKENS.union(EntryFields::OUTPUT).union(EntryFields::BLOCKS),
    has_wall_clock: false,
    delta_fields: None,
};

fn detect(source: &InputSource) -> bool {
    let InputSource::Stream(stream) = source else { return false };
    has_keys(source, &["timestamp", "input_length"], &[])
        && (has_keys(source, &["hash_ids"], &[]) || has_keys(source, &["type"], &[]))
        && TimeUnitEvidence::from_stream(stream).unit() == TimeUnit::Seconds
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let mut header = TraceHeader::new(FORMAT.name);
    let block_size = options
        .block_size
        .unwrap_or_else(|| TimeUnitEvidence::from_stream(&stream).block_size(TIMED_TRACE_BLOCK_TOKENS));
    header.blocks = Some(mooncake_scheme(block_size));
    let entries = read_rows(stream, 1e9, true, &losses);
    Ok(Trace { header, entries, losses })
}

fn write(header: &TraceHeader, out: TraceOutput) -> Result<Box<dyn FormatWriter>, TraceProblem> {
    let mut lengths = MooncakeWriter::new(header, out, FORMAT.name, ScaledTime::decimal_secs, false);
    lengths.require_output();
    let size = lengths.block_size();
    lengths.add_note(match size {
        Some(size) => format!(
            "vLLM needs --self-timed --timed-trace-chunk-hash-size {size}, and completions (--backend openai --endpoint \
             /v1/completions): with chat every prompt would be longer by the template"
        ),
        None => "without block ids vLLM makes empty prompts of these rows".to_owned(),
    });
    Ok(Box::new(lengths))
}
