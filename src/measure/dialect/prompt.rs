//! Walks the prompt of a request in a canonical order, and reads further parameters that affect its cost.
//!
//! A dialect lists the keys of its prompt ([`Dialect::prompt`](super::Dialect)): tools, system, then messages.
//! Content stored on the server is not in the request; the request's names for it take its place.
//!
//! The walk does not depend on white space, escapes or key order. A content string and a content list that begins
//! with that string as a text part give equal walks. Roles, the order of messages and their content do matter.
//!
//! Each piece goes to a [`PromptSink`]; nothing is stored. Only JSON is walked: the prompt of a gRPC request is a
//! tensor whose name and type depend on the model.

use super::Dialect;
use crate::measure::json_value::{JsonObject, JsonValue};
use crate::measure::work_budget::{OutOfBudget, WorkBudget, price};

/// Separators between pieces: bytes that never occur in UTF-8.
mod mark {
    pub(super) const FIELD: u8 = 0xf8;
    pub(super) const ITEM: u8 = 0xf9;
    pub(super) const KEY: u8 = 0xfa;
    pub(super) const VALUE: u8 = 0xfb;
    pub(super) const WORD: u8 = 0xfc;
    pub(super) const MEDIA: u8 = 0xfd;
    pub(super) const END: u8 = 0xff;
}

/// Media type of a part that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An image.
    Image,
    /// Sound.
    Audio,
    /// Video.
    Video,
    /// A document.
    File,
}

/// Location of a part that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaLocation<'a> {
    /// Base64 data in the request.
    Inline(&'a str),
    /// A reference to data outside of the request.
    Elsewhere(&'a str),
}

/// Receives a prompt as text, keys and words, separated by marks.
pub trait PromptSink {
    /// A separator. It begins with a byte that never occurs in UTF-8, so it cannot be confused with text.
    fn mark(&mut self, mark: &[u8]);
    /// The text of a message, or the key of a field.
    fn text(&mut self, text: &str);
    /// A value that is not text: a number (also a token id of a tokenized prompt), a Boolean or `null`.
    fn word(&mut self, word: &str);
    /// A part that is not text. Implementations must include its content in any hash of what follows.
    fn part(&mut self, medium: Medium, place: MediaLocation<'_>);
    /// The end of a message of the conversation. `by_user` is true if its role is `user`, or if it has none.
    fn message_ends(&mut self, by_user: bool);
}

/// Request parameters beyond its shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptExtras {
    /// Minimum number of generated tokens.
    pub min_tokens: Option<u64>,
    /// Whether generation continues past the end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Whether the request asks for log probabilities.
    pub logprobs: Option<bool>,
    /// Whether the request offers tools.
    pub tools: Option<bool>,
    /// Whether the output must follow a schema.
    pub structured: Option<bool>,
}

/// The parsed JSON body of one request.
pub struct RequestBody<'a>(JsonObject<'a>);

/// Objects below the top level that may contain sampling parameters.
const NESTED: [&str; 8] = [
    "parameters",
    "sampling_params",
    "generationConfig",
    "generation_config",
    "options",
    "inferenceConfig",
    "text",
    "output_config",
];
/// Names the response to continue from; the server has stored the conversation up to it.
pub(super) const GOES_ON_FROM: &str = "previous_response_id";
/// Numbers from here on mark fields of stored content.
const STORED: u8 = 0x80;
/// Lists of conversation messages. Tools and system prompts may be lists too, but are not turns.
const SAID: [&str; 3] = ["messages", "contents", "input"];
/// Role of the messages that a person or an agent writes.
const USER: &str = "user";
/// Cache instructions, which clients move from turn to turn.
const NOT_CONTENT: [&str; 2] = ["cache_control", "cachePoint"];

/// Maximum values of a body that is parsed; a tree of them takes up to 150 MB. A prompt of token ids has one for each.
const MAX_VALUES: usize = 1 << 20;

/// Charges for parsing a body, walking its prompt and hashing it.
///
/// # Errors
/// If the body has too many values or the budget is exhausted: it must not be parsed then.
pub fn charge_walk(body: &[u8], budget: &mut WorkBudget) -> Result<(), OutOfBudget> {
    // Each value but the first comes behind one of these. Text has some too, which only makes it a little dearer.
    // Counts of 128 bytes fit into a byte, so they are made sixteen bytes at a time.
    let is_mark = |byte: &u8| u8::from(matches!(byte, b',' | b':' | b'[' | b'{'));
    let values: usize = body.chunks(128).map(|some| usize::from(some.iter().map(is_mark).sum::<u8>())).sum();
    budget.charge(values as u64 * price::TREE_VALUE + body.len() as u64 * price::TREE_BYTE)?;
    if values > MAX_VALUES { Err(OutOfBudget) } else { Ok(()) }
}

impl<'a> RequestBody<'a> {
    /// Parses a body; `None` if it is not a JSON object.
    pub fn read(body: &'a [u8]) -> Option<Self> {
        // Validates UTF-8 once: from bytes, serde_json would validate each string by itself.
        serde_json::from_str(std::str::from_utf8(body).ok()?).ok().map(Self)
    }

    /// Walks the prompt; returns false if there is none.
    pub fn prompt(&mut self, dialect: &Dialect, sink: &mut impl PromptSink) -> bool {
        let mut found = false;
        for (number, key) in (STORED..).zip(dialect.stored_keys).chain((0..).zip(dialect.prompt)) {
            let Some(value) = self.0.get_mut(key).filter(|value| !value.is_nothing()) else { continue };
            found |= number < STORED;
            sink.mark(&[mark::FIELD, number]);
            match value {
                JsonValue::Array(messages) if messages.iter().all(|message| message.as_object().is_some()) => {
                    for message in messages.iter_mut().filter(|message| !is_for_cache(message)) {
                        sink.mark(&[mark::ITEM]);
                        let role = message.as_object().and_then(|message| message.get("role")?.as_str());
                        let by_user = role.is_none_or(|role| role == USER);
                        walk(message, None, key, sink);
                        if SAID.contains(key) {
                            sink.message_ends(by_user);
                        }
                    }
                }
                other => walk(other, named(key), key, sink),
            }
            sink.mark(&[mark::END]);
        }
        found
    }

    /// The id of the response to continue from, if the server stores responses.
    pub fn previous_response_id(&self, dialect: &Dialect) -> Option<&str> {
        if dialect.keeps_answers() { self.0.get(GOES_ON_FROM)?.as_str() } else { None }
    }

    /// Reads the parameters beyond the shape.
    pub fn extras(&self) -> PromptExtras {
        let some = |value: &JsonValue<'_>| match value {
            JsonValue::Null => false,
            JsonValue::Array(list) => !list.is_empty(),
            JsonValue::Object(map) => map.get("type").and_then(JsonValue::as_str) != Some("text"),
            JsonValue::Bool(value) => *value,
            // Old Ollama clients always send a `format`, and those of llama.cpp a `grammar`; `response_mime_type` is
            // Gemini's.
            JsonValue::String(text) => !matches!(&**text, "" | "text/plain"),
            JsonValue::Number(_) => true,
        };
        // Most bodies have none of the nested objects.
        let some_nested = self.0.last_first().any(|(_, value)| value.as_object().is_some());
        let places: &[&str] = if some_nested { &NESTED } else { &[] };
        let nested = places.iter().filter_map(|place| self.0.get(place)?.as_object());
        let mut found = [None; 5];
        for place in std::iter::once(&self.0).chain(nested) {
            for (key, value) in place.last_first() {
                let Some((what, rank)) = cost_param(key) else { continue };
                let slot = &mut found[what as usize];
                // The earlier spelling in the list and the top-level object take precedence.
                if slot.is_none_or(|(better, _)| rank < better) {
                    *slot = Some((rank, value));
                }
            }
        }
        let logprobs = found[CostParam::Logprobs as usize];
        let found = |what: CostParam| found[what as usize].map(|(_, value): (u8, _)| value);
        // `logprobs: 0` requests those of the generated tokens; `top_logprobs: 0` requests none.
        let no_alternatives = |(rank, value): (u8, &JsonValue<'_>)| rank > 0 && value.as_u64() == Some(0);
        PromptExtras {
            min_tokens: found(CostParam::MinTokens).and_then(JsonValue::as_u64),
            ignore_eos: found(CostParam::IgnoreEos).and_then(JsonValue::as_bool),
            logprobs: logprobs.map(|found| !no_alternatives(found) && some(found.1)),
            tools: found(CostParam::Tools).map(some),
            structured: found(CostParam::Structured).map(some),
        }
    }

    /// The string or number at a dotted path such as `metadata.user_id`.
    pub fn text(&self, path: &str) -> Option<String> {
        let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
        let mut value = self.0.get(first)?;
        for key in rest.into_iter().flat_map(|rest| rest.split('.')) {
            value = value.as_object()?.get(key)?;
        }
        match value {
            JsonValue::String(text) => Some(text.clone().into_owned()),
            JsonValue::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

impl Dialect {
    /// True if servers of this API store responses that a request can continue from.
    pub fn keeps_answers(&self) -> bool {
        self.stored_keys.contains(&GOES_ON_FROM)
    }
}

#[derive(Clone, Copy)]
enum CostParam {
    MinTokens,
    IgnoreEos,
    Logprobs,
    Tools,
    Structured,
}

/// Returns the parameter that a key sets, and the rank of this spelling; the lowest rank wins.
fn cost_param(key: &str) -> Option<(CostParam, u8)> {
    Some(match key {
        "min_tokens" => (CostParam::MinTokens, 0),
        "min_new_tokens" => (CostParam::MinTokens, 1),
        "ignore_eos" => (CostParam::IgnoreEos, 0),
        "logprobs" => (CostParam::Logprobs, 0),
        "top_logprobs" => (CostParam::Logprobs, 1),
        "return_logprob" => (CostParam::Logprobs, 2),
        "responseLogprobs" => (CostParam::Logprobs, 3),
        "n_probs" => (CostParam::Logprobs, 4),
        "response_logprobs" => (CostParam::Logprobs, 5),
        "tools" => (CostParam::Tools, 0),
        "functions" => (CostParam::Tools, 1),
        "toolConfig" => (CostParam::Tools, 2),
        "tool_config" => (CostParam::Tools, 3),
        "response_format" => (CostParam::Structured, 0),
        "guided_json" => (CostParam::Structured, 1),
        "guided_regex" => (CostParam::Structured, 2),
        "guided_choice" => (CostParam::Structured, 3),
        "guided_grammar" => (CostParam::Structured, 4),
        "structured_outputs" => (CostParam::Structured, 5),
        "json_schema" => (CostParam::Structured, 6),
        "grammar" => (CostParam::Structured, 7),
        "regex" => (CostParam::Structured, 8),
        "ebnf" => (CostParam::Structured, 9),
        "responseSchema" => (CostParam::Structured, 10),
        "responseJsonSchema" => (CostParam::Structured, 11),
        "responseMimeType" => (CostParam::Structured, 12),
        "response_schema" => (CostParam::Structured, 13),
        "response_json_schema" => (CostParam::Structured, 14),
        "response_mime_type" => (CostParam::Structured, 15),
        "format" => (CostParam::Structured, 16),
        _ => return None,
    })
}

/// Walks one value. `medium` is the media type declared by the enclosing objects; `key` is the value's key.
fn walk(value: &mut JsonValue<'_>, medium: Option<Medium>, key: &str, sink: &mut impl PromptSink) {
    match value {
        JsonValue::String(text) => emit_text(text, medium, key, sink),
        JsonValue::Array(items) => {
            let mut rest = 0;
            if let Some(text) = items.first().filter(|_| key == "content").and_then(only_text) {
                emit_text(text, None, key, sink);
                rest = 1;
            }
            for item in items.iter_mut().skip(rest).filter(|item| !is_for_cache(item)) {
                sink.mark(&[mark::ITEM]);
                walk(item, medium, key, sink);
            }
        }
        JsonValue::Object(map) => {
            let medium = declared(map, medium);
            let mut field = |key: &str, value: &mut JsonValue<'_>| {
                sink.mark(&[mark::KEY]);
                sink.text(key);
                sink.mark(&[mark::VALUE]);
                walk(value, named(key).or(medium), key, sink);
            };
            // The role precedes the content, so that a prefix of the walk is a prefix of the conversation.
            if let Some(role) = map.get_mut("role") {
                field("role", role);
            }
            map.sort();
            let rest = map.iter_mut().filter(|(key, _)| *key != "role" && !NOT_CONTENT.contains(key));
            rest.for_each(|(key, value)| field(key, value));
        }
        JsonValue::Number(number) => word(&number.to_string(), sink),
        JsonValue::Bool(truth) => word(if *truth { "true" } else { "false" }, sink),
        JsonValue::Null => word("null", sink),
    }
    sink.mark(&[mark::END]);
}

fn emit_text(text: &str, medium: Option<Medium>, key: &str, sink: &mut impl PromptSink) {
    match place(text, medium, key) {
        Some((medium, place)) => {
            sink.mark(&[mark::MEDIA]);
            sink.part(medium, place);
        }
        None => sink.text(text),
    }
}

/// Returns the text of a part that contains nothing else. Servers treat it like a plain string. Clients use both
/// forms: a cache instruction needs a part, and clients put it on the latest messages only.
fn only_text<'a>(part: &'a JsonValue<'_>) -> Option<&'a str> {
    let part = part.as_object()?;
    let kind = part.get("type")?.as_str()?;
    let others = part.last_first().any(|(key, _)| !matches!(key, "type" | "text") && !NOT_CONTENT.contains(&key));
    if others || !matches!(kind, "text" | "input_text") { None } else { part.get("text")?.as_str() }
}

/// True if a list item contains only a cache instruction.
fn is_for_cache(item: &JsonValue<'_>) -> bool {
    let Some(object) = item.as_object() else { return false };
    let mut fields = object.last_first();
    let first = fields.next().is_some_and(|(key, _)| NOT_CONTENT.contains(&key));
    first && fields.next().is_none()
}

fn word(word: &str, sink: &mut impl PromptSink) {
    sink.mark(&[mark::WORD]);
    sink.word(word);
}

/// The media type that a key or a type name implies.
fn named(key: &str) -> Option<Medium> {
    Some(match key {
        "image" | "images" | "image_url" | "input_image" | "image_data" | "image_embeds" => Medium::Image,
        "audio" | "audio_url" | "input_audio" | "audio_data" => Medium::Audio,
        "video" | "video_url" | "video_data" => Medium::Video,
        "file" | "input_file" | "document" | "multimodal_data" => Medium::File,
        _ => return None,
    })
}

/// The media type of an object: from its content type, else from its enclosing object, else from its own type.
fn declared(map: &JsonObject<'_>, around: Option<Medium>) -> Option<Medium> {
    let of = |key: &str| map.get(key).and_then(JsonValue::as_str);
    if of("type") == Some("text") {
        return None;
    }
    let content_type = ["media_type", "mime_type", "mimeType"].into_iter().find_map(of);
    content_type.map(of_type).or(around).or_else(|| named(of("type")?))
}

fn of_type(content_type: &str) -> Medium {
    match content_type.split('/').next() {
        Some("image") => Medium::Image,
        Some("audio") => Medium::Audio,
        Some("video") => Medium::Video,
        _ => Medium::File,
    }
}

/// Whether a string is a part that is not text, and its location.
fn place<'a>(text: &'a str, medium: Option<Medium>, key: &str) -> Option<(Medium, MediaLocation<'a>)> {
    if let Some((content_type, data)) = text.strip_prefix("data:").and_then(|url| url.split_once(";base64,")) {
        return Some((of_type(content_type), MediaLocation::Inline(data)));
    }
    let medium = medium?;
    match key {
        // SGLang accepts data and URLs in the same field.
        "image_data" | "audio_data" | "video_data" if text.contains("://") => {
            Some((medium, MediaLocation::Elsewhere(text)))
        }
        "data" | "bytes" | "images" | "file_data" | "image_data" | "audio_data" | "video_data" | "image_embeds"
        | "multimodal_data" => Some((medium, MediaLocation::Inline(text))),
        "url" | "uri" | "image_url" | "audio_url" | "video_url" | "file_url" | "fileUri" | "file_uri" | "file_id" => {
            Some((medium, MediaLocation::Elsewhere(text)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::dialect::named;

    #[derive(Default, Debug, PartialEq)]
    struct Walked {
        bytes: Vec<u8>,
        parts: Vec<(Medium, String)>,
        messages: Vec<usize>,
        by_user: Vec<bool>,
    }

    impl PromptSink for Walked {
        fn mark(&mut self, mark: &[u8]) {
            self.bytes.extend_from_slice(mark);
        }
        fn text(&mut self, text: &str) {
            self.bytes.extend_from_slice(text.as_bytes());
        }
        fn word(&mut self, word: &str) {
            self.text(word);
        }
        fn part(&mut self, medium: Medium, place: MediaLocation<'_>) {
            self.parts.push((medium, format!("{place:?}")));
        }
        fn message_ends(&mut self, by_user: bool) {
            self.messages.push(self.bytes.len());
            self.by_user.push(by_user);
        }
    }

    fn walked(dialect: &str, body: &str) -> Walked {
        let mut walked = Walked::default();
        RequestBody::read(body.as_bytes()).unwrap().prompt(named(dialect).unwrap(), &mut walked);
        walked
    }

    #[test]
    fn how_the_json_is_written_does_not_matter_and_what_it_says_does() {
        let chat = |messages: &str| walked("openai.chat", &format!(r#"{{"model":"m","messages":{messages}}}"#));
        let one = chat(r#"[{"role":"user","content":"Hé"}]"#);
        assert_eq!(chat("[ {\"content\":\"H\\u00e9\",\n\"role\":\"user\"} ]"), one);
        assert_eq!(chat(r#"[{"role":"system","content":"He","role":"user","content":"Hé"}]"#), one);
        assert_ne!(chat(r#"[{"role":"system","content":"Hé"}]"#), one);
        assert_ne!(chat(r#"[{"role":"user","content":"He"}]"#), one);
        let two = chat(r#"[{"role":"user","content":"Hé"},{"role":"assistant","content":"x"}]"#);
        assert_eq!(two.bytes[..one.messages[0]], one.bytes[..one.messages[0]], "a longer one begins like the shorter");
        let swapped = chat(r#"[{"role":"assistant","content":"x"},{"role":"user","content":"Hé"}]"#);
        assert_ne!(swapped, two);
        assert_ne!(
            chat(r#"[{"role":"user","content":"a"},{"role":"user","content":"b"}]"#).bytes,
            chat(r#"[{"role":"user","content":"ab"}]"#).bytes
        );
    }

    #[test]
    fn tools_and_system_come_before_what_was_said_wherever_they_stand() {
        let first = walked("anthropic.messages", r#"{"system":"s","tools":[{"name":"t"}],"messages":[]}"#);
        let last = walked("anthropic.messages", r#"{"messages":[],"tools":[{"name":"t"}],"system":"s"}"#);
        assert_eq!(first, last);
        let marked = r#"{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[]}"#;
        let bare = r#"{"system":[{"type":"text","text":"s"}],"messages":[]}"#;
        assert_eq!(walked("anthropic.messages", marked), walked("anthropic.messages", bare));
    }

    #[test]
    fn a_content_is_the_same_as_a_text_and_as_parts_that_begin_with_it() {
        let chat = |content: &str| {
            let last = r#"{"role":"user","content":"more"}"#;
            walked("anthropic.messages", &format!(r#"{{"messages":[{{"role":"user","content":{content}}},{last}]}}"#))
        };
        let text = chat(r#""Hi""#);
        assert_eq!(chat(r#"[{"type":"text","text":"Hi"}]"#), text);
        // Clients that cache the latest messages convert only those into parts.
        assert_eq!(chat(r#"[{"text":"Hi","type":"text","cache_control":{"type":"ephemeral"}}]"#), text);
        assert_eq!(chat(r#"[{"type":"input_text","text":"Hi"}]"#), text);
        let two = chat(r#"[{"type":"text","text":"Hi"},{"type":"text","text":"Ho"}]"#);
        let shared = std::iter::zip(&text.bytes, &two.bytes).take_while(|(one, other)| one == other).count();
        assert!(text.bytes[..shared].ends_with(b"Hi"), "they share what they both begin with");
        for other in
            [r#"["Hi"]"#, r#"[{"type":"text","text":"Hi","name":"x"}]"#, r#"[{"type":"thinking","text":"Hi"}]"#]
        {
            assert_ne!(chat(other), text, "{other}");
        }
    }

    #[test]
    fn a_point_up_to_which_is_cached_is_no_part_of_a_prompt() {
        let body = |point: &str| {
            format!(
                r#"{{"toolConfig":{{"tools":[{{"toolSpec":{{}}}}{point}]}},"system":[{{"text":"s"}}{point}],
                "messages":[{{"role":"user","content":[{{"text":"Hi"}}{point}]}},{{"role":"user","content":[]}}]}}"#
            )
        };
        let bare = walked("bedrock.converse", &body(""));
        assert_eq!(walked("bedrock.converse", &body(r#",{"cachePoint":{"type":"default"}}"#)), bare);
    }

    #[test]
    fn what_is_empty_is_as_if_it_were_not_there() {
        let bare = walked("openai.chat", r#"{"messages":[{"role":"user","content":"Hi"}]}"#);
        for nothing in ["null", "[]"] {
            let body = format!(r#"{{"tools":{nothing},"messages":[{{"role":"user","content":"Hi"}}]}}"#);
            assert_eq!(walked("openai.chat", &body), bare);
        }
    }

    #[test]
    fn tools_and_system_are_messages_of_nobody() {
        let ends = |dialect: &str, body: &str| walked(dialect, body).messages.len();
        let tools = r#""tools":[{"name":"a"},{"name":"b"}]"#;
        assert_eq!(ends("openai.responses", &format!(r#"{{{tools},"input":"one text"}}"#)), 0);
        assert_eq!(ends("openai.responses", &format!(r#"{{{tools},"input":[{{"role":"user","content":"x"}}]}}"#)), 1);
        let system = r#""system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"x"}]"#;
        assert_eq!(ends("anthropic.messages", &format!("{{{tools},{system}}}")), 1);
        assert_eq!(ends("gemini", r#"{"tools":[{}],"contents":[{"parts":[{"text":"x"}]}]}"#), 1);
    }

    #[test]
    fn what_a_server_has_kept_is_in_front_of_the_prompt_by_its_name() {
        for (dialect, body, stored) in [
            ("openai.responses", r#"{"instructions":"s","input":"yes""#, r#""previous_response_id":"resp_"#),
            ("openai.responses", r#"{"input":[{"role":"user","content":"yes"}]"#, r#""conversation":"conv_"#),
            ("openai.responses", r#"{"input":"yes""#, r#""prompt":"pmpt_"#),
            ("gemini", r#"{"contents":[{"parts":[{"text":"yes"}]}]"#, r#""cachedContent":"cachedContents/"#),
            ("sglang.generate", r#"{"text":"yes""#, r#""session_params":"rid "#),
        ] {
            let bytes_with = |field: &str| walked(dialect, &[body, field, "}"].concat()).bytes;
            let [none, one, other] = ["", "1\"", "2\""].map(|id| match id {
                "" => bytes_with(""),
                id => bytes_with(&[",", stored, id].concat()),
            });
            assert!(one != other && one.ends_with(&none), "{dialect} {stored}: nothing else is different");
        }
        let mut nothing = Walked::default();
        let body = RequestBody::read(br#"{"previous_response_id":"resp_1"}"#);
        assert!(!body.unwrap().prompt(named("openai.responses").unwrap(), &mut nothing), "a name alone is no prompt");
    }

    #[test]
    fn what_an_ollama_server_said_before_is_in_front_of_the_prompt() {
        let bytes_of =
            |context: &str| walked("ollama.generate", &format!(r#"{{"prompt":"p","context":{context}}}"#)).bytes;
        let (one, other) = (bytes_of("[1,2]"), bytes_of("[1,3]"));
        let shared = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        assert!(one != other && one[shared..].ends_with(b"p\xff\xff"), "{one:?}");
    }

    #[test]
    fn parts_that_are_not_text_are_found_in_every_dialects_way() {
        for (dialect, body, medium, place) in [
            (
                "openai.chat",
                r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}"#,
                Medium::Image,
                MediaLocation::Inline("AAAA"),
            ),
            (
                "openai.chat",
                r#"{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]}"#,
                Medium::Image,
                MediaLocation::Elsewhere("https://x/y.png"),
            ),
            (
                "openai.chat",
                r#"{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"BBBB","format":"wav"}}]}]}"#,
                Medium::Audio,
                MediaLocation::Inline("BBBB"),
            ),
            (
                "anthropic.messages",
                r#"{"messages":[{"content":[{"type":"document","source":{"media_type":"application/pdf","data":"CC"}}]}]}"#,
                Medium::File,
                MediaLocation::Inline("CC"),
            ),
            (
                "gemini",
                r#"{"contents":[{"parts":[{"inlineData":{"mimeType":"video/mp4","data":"DD"}}]}]}"#,
                Medium::Video,
                MediaLocation::Inline("DD"),
            ),
            (
                "bedrock.converse",
                r#"{"messages":[{"content":[{"image":{"format":"png","source":{"bytes":"EE"}}}]}]}"#,
                Medium::Image,
                MediaLocation::Inline("EE"),
            ),
            ("ollama.chat", r#"{"messages":[{"images":["FF"]}]}"#, Medium::Image, MediaLocation::Inline("FF")),
            ("ollama.generate", r#"{"prompt":"p","images":["GG"]}"#, Medium::Image, MediaLocation::Inline("GG")),
            ("sglang.generate", r#"{"text":"t","image_data":"HH"}"#, Medium::Image, MediaLocation::Inline("HH")),
            (
                "sglang.generate",
                r#"{"text":"t","image_data":["https://x/y.png"]}"#,
                Medium::Image,
                MediaLocation::Elsewhere("https://x/y.png"),
            ),
            ("sglang.generate", r#"{"text":"t","audio_data":["KK"]}"#, Medium::Audio, MediaLocation::Inline("KK")),
            (
                "llamacpp.completion",
                r#"{"prompt":{"prompt_string":"p <__media__>","multimodal_data":["II"]}}"#,
                Medium::File,
                MediaLocation::Inline("II"),
            ),
            (
                "openai.chat",
                r#"{"messages":[{"content":[{"type":"file","file":{"file_id":"file-1"}}]}]}"#,
                Medium::File,
                MediaLocation::Elsewhere("file-1"),
            ),
            (
                "openai.chat",
                r#"{"messages":[{"content":[{"type":"image_embeds","image_embeds":"JJ"}]}]}"#,
                Medium::Image,
                MediaLocation::Inline("JJ"),
            ),
            (
                "openai.responses",
                r#"{"input":[{"content":[{"type":"input_image","file_id":"file-2"}]}]}"#,
                Medium::Image,
                MediaLocation::Elsewhere("file-2"),
            ),
            (
                "openai.responses",
                r#"{"input":[{"content":[{"type":"input_file","file_url":"https://x/z.pdf"}]}]}"#,
                Medium::File,
                MediaLocation::Elsewhere("https://x/z.pdf"),
            ),
            (
                "anthropic.messages",
                r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"https://x/y.png"}}]}]}"#,
                Medium::Image,
                MediaLocation::Elsewhere("https://x/y.png"),
            ),
            (
                "anthropic.messages",
                r#"{"messages":[{"content":[{"type":"image","source":{"type":"file","file_id":"file-3"}}]}]}"#,
                Medium::Image,
                MediaLocation::Elsewhere("file-3"),
            ),
        ] {
            assert_eq!(walked(dialect, body).parts, [(medium, format!("{place:?}"))], "{body}");
        }
    }

    #[test]
    fn a_document_that_is_text_and_a_tool_that_speaks_of_images_are_text() {
        for body in [
            r#"{"messages":[{"content":[{"type":"document","source":{"type":"text","media_type":"text/plain","data":"Hi"}}]}]}"#,
            r#"{"tools":[{"input_schema":{"properties":{"image":{"properties":{"url":{"type":"string"}}}}}}],"messages":[]}"#,
        ] {
            assert_eq!(walked("anthropic.messages", body).parts, [], "{body}");
        }
    }

    #[test]
    fn an_empty_schema_and_no_alternatives_ask_for_nothing() {
        let extras = |body: &str| RequestBody::read(body.as_bytes()).unwrap().extras();
        for (body, structured) in [
            (r#"{"format":""}"#, Some(false)),
            (r#"{"grammar":""}"#, Some(false)),
            (r#"{"sampling_params":{"regex":""}}"#, Some(false)),
            (r#"{"format":"json"}"#, Some(true)),
            (r#"{"json_schema":{}}"#, Some(true)),
        ] {
            assert_eq!(extras(body).structured, structured, "{body}");
        }
        for (body, logprobs) in [
            (r#"{"n_probs":0}"#, Some(false)),
            (r#"{"n_probs":2}"#, Some(true)),
            (r#"{"top_logprobs":0}"#, Some(false)),
            (r#"{"logprobs":0}"#, Some(true)),
            (r#"{"logprobs":true,"top_logprobs":0}"#, Some(true)),
        ] {
            assert_eq!(extras(body).logprobs, logprobs, "{body}");
        }
    }

    #[test]
    fn what_else_changes_the_cost_is_read_where_it_stands() {
        let extras = |body: &str| RequestBody::read(body.as_bytes()).unwrap().extras();
        let all = r#"{"min_tokens":3,"ignore_eos":true,"logprobs":true,"tools":[{}],"response_format":{"type":"json_object"}}"#;
        let expected = PromptExtras {
            min_tokens: Some(3),
            ignore_eos: Some(true),
            logprobs: Some(true),
            tools: Some(true),
            structured: Some(true),
        };
        assert_eq!(extras(all), expected);
        assert_eq!(extras("{}"), PromptExtras::default());
        let nested = extras(r#"{"sampling_params":{"ignore_eos":true},"response_format":{"type":"text"}}"#);
        assert_eq!((nested.ignore_eos, nested.structured), (Some(true), Some(false)));
        for structured in [
            r#"{"guided_regex":"a+"}"#,
            r#"{"guided_choice":["a"]}"#,
            r#"{"guided_grammar":"g"}"#,
            r#"{"structured_outputs":{"json":{}}}"#,
            r#"{"sampling_params":{"regex":"a+"}}"#,
            r#"{"sampling_params":{"ebnf":"g"}}"#,
            r#"{"parameters":{"grammar":{"type":"json"}}}"#,
            r#"{"text":{"format":{"type":"json_schema"}}}"#,
            r#"{"generationConfig":{"responseJsonSchema":{}}}"#,
            r#"{"generationConfig":{"responseMimeType":"application/json"}}"#,
            r#"{"generation_config":{"response_schema":{}}}"#,
            r#"{"format":"json"}"#,
        ] {
            assert_eq!(extras(structured).structured, Some(true), "{structured}");
        }
        let plain = r#"{"generationConfig":{"responseMimeType":"text/plain"}}"#;
        assert_eq!(extras(plain).structured, Some(false));
        let twice =
            r#"{"options":{"logprobs":false,"min_tokens":1},"top_logprobs":5,"min_new_tokens":2,"min_tokens":3}"#;
        assert_eq!(
            (extras(twice).logprobs, extras(twice).min_tokens),
            (Some(false), Some(3)),
            "the first spelling, the top"
        );
        let repeated = extras(
            r#"{"options":{"min_tokens":1},"tools":[],"options":7,"tools":[{}],"parameters":{"grammar":"g","grammar":null}}"#,
        );
        assert_eq!(
            (repeated.min_tokens, repeated.tools, repeated.structured),
            (None, Some(true), Some(false)),
            "of equal keys the last"
        );
        let body = RequestBody::read(br#"{"metadata":{"user_id":"u"},"n":7}"#).unwrap();
        assert_eq!(
            (body.text("metadata.user_id"), body.text("n"), body.text("a.b")),
            (Some("u".into()), Some("7".into()), None)
        );
    }
}
