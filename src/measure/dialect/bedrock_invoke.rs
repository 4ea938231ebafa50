//! Bedrock's `/model/M/invoke-with-response-stream` and `/invoke`.
//!
//! Each frame of the Amazon event stream contains an event of the model's vendor in base64. The last event has
//! Bedrock's own counts.
//!
//! Anthropic, OpenAI and Converse events are read by their own dialects. For Llama, Titan, Mistral and Cohere, this
//! file knows only the fields for text and finish reason. Mistral's chat and DeepSeek use OpenAI's choices with
//! different field names.

use super::anthropic_messages::AnthropicMessagesReader;
use super::bedrock_converse::{CONTENT_TYPE, error_body, exception, path};
use super::document_reply::{is_report, sum};
use super::openai::{OpenAiChoice, OpenAiStream};
use super::{
    Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, RequestShape, USUAL,
    bedrock_converse, count, finish_reason, openai_chat, openai_completions,
};
use crate::measure::framing::{Event, PayloadKind};
use crate::measure::json_walker::JsonWalker;
use crate::measure::usage::Usage;

pub(super) const DIALECT: Dialect = Dialect {
    name: "bedrock.invoke",
    route: "/model/{model}/invoke-with-response-stream",
    content_type: CONTENT_TYPE,
    matches: |path| {
        path.ends_with("/invoke-with-response-stream") || path.contains("/model/") && path.ends_with("/invoke")
    },
    path,
    request: REQUEST,
    prompt: &["tools", "system", "messages", "prompt", "inputText"],
    reader: |shape| Box::new(BedrockInvokeReader::new(shape)),
    reply: REPLY,
    error_body,
    ..USUAL
};

const REQUEST: &[(&str, RequestField)] = &[
    ("max_tokens", RequestField::MaxTokens),
    ("max_gen_len", RequestField::MaxTokensElse),
    ("textGenerationConfig.maxTokenCount", RequestField::MaxTokensElse),
    ("inferenceConfig.maxTokens", RequestField::MaxTokensElse),
    ("temperature", RequestField::Temperature),
    ("top_p", RequestField::TopP),
    ("top_k", RequestField::TopK),
    ("output_config.effort", RequestField::ReasoningLevel),
    ("output_config.format.type", RequestField::OutputType),
];

/// Fields of Anthropic's and Llama's replies; the other vendors' replies have no counts.
const REPLY: &[(&str, ReplyField)] = &[
    ("id", ReplyField::Id),
    ("model", ReplyField::Model),
    ("stop_reason", ReplyField::Finish),
    ("usage.input_tokens", ReplyField::Input),
    ("usage.cache_read_input_tokens", ReplyField::CachedBeside),
    ("usage.cache_creation_input_tokens", ReplyField::CacheWriteBeside),
    ("usage.output_tokens", ReplyField::Output),
    ("prompt_token_count", ReplyField::Input),
    ("generation_token_count", ReplyField::Output),
    ("message", ReplyField::Error),
    ("__type", ReplyField::Kind),
];

struct BedrockInvokeReader {
    /// The vendor's event, decoded from base64.
    plain: Vec<u8>,
    anthropic: AnthropicMessagesReader,
    openai: OpenAiStream,
}

impl BedrockInvokeReader {
    fn new(shape: &RequestShape) -> Self {
        Self { plain: Vec::new(), anthropic: AnthropicMessagesReader::default(), openai: OpenAiStream::new(shape) }
    }
}

impl DialectReader for BedrockInvokeReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if event.mark == PayloadKind::Exception {
            return exception(event, sink);
        }
        let mut bytes = None;
        let read = JsonWalker::new(event.data).and_then(|mut walk| {
            walk.object(|key, walk| {
                match key {
                    b"bytes" => bytes = walk.text()?,
                    _ => walk.skip()?,
                }
                Some(())
            })
        });
        let decoded = bytes.filter(|_| read.is_some()).and_then(|bytes| decode(bytes.as_bytes(), &mut self.plain));
        let vendor = decoded.and_then(|()| VendorEvent::of(&self.plain));
        let Some(vendor) = vendor else { return sink.delta(0, Delta::Malformed) };
        let inner = Event { name: b"", data: &self.plain, mark: PayloadKind::Plain };
        match vendor.family {
            ModelFamily::Anthropic => self.anthropic.event(&inner, sink),
            ModelFamily::OpenAi => self.openai.event(&inner, choice, sink),
            ModelFamily::Converse => {
                if bedrock_converse::read(&self.plain, sink).is_none() {
                    sink.delta(0, Delta::Malformed);
                }
            }
            ModelFamily::Other => {
                if vendor.shows {
                    sink.delta(0, Delta::Output { kind: OutputKind::Text, tokens: None });
                }
                if let Some(raw) = vendor.finish
                    && let Some(reason) = finish_reason(raw)
                {
                    sink.delta(0, Delta::Finish(reason, raw));
                }
            }
        }
        if let Some(usage) = vendor.usage {
            if is_report(&usage) {
                sink.delta(0, Delta::Usage(usage));
            }
            sink.delta(0, Delta::Done);
        }
    }
}

/// Reads a choice in OpenAI's layout. Mistral's chat names the delta `message`, and DeepSeek has a `text`. Both use
/// `stop_reason`, which beside a `finish_reason` has a different meaning.
fn choice<'a>(walk: &mut JsonWalker<'a>) -> Option<OpenAiChoice<'a>> {
    let (mut choice, mut stopped) = (OpenAiChoice::default(), None);
    walk.object(|key, walk| match key {
        b"delta" | b"message" if walk.is_object() => openai_chat::delta(&mut choice, walk),
        b"text" => openai_completions::text(&mut choice, walk),
        b"stop_reason" => {
            stopped = walk.text()?;
            Some(())
        }
        _ => choice.field(key, walk),
    })?;
    choice.finish = choice.finish.or(stopped);
    Some(choice)
}

#[derive(Clone, Copy, PartialEq)]
enum ModelFamily {
    Anthropic,
    OpenAi,
    Converse,
    Other,
}

/// The vendor of an event, and the fields of vendors without a dialect of their own.
struct VendorEvent<'a> {
    family: ModelFamily,
    shows: bool,
    finish: Option<&'a str>,
    usage: Option<Usage>,
}

impl<'a> VendorEvent<'a> {
    fn of(data: &'a [u8]) -> Option<Self> {
        let mut vendor = Self { family: ModelFamily::Other, shows: false, finish: None, usage: None };
        let mut walk = JsonWalker::new(data)?;
        walk.object(|key, walk| match key {
            b"amazon-bedrock-invocationMetrics" => {
                vendor.usage = Some(metrics(walk)?);
                Some(())
            }
            b"type" | b"choices" | b"messageStart" | b"contentBlockStart" | b"contentBlockDelta"
            | b"contentBlockStop" | b"messageStop" | b"metadata"
                if vendor.family == ModelFamily::Other =>
            {
                vendor.family = match key {
                    b"type" => ModelFamily::Anthropic,
                    b"choices" => ModelFamily::OpenAi,
                    _ => ModelFamily::Converse,
                };
                walk.skip()
            }
            // Mistral wraps its outputs in a list.
            b"outputs" => walk.array(|walk| walk.object(|key, walk| vendor.field(key, walk))),
            _ => vendor.field(key, walk),
        })?;
        walk.end()?;
        Some(vendor)
    }

    fn field(&mut self, key: &[u8], walk: &mut JsonWalker<'a>) -> Option<()> {
        match key {
            b"generation" | b"outputText" | b"completion" | b"text" => self.shows |= walk.shown()?.is_content(),
            b"stop_reason" | b"completionReason" | b"finish_reason" => self.finish = walk.text()?.or(self.finish),
            _ => walk.skip()?,
        }
        Some(())
    }
}

/// Reads Bedrock's counts. `inputTokenCount` excludes cache reads and writes.
fn metrics(walk: &mut JsonWalker<'_>) -> Option<Usage> {
    let mut usage = Usage::default();
    walk.object(|key, walk| {
        match key {
            b"inputTokenCount" => usage.input = count(walk)?,
            b"outputTokenCount" => usage.output = count(walk)?,
            b"cacheReadInputTokenCount" => usage.cached = count(walk)?,
            b"cacheWriteInputTokenCount" => usage.cache_write = count(walk)?,
            _ => walk.skip()?,
        }
        Some(())
    })?;
    usage.input = sum(sum(usage.input, usage.cached), usage.cache_write);
    Some(usage)
}

/// Decodes base64 into `plain`.
fn decode(text: &[u8], plain: &mut Vec<u8>) -> Option<()> {
    plain.clear();
    let text = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let (mut held, mut bits) = (0u32, 0);
    let mut rest = text.iter();
    while let Some(&letter) = rest.next() {
        let six = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            // JSON may write `/` as `\/`.
            b'\\' if rest.as_slice().first() == Some(&b'/') => continue,
            _ => return None,
        };
        held = held << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            plain.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    (bits < 6).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_undone_and_what_is_not_base64_is_refused() {
        let mut plain = b"old".to_vec();
        for (text, bytes) in [("", ""), ("eA==", "x"), ("eHk=", "xy"), ("eHl6", "xyz"), ("Pz8\\/", "???")] {
            assert_eq!(decode(text.as_bytes(), &mut plain), Some(()), "{text}");
            assert_eq!(plain, bytes.as_bytes(), "{text}");
        }
        for bad in ["e", "eHl6e", "e-_=", "e A="] {
            assert_eq!(decode(bad.as_bytes(), &mut plain), None, "{bad}");
        }
    }
}
