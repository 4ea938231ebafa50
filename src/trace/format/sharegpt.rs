//! ShareGPT's conversations, in one JSON array or one per line, without times. Each reply of the model is a request
//! whose prompt is everything before it. Only lengths are read; output tokens are estimated from them.

use super::super::json::{NestedRow, parse, row};
use super::super::json_values::{StringOrNumber, TextSize};
use super::super::{Error, Trace, TraceProblem};
use super::{ConversionLosses, EntryFields, InputSource, ReadOptions, TraceFormat, has_keys, rows_of_lines, stream};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::{BYTES_PER_TOKEN, PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "sharegpt",
    aliases: &[],
    about: "ShareGPT conversations: JSON array or JSON Lines (only lengths are read, output tokens are estimated)",
    time_unit: "no unit: each request begins at 0",
    detected_by: "rows with `conversations`",
    keys: &["conversations"],
    detect: |source| {
        let InputSource::Stream(stream) = source else { return false };
        let start = &stream.sample[..stream.sample.len().min(4096)];
        has_keys(source, &["conversations"], &[])
            || (stream.is_array() && memchr::memmem::find(start, b"\"conversations\"").is_some())
    },
    read: Some(read),
    write: None,
    unsupported_reason: "a trace has no texts",
    fields: EntryFields::NONE,
    has_wall_clock: false,
    delta_fields: None,
};

row!(Conversation { id: StringOrNumber, conversations: Vec<NestedRow<Message>> });
row!(Message { from: String, value: TextSize });

fn read(source: InputSource, _: &ReadOptions) -> Result<Trace, Error> {
    let stream = stream(source, &FORMAT)?;
    let losses = ConversionLosses::default();
    let counted = losses.clone();
    let lines = if stream.is_array() { stream.elements() } else { stream.lines() };
    let mut number = 0_u64;
    let entries = rows_of_lines(lines, move |line, pending| {
        number += 1;
        let conversation: Conversation = parse(line, &counted)?;
        let messages = conversation.conversations.ok_or_else(|| TraceProblem::missing("conversations"))?;
        let session =
            conversation.id.map_or_else(|| format!("conversation-{number}"), |StringOrNumber(session)| session);
        let (mut before, mut turn) = (0_u64, 0);
        for NestedRow(message) in messages {
            let bytes = message.value.map_or(0, |text| text.bytes);
            if matches!(message.from.as_deref(), Some("gpt" | "chatgpt" | "assistant" | "bing" | "bard")) && before > 0
            {
                counted.count("rows without a time, taken to come at 0");
                pending.push_back(TraceEntry {
                    session: Some(session.clone()),
                    turn: Some(turn),
                    prompt: PromptShape { bytes: Some(before), ..PromptShape::default() },
                    output_tokens: Some(bytes.div_ceil(BYTES_PER_TOKEN)),
                    ..TraceEntry::default()
                });
                turn += 1;
            }
            before = before.saturating_add(bytes);
        }
        Ok(())
    });
    Ok(Trace { header: TraceHeader::new(FORMAT.name), entries, losses })
}
