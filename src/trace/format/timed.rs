//! vLLM's `timed_trace`: Mooncake's fields, but seconds and blocks of 16 tokens, unless its flags say otherwise.

use super::super::{Error, Problem, Trace};
use super::mooncake::{self, Lengths, lengths};
use super::time_unit::{Evidence, TimeUnit};
use super::{Fields, Format, Losses, Options, Output, Source, Time, Writer, has_keys, stream};
use crate::capture::format::Header;

pub(super) const FORMAT: Format = Format {
    name: "timed_trace",
    aliases: &["vllm"],
    about: "vLLM bench serve timed_trace: as mooncake, but for its unit of time, and blocks of 16 tokens",
    times: "seconds",
    by: "mooncake's fields with timestamps in seconds",
    recognise,
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::PROMPT_TOKENS.and(Fields::OUTPUT).and(Fields::BLOCKS),
    clock: false,
    delta: None,
};

pub(super) const BLOCK: u32 = 16;

fn recognise(source: &Source) -> bool {
    let Source::Stream(stream) = source else { return false };
    has_keys(source, &["timestamp", "input_length"], &[])
        && (has_keys(source, &["hash_ids"], &[]) || has_keys(source, &["type"], &[]))
        && Evidence::of(stream).unit() == TimeUnit::Seconds
}

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = Losses::default();
    let mut header = Header::new(FORMAT.name);
    let block_size = options.block_size.unwrap_or_else(|| Evidence::of(&stream).block_size(BLOCK));
    header.blocks = Some(mooncake::blocks(block_size));
    let entries = lengths(stream, 1e9, true, &losses);
    Ok(Trace { header, entries, losses })
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let mut lengths = Lengths::new(header, out, FORMAT.name, Time::decimal_secs, false);
    lengths.need_output();
    let size = lengths.block_size();
    lengths.note(match size {
        Some(size) => format!(
            "vLLM needs --self-timed --timed-trace-chunk-hash-size {size}, and completions (--backend openai --endpoint \
             /v1/completions): with chat every prompt would be longer by the template"
        ),
        None => "without block ids vLLM makes empty prompts of these rows".to_owned(),
    });
    Ok(Box::new(lengths))
}
