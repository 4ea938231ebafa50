//! vLLM's `timed_trace`: Mooncake's fields, but seconds and blocks of 16 tokens, unless its flags say otherwise.

use super::super::blocks::expected_ids;
use super::super::json::{Number, parse, row};
use super::super::{Error, Problem, Trace};
use super::mooncake::{self, Lengths, lengths};
use super::{Fields, Format, Losses, Options, Output, Source, Time, Writer, has_keys, stream};
use crate::capture::format::Header;

pub(super) const FORMAT: Format = Format {
    name: "timed_trace",
    aliases: &["vllm"],
    about: "vLLM bench serve timed_trace: as mooncake, but for its unit of time, and blocks of 16 tokens",
    times: "seconds",
    by: "mooncake's fields with as many ids as blocks of 16 need",
    recognise,
    read: Some(read),
    write: Some(write),
    but: "",
    holds: Fields::PROMPT_TOKENS.and(Fields::OUTPUT).and(Fields::BLOCKS),
    clock: false,
    delta: None,
};

const BLOCK: u32 = 16;

row!(Row { timestamp: Number, input_length: u64, hash_ids: Vec<u64> });

fn recognise(source: &Source) -> bool {
    let Source::Stream(stream) = source else { return false };
    let ids_fit = |line: &[u8]| {
        let row: Option<Row> = parse(line, &Losses::default()).ok();
        row.and_then(|row| {
            let (length, ids) = (row.input_length?, row.hash_ids?.len() as u64);
            let expected = |size| expected_ids(&mooncake::blocks(size), length);
            Some(ids == expected(BLOCK) && ids != expected(mooncake::BLOCK))
        })
    };
    // An unfinished row, or one as short as a block of either size, tells nothing.
    has_keys(source, &["timestamp", "input_length", "hash_ids"], &[])
        && stream.sample_lines().take(8).filter_map(ids_fit).any(|fits| fits)
}

fn read(source: Source, options: &Options) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = Losses::default();
    let mut header = Header::new(FORMAT.name);
    header.blocks = Some(mooncake::blocks(options.block_size.unwrap_or(BLOCK)));
    let entries = lengths(stream, 1e9, true, &losses);
    Ok(Trace { header, entries, losses })
}

fn write(header: &Header, out: Output) -> Result<Box<dyn Writer>, Problem> {
    let mut lengths = Lengths::new(header, out, Time::secs, false);
    let size = lengths.block_size();
    lengths.note(match size {
        Some(size) => format!("vLLM needs --self-timed --timed-trace-chunk-hash-size {size}"),
        None => "without block ids vLLM makes empty prompts of these rows".to_owned(),
    });
    Ok(Box::new(lengths))
}
