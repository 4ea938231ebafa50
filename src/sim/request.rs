//! Parses request bodies: OpenAI's chat and completion requests with vLLM's extensions.
//!
//! Fields that affect neither timing nor format (temperature, stop strings, tools, ...) are accepted and affect only
//! the length of the prompt.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_error::ApiError;
use super::bounded_list::BoundedList;
use super::length::LengthLimits;
use super::options::{MAX_CHOICES, SimOptions};
use super::prompt::PromptReader;
use crate::engine::{EngineJob, EnginePrompt, Stall};
use crate::stats::hash::mix;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimRoute {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// A validated request.
#[derive(Clone, Debug)]
pub(super) struct SimRequest {
    pub(super) route: SimRoute,
    /// Index of the requested model name among the served names.
    pub(super) model: usize,
    pub(super) stream: bool,
    /// Send a usage chunk at the end of the stream.
    pub(super) include_usage: bool,
    /// Send the usage so far in every chunk.
    pub(super) continuous_usage: bool,
    pub(super) return_token_ids: bool,
    /// Tokens between two events.
    pub(super) stream_interval: u32,
    pub(super) seed: Option<u64>,
    pub(super) prompts: Vec<EnginePrompt>,
    /// Choices per prompt.
    pub(super) n: u32,
    length: LengthLimits,
}

/// The raw body. `RawValue` borrows prompts of any size instead of copying them.
#[derive(Deserialize)]
struct SimRequestBody<'a> {
    #[serde(borrow)]
    model: Option<MessageText<'a>>,
    #[serde(borrow)]
    messages: Option<BoundedList<ChatMessage<'a>, MAX_PARTS>>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_salt: Option<MessageText<'a>>,
    stream: Option<bool>,
    stream_options: Option<SimStreamOptions>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    ignore_eos: Option<bool>,
    n: Option<u32>,
    seed: Option<i64>,
    stream_interval: Option<u32>,
    return_token_ids: Option<bool>,
}

#[derive(Deserialize)]
struct SimStreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

#[derive(Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow)]
    role: Option<MessageText<'a>>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct MessagePart<'a> {
    #[serde(borrow)]
    text: Option<MessageText<'a>>,
}

/// A string that is borrowed unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct MessageText<'a>(#[serde(borrow)] Cow<'a, str>);

/// Maximum messages per chat, and parts per message.
const MAX_PARTS: usize = 65_536;

/// Maximum token ids read per prompt.
const MAX_IDS: usize = 1 << 22;

type TokenIds = BoundedList<u32, MAX_IDS>;
type PromptList<T> = BoundedList<T, { MAX_CHOICES as usize }>;

/// Default of `max_tokens` for completions.
const COMPLETION_TOKENS: u32 = 16;

impl SimRequest {
    /// Parses a body.
    ///
    /// # Errors
    /// The error response to send, with vLLM's wording where vLLM has one.
    pub(super) fn parse(body: &[u8], route: SimRoute, options: &SimOptions) -> Result<Self, ApiError> {
        let body: SimRequestBody<'_> =
            serde_json::from_slice(body).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let model = match &body.model {
            Some(MessageText(model)) if !model.is_empty() => {
                let served = options.models.iter().position(|served| served == model);
                served.ok_or_else(|| ApiError::no_model(model))?
            }
            _ => 0,
        };
        let stream = body.stream.unwrap_or(false);
        if body.stream_options.is_some() && !stream {
            return Err(ApiError::bad_request("Stream options can only be defined when `stream=True`."));
        }
        let usage = body.stream_options.as_ref().is_some_and(|wants| wants.include_usage.unwrap_or(false));
        let continuous =
            body.stream_options.as_ref().is_some_and(|wants| wants.continuous_usage_stats.unwrap_or(false));
        let ask = Self {
            route,
            model,
            stream,
            include_usage: usage,
            continuous_usage: usage && continuous,
            return_token_ids: body.return_token_ids.unwrap_or(false),
            stream_interval: body.stream_interval.unwrap_or(1).max(options.stream_interval),
            seed: body.seed.map(i64::cast_unsigned),
            n: body.n.unwrap_or(1),
            length: body.length(route),
            prompts: body.prompts(route, options)?,
        };
        ask.check(options)?;
        Ok(ask)
    }

    fn check(&self, options: &SimOptions) -> Result<(), ApiError> {
        let choices = u64::from(self.n) * self.prompts.len() as u64;
        if self.n == 0 || choices == 0 || choices > u64::from(MAX_CHOICES) {
            let message = format!("n times the number of prompts must be from 1 to {MAX_CHOICES}, got {choices}.");
            return Err(ApiError::bad_request(message).about("n"));
        }
        let most = self.length.most;
        if most == Some(0) {
            return Err(ApiError::bad_request("max_tokens must be at least 1, got 0.").about("max_tokens"));
        }
        if most.is_some_and(|most| self.length.least > most) {
            let message = format!("min_tokens must be at most max_tokens, got {}.", self.length.least);
            return Err(ApiError::bad_request(message).about("min_tokens"));
        }
        for prompt in &self.prompts {
            let wants = u64::from(prompt.tokens) + u64::from(most.unwrap_or(1).max(self.length.least));
            if wants > u64::from(options.max_model_len) {
                return Err(ApiError::bad_request(format!(
                    "This model's maximum context length is {} tokens. However, you requested {wants} tokens ({} in \
                     the prompt). Please reduce the length of the input or of the output.",
                    options.max_model_len, prompt.tokens,
                )));
            }
        }
        Ok(())
    }

    /// All sequences of the request: choice `i` of prompt `p` has number `p * n + i`.
    pub(super) fn jobs(&self, seed: u64, stall: Option<Stall>, options: &SimOptions) -> Vec<EngineJob> {
        let mut jobs = Vec::new();
        for prompt in &self.prompts {
            for _ in 0..self.n {
                let number = jobs.len() as u64;
                let room = options.max_model_len.saturating_sub(prompt.tokens).max(1);
                let most = self.length.most.unwrap_or(room).min(room);
                let (output_tokens, ending) = self.length.draw(most, mix(seed ^ number), options.mean_output_tokens);
                jobs.push(EngineJob { prompt: prompt.clone(), output_tokens, ending, stall, transferred: false });
            }
        }
        jobs
    }
}

impl<'a> SimRequestBody<'a> {
    fn length(&self, route: SimRoute) -> LengthLimits {
        let most = match route {
            SimRoute::Chat => self.max_completion_tokens.or(self.max_tokens),
            SimRoute::Completions => self.max_tokens.or(Some(COMPLETION_TOKENS)),
        };
        LengthLimits { most, least: self.min_tokens.unwrap_or(0), ignore_eos: self.ignore_eos.unwrap_or(false) }
    }

    fn reader(&self, options: &SimOptions) -> PromptReader {
        let salt = self.cache_salt.as_ref().map_or("", |MessageText(salt)| salt);
        PromptReader::new(salt, options.max_model_len, options.engine.block_tokens)
    }

    fn prompts(&self, route: SimRoute, options: &SimOptions) -> Result<Vec<EnginePrompt>, ApiError> {
        match route {
            SimRoute::Chat => self.chat(options).map(|prompt| vec![prompt]),
            SimRoute::Completions => self.completions(options),
        }
    }

    fn chat(&self, options: &SimOptions) -> Result<EnginePrompt, ApiError> {
        let messages = self.messages.as_ref().map_or(&[][..], |messages| &messages.0);
        if messages.is_empty() {
            return Err(ApiError::bad_request("messages: at least one is required.").about("messages"));
        }
        let mut reader = self.reader(options);
        if let Some(tools) = self.tools {
            reader.text(tools.get());
        }
        for message in messages {
            reader.text(message.role.as_ref().map_or("", |MessageText(role)| role));
            reader.text("\n");
            if let Some(content) = message.content {
                read_content(content, &mut reader)?;
            }
            if let Some(calls) = message.tool_calls {
                reader.text(calls.get());
            }
            reader.text("\n");
        }
        Ok(reader.finish())
    }

    fn completions(&self, options: &SimOptions) -> Result<Vec<EnginePrompt>, ApiError> {
        let wrong =
            || ApiError::bad_request("prompt: a text, token ids, or a list of these is required.").about("prompt");
        let raw = self.prompt.ok_or_else(wrong)?;
        let text = |MessageText(text): &MessageText<'_>| {
            let mut reader = self.reader(options);
            reader.text(text);
            reader.finish()
        };
        let ids = |BoundedList(ids): &TokenIds| {
            let mut reader = self.reader(options);
            ids.iter().for_each(|id| reader.id(*id));
            reader.finish()
        };
        // Each format is tried separately: a wrong one fails at the first item, and nothing is buffered.
        let raw = raw.get();
        if let Ok(one) = serde_json::from_str(raw) {
            Ok(vec![text(&one)])
        } else if let Ok(one) = serde_json::from_str::<TokenIds>(raw) {
            if one.0.is_empty() { Err(wrong()) } else { Ok(vec![ids(&one)]) }
        } else if let Ok(BoundedList(texts)) = serde_json::from_str::<PromptList<MessageText<'_>>>(raw) {
            Ok(texts.iter().map(text).collect())
        } else {
            let BoundedList(lists) = serde_json::from_str::<PromptList<TokenIds>>(raw).map_err(|_| wrong())?;
            Ok(lists.iter().map(ids).collect())
        }
    }
}

/// Reads a message's content: a string, or a list of parts.
fn read_content(raw: &RawValue, reader: &mut PromptReader) -> Result<(), ApiError> {
    if let Ok(MessageText(text)) = serde_json::from_str(raw.get()) {
        reader.text(&text);
        return Ok(());
    }
    let BoundedList(parts): BoundedList<&RawValue, MAX_PARTS> = serde_json::from_str(raw.get())
        .map_err(|_| ApiError::bad_request("content: a text or a list of parts is required.").about("messages"))?;
    for part in parts {
        match serde_json::from_str(part.get()) {
            Ok(MessagePart { text: Some(MessageText(text)) }) => reader.text(&text),
            _ => reader.opaque(part.get()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineFinish;

    fn chat(body: &str) -> Result<SimRequest, ApiError> {
        SimRequest::parse(body.as_bytes(), SimRoute::Chat, &SimOptions::default())
    }

    fn completions(body: &str) -> Result<SimRequest, ApiError> {
        SimRequest::parse(body.as_bytes(), SimRoute::Completions, &SimOptions::default())
    }

    fn lengths(ask: &SimRequest, seed: u64) -> Vec<(u32, EngineFinish)> {
        ask.jobs(seed, None, &SimOptions::default()).iter().map(|job| (job.output_tokens, job.ending)).collect()
    }

    #[test]
    fn a_chat_is_counted_over_all_its_messages_and_parts() {
        let ask = chat(
            r#"{"model":"sim","messages":[{"role":"system","content":"abcdefgh"},
                {"role":"user","content":[{"type":"text","text":"abc\n"},{"type":"image_url","image_url":{"url":"x"}}]},
                {"role":"assistant","content":null}]}"#,
        );
        // system\n + 8 + \n, user\n + 4 + 256 tokens + \n, assistant\n + \n: 16 + 10 + 11 bytes and the image.
        assert_eq!(ask.unwrap().prompts[0].tokens, 256 + 37_u32.div_ceil(4));
    }

    #[test]
    fn a_completion_takes_a_text_or_ids_or_a_list_of_either() {
        let tokens = |prompt: &str| {
            let ask = completions(&format!(r#"{{"prompt":{prompt}}}"#)).unwrap();
            ask.prompts.iter().map(|prompt| prompt.tokens).collect::<Vec<_>>()
        };
        assert_eq!(tokens(r#""abcdefgh""#), [2]);
        assert_eq!(tokens(r#""a\u00e9\n""#), [1]);
        assert_eq!(tokens("[5,6,7]"), [3]);
        assert_eq!(tokens(r#"["abcd","abcdefgh"]"#), [1, 2]);
        assert_eq!(tokens("[[1,2],[3]]"), [2, 1]);
        for bad in ["[]", "null", "{}", "[1,\"a\"]", "[-1]", "7"] {
            assert_eq!(completions(&format!(r#"{{"prompt":{bad}}}"#)).unwrap_err().status(), 400, "{bad}");
        }
    }

    #[test]
    fn max_completion_tokens_wins_over_max_tokens() {
        let ask = chat(
            r#"{"messages":[{"role":"user","content":"x"}],"max_tokens":9,"max_completion_tokens":5,"ignore_eos":true}"#,
        );
        assert_eq!(lengths(&ask.unwrap(), 0), [(5, EngineFinish::Length)]);
        assert_eq!(
            lengths(&completions(r#"{"prompt":"x","ignore_eos":true}"#).unwrap(), 0),
            [(16, EngineFinish::Length)]
        );
    }

    #[test]
    fn stream_interval_is_never_below_the_servers() {
        let options = SimOptions { stream_interval: 4, ..SimOptions::default() };
        let interval =
            |body: &str| SimRequest::parse(body.as_bytes(), SimRoute::Completions, &options).unwrap().stream_interval;
        assert_eq!(interval(r#"{"prompt":"x"}"#), 4);
        assert_eq!(interval(r#"{"prompt":"x","stream_interval":2}"#), 4);
        assert_eq!(interval(r#"{"prompt":"x","stream_interval":9}"#), 9);
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_right_status() {
        let user = r#""messages":[{"role":"user","content":"x"}]"#;
        for (status, body) in [
            (400, "".to_owned()),
            (400, "{".to_owned()),
            (400, "[]".to_owned()),
            (400, "{}".to_owned()),
            (400, r#"{"messages":[]}"#.to_owned()),
            (400, r#"{"messages":[{"role":"user","content":7}]}"#.to_owned()),
            (400, format!(r#"{{{user},"max_tokens":0}}"#)),
            (400, format!(r#"{{{user},"max_tokens":-1}}"#)),
            (400, format!(r#"{{{user},"max_tokens":200000}}"#)),
            (400, format!(r#"{{{user},"min_tokens":200000}}"#)),
            (400, format!(r#"{{{user},"min_tokens":4294967295,"max_tokens":1}}"#)),
            (400, format!(r#"{{{user},"n":0}}"#)),
            (400, format!(r#"{{{user},"n":129}}"#)),
            (400, format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(MAX_PARTS))),
            (400, format!(r#"{{{user},"stream_options":{{"include_usage":true}}}}"#)),
            (400, "[".repeat(100_000)),
            (400, format!(r#"{{"messages":{}"#, "[".repeat(100_000))),
            (404, format!(r#"{{{user},"model":"gpt-9"}}"#)),
        ] {
            let start: String = body.chars().take(80).collect();
            assert_eq!(chat(&body).unwrap_err().status(), status, "{start}");
        }
        assert_eq!(chat("{\"messages\":\"\u{0}\"}").unwrap_err().status(), 400);
        assert_eq!(SimRequest::parse(&[0xFF, 0xFE], SimRoute::Chat, &SimOptions::default()).unwrap_err().status(), 400);
    }
}
