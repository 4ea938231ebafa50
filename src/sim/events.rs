//! Builds vLLM's events byte by byte.
//!
//! Events are built from fixed pieces without a serializer, because the key order must match vLLM's, and because each
//! event then takes one allocation.

use bytes::Bytes;

use super::api_error::ApiError;
use super::request::{SimRequest, SimRoute};
use super::text_generator::TextGenerator;
use crate::engine::{EngineFinish, FinishedJob};

/// Fingerprint in every body; vLLM puts a build number here.
pub(super) const FINGERPRINT: &str = "streamgauge-sim";

/// The last event of a stream.
pub(super) const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// Token counts, named as in OpenAI's API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplyUsage {
    pub(super) prompt: u64,
    pub(super) completion: u64,
    /// Prompt tokens from the prefix cache; present only in the final usage.
    pub(super) cached: Option<u64>,
}

/// A range of one choice's tokens: one event, or a whole choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPiece {
    pub(super) choice: u32,
    /// Tokens of the choice before this piece.
    pub(super) from: u32,
    /// Tokens of the choice including this piece.
    pub(super) upto: u32,
    pub(super) finish: Option<EngineFinish>,
}

/// Writes the events, or the single body, of one request.
#[derive(Debug)]
pub(super) struct EventWriter {
    route: SimRoute,
    /// `{"id":…,"object":…,"created":…,"model":…,"choices":[`
    opening: String,
    token_ids: bool,
    texts: Vec<TextGenerator>,
}

impl EventWriter {
    /// Creates a writer for the reply with this `id` (without prefix), created at `created` seconds since 1970.
    pub(super) fn new(ask: &SimRequest, id: &str, created: u64, model: &str, seed: u64) -> Self {
        let (prefix, object) = match (ask.route, ask.stream) {
            (SimRoute::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (SimRoute::Chat, false) => ("chatcmpl", "chat.completion"),
            (SimRoute::Completions, _) => ("cmpl", "text_completion"),
        };
        let opening = format!(
            r#"{{"id":{},"object":"{object}","created":{created},"model":{},"choices":["#,
            quoted(&format!("{prefix}-{id}")),
            quoted(model)
        );
        let choices = ask.n * u32::try_from(ask.prompts.len()).unwrap_or(0);
        let texts = (0..choices).map(|choice| TextGenerator::new(seed, choice)).collect();
        Self { route: ask.route, opening, token_ids: ask.return_token_ids, texts }
    }

    /// The chunk that opens a choice of a chat; `None` for completions.
    pub(super) fn role(&self, choice: u32, usage: Option<ReplyUsage>) -> Option<Bytes> {
        (self.route == SimRoute::Chat).then(|| {
            self.event(256, |json| {
                json.raw(r#"{"index":"#).number(choice.into());
                json.raw(r#","delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]"#);
                json.raw(r#","prompt_token_ids":null,"prompt_text":null"#).usage(usage);
            })
        })
    }

    /// A chunk with tokens.
    pub(super) fn delta(&self, piece: TextPiece, usage: Option<ReplyUsage>) -> Bytes {
        let text = 16 * usize::try_from(piece.upto - piece.from).unwrap_or(0);
        self.event(256 + text, |json| {
            json.raw(r#"{"index":"#).number(piece.choice.into());
            match self.route {
                SimRoute::Chat => {
                    json.raw(r#","delta":{"content":""#);
                    self.text(json, piece);
                    json.raw(r#""},"logprobs":null,"finish_reason":"#).finish(piece.finish);
                    if piece.finish.is_some() {
                        json.raw(r#","stop_reason":null"#);
                    }
                    json.raw(r#","token_ids":"#);
                    self.ids(json, piece);
                }
                SimRoute::Completions => {
                    json.raw(r#","text":""#);
                    self.text(json, piece);
                    json.raw(r#"","logprobs":null,"finish_reason":"#).finish(piece.finish);
                    json.raw(r#","stop_reason":null"#);
                    if self.token_ids {
                        json.raw(r#","token_ids":"#);
                        self.ids(json, piece);
                    }
                }
            }
            json.raw("}]").usage(usage);
        })
    }

    /// The chunk after the last token. `timing` covers the first choice.
    pub(super) fn usage(&self, usage: ReplyUsage, timing: Option<&FinishedJob>) -> Bytes {
        self.event(512, |json| {
            json.raw("]").usage(Some(usage));
            if let Some(timing) = timing {
                json.timing(timing, usage.completion);
            }
            json.raw(r#","system_fingerprint":""#).raw(FINGERPRINT).raw("\"");
        })
    }

    /// An error event within a stream.
    pub(super) fn error(error: &ApiError) -> Bytes {
        Bytes::from(format!("data: {}\n\n", error.json()))
    }

    /// The body of a reply without streaming. `choices` are in order, each from its first token to its last.
    pub(super) fn whole(&self, choices: &[TextPiece], usage: ReplyUsage, timing: Option<&FinishedJob>) -> Bytes {
        let tokens: usize = choices.iter().map(|piece| usize::try_from(piece.upto).unwrap_or(0)).sum();
        let mut json = JsonBuffer(String::with_capacity(1_024 + 16 * tokens));
        json.raw(&self.opening);
        for (at, piece) in choices.iter().enumerate() {
            if at > 0 {
                json.raw(",");
            }
            json.raw(r#"{"index":"#).number(piece.choice.into());
            match self.route {
                SimRoute::Chat => {
                    json.raw(r#","message":{"role":"assistant","content":""#);
                    self.text(&mut json, *piece);
                    json.raw(r#"","refusal":null,"annotations":null,"audio":null,"function_call":null,"#);
                    json.raw(r#""tool_calls":[],"reasoning":null},"logprobs":null,"#);
                }
                SimRoute::Completions => {
                    json.raw(r#","text":""#);
                    self.text(&mut json, *piece);
                    json.raw(r#"","logprobs":null,"#);
                }
            }
            json.raw(r#""finish_reason":"#).finish(piece.finish);
            json.raw(r#","stop_reason":null,"token_ids":"#);
            self.ids(&mut json, *piece);
            json.raw("}");
        }
        json.raw(r#"],"service_tier":null,"system_fingerprint":""#).raw(FINGERPRINT).raw("\"").usage(Some(usage));
        if let Some(timing) = timing {
            json.timing(timing, usage.completion);
        }
        json.raw(r#","prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}"#);
        Bytes::from(json.0)
    }

    /// One event: the envelope, with `rest` after the opening bracket of `choices`.
    fn event(&self, room: usize, rest: impl FnOnce(&mut JsonBuffer)) -> Bytes {
        let mut json = JsonBuffer(String::with_capacity(self.opening.len() + room));
        json.raw("data: ").raw(&self.opening);
        rest(&mut json);
        json.raw("}\n\n");
        Bytes::from(json.0)
    }

    /// The text of a piece. The end-of-sequence token has no text, and a chat does not begin with a blank.
    fn text(&self, json: &mut JsonBuffer, piece: TextPiece) {
        let Some(text) = self.texts.get(piece.choice as usize) else { return };
        let eos = u32::from(piece.finish == Some(EngineFinish::Stop));
        for at in piece.from..piece.upto.saturating_sub(eos) {
            if at > 0 || self.route == SimRoute::Completions {
                json.raw(" ");
            }
            json.raw(text.word(at));
        }
    }

    fn ids(&self, json: &mut JsonBuffer, piece: TextPiece) {
        let Some(text) = self.texts.get(piece.choice as usize).filter(|_| self.token_ids) else {
            json.raw("null");
            return;
        };
        json.raw("[");
        for at in piece.from..piece.upto {
            if at > piece.from {
                json.raw(",");
            }
            json.number(text.id(at).into());
        }
        json.raw("]");
    }
}

struct JsonBuffer(String);

impl JsonBuffer {
    fn raw(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        // Nearly every index has one digit.
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => self.0.push(char::from(b'0' + digit)),
            _ => self.0.push_str(&number.to_string()),
        }
        self
    }

    fn finish(&mut self, finish: Option<EngineFinish>) -> &mut Self {
        match finish {
            Some(finish) => self.raw("\"").raw(finish.as_str()).raw("\""),
            None => self.raw("null"),
        }
    }

    fn usage(&mut self, usage: Option<ReplyUsage>) -> &mut Self {
        let Some(usage) = usage else { return self };
        self.raw(r#","usage":{"prompt_tokens":"#).number(usage.prompt);
        self.raw(r#","total_tokens":"#).number(usage.prompt + usage.completion);
        self.raw(r#","completion_tokens":"#).number(usage.completion);
        if let Some(cached) = usage.cached {
            self.raw(r#","prompt_tokens_details":{"cached_tokens":"#).number(cached).raw("}");
        }
        self.raw("}")
    }

    /// vLLM's per-request metrics: their first-token time counts from scheduling, not from arrival.
    fn timing(&mut self, timing: &FinishedJob, tokens: u64) {
        let gaps = tokens.saturating_sub(1);
        let seconds = timing.first.as_secs() + timing.decode.as_secs();
        let rate = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        let text = format!(
            r#","metrics":{{"time_to_first_token_ms":{:?},"generation_time_ms":{:?},"queue_time_ms":{:?},"mean_itl_ms":{:?},"tokens_per_second":{rate:?}}}"#,
            timing.first.as_millis(),
            timing.decode.as_millis(),
            timing.queued.as_millis(),
            if gaps == 0 { 0.0 } else { timing.decode.as_millis() / gaps as f64 },
        );
        self.raw(&text);
    }
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    // A string cannot fail to serialize.
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::time::Gap;
    use crate::sim::SimOptions;

    fn writer(route: SimRoute, body: &str) -> EventWriter {
        let options = SimOptions { models: vec!["tiny".into()], ..SimOptions::default() };
        let ask = SimRequest::parse(body.as_bytes(), route, &options).unwrap();
        EventWriter::new(&ask, "a1", 1_760_000_000, "tiny", 7)
    }

    fn chat() -> EventWriter {
        writer(SimRoute::Chat, r#"{"stream":true,"messages":[{"role":"user","content":"x"}],"n":2}"#)
    }

    fn text(bytes: &Bytes) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    const HEAD: &str =
        r#"data: {"id":"chatcmpl-a1","object":"chat.completion.chunk","created":1760000000,"model":"tiny","choices":["#;

    #[test]
    fn a_chat_opens_as_vllm_opens_it() {
        let role = chat().role(0, None).unwrap();
        let rest = r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}"#;
        assert_eq!(text(&role), format!("{HEAD}{rest}\n\n"));
        assert!(writer(SimRoute::Completions, r#"{"prompt":"x"}"#).role(0, None).is_none());
    }

    #[test]
    fn a_delta_is_vllms_delta() {
        let words = TextGenerator::new(7, 0);
        let delta = chat().delta(TextPiece { choice: 0, from: 0, upto: 2, finish: None }, None);
        let rest = format!(
            r#"{{"index":0,"delta":{{"content":"{} {}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}]}}"#,
            words.word(0),
            words.word(1)
        );
        assert_eq!(text(&delta), format!("{HEAD}{rest}\n\n"));
        let last = TextPiece { choice: 0, from: 2, upto: 3, finish: Some(EngineFinish::Length) };
        let usage = ReplyUsage { prompt: 30, completion: 3, cached: None };
        let rest = format!(
            r#"{{"index":0,"delta":{{"content":" {}"}},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}}],"usage":{{"prompt_tokens":30,"total_tokens":33,"completion_tokens":3}}}}"#,
            words.word(2),
        );
        assert_eq!(text(&chat().delta(last, Some(usage))), format!("{HEAD}{rest}\n\n"));
    }

    #[test]
    fn the_end_of_sequence_token_has_no_text() {
        let last = TextPiece { choice: 1, from: 2, upto: 3, finish: Some(EngineFinish::Stop) };
        let delta = chat().delta(last, None);
        assert!(text(&delta).contains(r#"{"index":1,"delta":{"content":""},"logprobs":null,"finish_reason":"stop""#));
    }

    #[test]
    fn a_completion_is_vllms_completion() {
        let writer = writer(SimRoute::Completions, r#"{"prompt":"x","stream":true}"#);
        let delta = writer.delta(TextPiece { choice: 0, from: 0, upto: 1, finish: None }, None);
        let word = TextGenerator::new(7, 0).word(0);
        assert_eq!(
            text(&delta),
            format!(
                "data: {{\"id\":\"cmpl-a1\",\"object\":\"text_completion\",\"created\":1760000000,\"model\":\"tiny\",\
                 \"choices\":[{{\"index\":0,\"text\":\" {word}\",\"logprobs\":null,\"finish_reason\":null,\
                 \"stop_reason\":null}}]}}\n\n"
            )
        );
    }

    #[test]
    fn the_usage_chunk_has_no_choices_and_says_that_it_is_simulated() {
        let usage = ReplyUsage { prompt: 32, completion: 4, cached: Some(16) };
        let timing = FinishedJob {
            reason: EngineFinish::Stop,
            cached_tokens: 16,
            queued: Gap::from_millis(1),
            first: Gap::from_millis(100),
            decode: Gap::from_millis(300),
        };
        let chunk = chat().usage(usage, Some(&timing));
        let rest = r#"],"usage":{"prompt_tokens":32,"total_tokens":36,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}},"metrics":{"time_to_first_token_ms":100.0,"generation_time_ms":300.0,"queue_time_ms":1.0,"mean_itl_ms":100.0,"tokens_per_second":10.0},"system_fingerprint":"streamgauge-sim"}"#;
        assert_eq!(text(&chunk), format!("{HEAD}{rest}\n\n"));
    }

    #[test]
    fn token_ids_come_when_asked_for() {
        let writer = writer(SimRoute::Completions, r#"{"prompt":"x","stream":true,"return_token_ids":true}"#);
        let delta = writer.delta(TextPiece { choice: 0, from: 3, upto: 5, finish: None }, None);
        let ids = format!(r#""token_ids":[{},{}]"#, TextGenerator::new(7, 0).id(3), TextGenerator::new(7, 0).id(4));
        assert!(text(&delta).contains(&ids));
    }

    #[test]
    fn everything_is_json_whatever_the_id() {
        let ask = SimRequest::parse(br#"{"prompt":"x"}"#, SimRoute::Completions, &SimOptions::default()).unwrap();
        let writer = EventWriter::new(&ask, "\"\\\u{1}}", 0, "mo\"del", 0);
        let piece = TextPiece { choice: 0, from: 0, upto: 12, finish: Some(EngineFinish::Length) };
        let body = writer.whole(&[piece], ReplyUsage::default(), None);
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(value["id"], "cmpl-\"\\\u{1}}");
        assert_eq!(value["choices"][0]["text"].as_str().unwrap().split_whitespace().count(), 12);
        assert_eq!(value["system_fingerprint"], "streamgauge-sim");
    }
}
