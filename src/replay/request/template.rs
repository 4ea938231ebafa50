//! Request templates: a row as a request of each dialect. Pure.
//!
//! A request carries every property of the row that its dialect supports: model, streaming, lengths, and the sampling
//! parameters that change the cost. It has one tool if tools were offered, one schema if the output was structured, and
//! synthesized images and audio. It asks for an exact output length where the dialect's servers support that
//! (`ignore_eos`, a minimum number of tokens). Rows with a schema are exempt, because their output ends with the
//! schema.

use serde_json::{Map, Value};

pub use super::body::OwnFields;
use super::body::{
    BodySpec, SGLANG_SAMPLING, anthropic_messages, insert_some, llamacpp, ollama_chat, ollama_generate, openai_chat,
    openai_completions, openai_embeddings, openai_responses, sglang, tgi,
};
use super::conversation::PastTurn;
use super::media::Media;
use crate::measure::dialect::{self, Dialect};
use crate::stats::hash::mix;
use crate::trace_file::row::{PartKind, TraceEntry};

/// The request template of a dialect.
#[derive(Debug)]
pub struct RequestTemplate {
    dialect: &'static str,
    path: &'static str,
    /// Header lines that its servers require.
    fields: &'static [(&'static str, &'static str)],
    /// The header line for an API key.
    key: fn(&str) -> (&'static str, String),
    /// True if earlier turns go into messages with roles, to which servers add tokens; otherwise all turns form one
    /// text.
    pub(in crate::replay) roles: bool,
    /// Object of the body that holds the sampling parameters; empty for the body itself.
    sampling: &'static str,
    /// Supported media.
    media: &'static [PartKind],
    /// Writes the prompt and the dialect's own fields into a body.
    body: fn(&mut Map<String, Value>, &BodySpec<'_>),
}

/// Values common to most dialects.
const DEFAULT_TEMPLATE: RequestTemplate = RequestTemplate {
    dialect: "",
    path: "",
    fields: &[],
    key: |key| ("authorization", format!("Bearer {key}")),
    roles: false,
    sampling: "",
    media: &[],
    body: |_, _| (),
};

/// Every dialect with a request template.
static TEMPLATES: &[RequestTemplate] = &[
    RequestTemplate {
        dialect: "openai.chat",
        path: "/v1/chat/completions",
        roles: true,
        media: &[PartKind::Image, PartKind::Audio],
        body: openai_chat,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate {
        dialect: "openai.completions",
        path: "/v1/completions",
        body: openai_completions,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate {
        dialect: "openai.responses",
        path: "/v1/responses",
        roles: true,
        media: &[PartKind::Image],
        body: openai_responses,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate {
        dialect: "openai.embeddings",
        path: "/v1/embeddings",
        body: openai_embeddings,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate {
        dialect: "anthropic.messages",
        path: "/v1/messages",
        fields: &[("anthropic-version", "2023-06-01")],
        key: |key| ("x-api-key", key.to_owned()),
        roles: true,
        sampling: "",
        media: &[PartKind::Image],
        body: anthropic_messages,
    },
    RequestTemplate {
        dialect: "tgi.stream",
        path: "/generate_stream",
        sampling: "parameters",
        body: tgi,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate {
        dialect: "sglang.generate",
        path: "/generate",
        sampling: SGLANG_SAMPLING,
        body: sglang,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate { dialect: "llamacpp.completion", path: "/completion", body: llamacpp, ..DEFAULT_TEMPLATE },
    RequestTemplate {
        dialect: "ollama.chat",
        path: "/api/chat",
        roles: true,
        sampling: "options",
        media: &[PartKind::Image],
        body: ollama_chat,
        ..DEFAULT_TEMPLATE
    },
    RequestTemplate {
        dialect: "ollama.generate",
        path: "/api/generate",
        sampling: "options",
        body: ollama_generate,
        ..DEFAULT_TEMPLATE
    },
];

/// For rows that name no dialect.
pub const DEFAULT_DIALECT: &str = "openai.chat";

/// Hosts of public APIs, which reject unknown fields.
const STRICT_API_HOSTS: [&str; 5] = ["openai.com", "azure.com", "anthropic.com", "googleapis.com", "amazonaws.com"];

/// Tokens requested beyond those at which a client aborted, if the trace has no limit.
const EXTRA_OUTPUT_TOKENS: u64 = 256;

/// The output token limit per choice; a row counts the tokens of all choices. For an aborted row it exceeds the
/// recorded tokens, because the client would have received more.
pub fn max_output_tokens(entry: &TraceEntry) -> Option<u64> {
    let (max_tokens, choices) = (entry.params.max_tokens, entry.params.n.unwrap_or(1).max(1));
    let limit = match entry.output_tokens.map(|all| all.div_ceil(choices)) {
        Some(got) if entry.is_aborted() => {
            max_tokens.filter(|max| *max > got).or(Some(got.saturating_add(EXTRA_OUTPUT_TOKENS)))
        }
        output => output.or(max_tokens),
    };
    limit.map(|tokens| tokens.max(1))
}

/// Whether requests ask for an output of exactly the recorded length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExactOutput {
    /// Except at public APIs, which reject the fields.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: only `max_tokens` is set.
    Off,
}

/// True if a path ends with a dialect's request path.
pub(in crate::replay) fn is_request_path(path: &str) -> bool {
    TEMPLATES.iter().any(|form| path.ends_with(form.path))
}

impl RequestTemplate {
    /// Finds the template of a dialect.
    ///
    /// # Errors
    /// The dialect has no template; the text lists those that have one.
    pub fn named(name: &str) -> Result<&'static Self, String> {
        TEMPLATES.iter().find(|form| form.dialect == name).ok_or_else(|| {
            let known: Vec<&str> = TEMPLATES.iter().map(|form| form.dialect).collect();
            format!(
                "no requests can be made in the dialect `{name}`; one of {} can be had by --dialect",
                known.join(", ")
            )
        })
    }

    /// The dialect that reads the responses.
    pub fn dialect(&self) -> Option<&'static Dialect> {
        dialect::named(self.dialect)
    }

    /// Request path, without the target's prefix.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// The template's header lines, and the line for an API key.
    pub fn fields(&self, key: Option<&str>) -> impl Iterator<Item = (&'static str, String)> {
        let own = self.fields.iter().map(|(name, value)| (*name, (*value).to_owned()));
        own.chain(key.map(self.key))
    }

    /// True if prompts support this kind of media.
    pub fn supports_media(&self, kind: PartKind) -> bool {
        self.media.contains(&kind)
    }

    /// The JSON body of a row's request, with the earlier turns and this prompt. `seed` is for synthesized media, and
    /// `own` fields replace those of the template.
    pub fn body(
        &self,
        entry: &TraceEntry,
        past_turns: &[PastTurn],
        prompt: &str,
        exact: bool,
        seed: u64,
        own: &OwnFields,
    ) -> Vec<u8> {
        let taken = (0..).zip(&entry.prompt.parts).filter(|(_, part)| self.supports_media(part.kind));
        let media: Vec<Media> = taken.filter_map(|(place, part)| Media::synthesize(part, mix(seed ^ place))).collect();
        let ask = BodySpec {
            prompt,
            past_turns,
            media: &media,
            model: entry.model.as_deref(),
            params: &entry.params,
            stream: entry.stream.unwrap_or(true),
            output: max_output_tokens(entry),
            exact: exact && entry.output_tokens.is_some() && entry.params.structured != Some(true),
        };
        let mut body = Map::new();
        insert_some(&mut body, "model", ask.model);
        (self.body)(&mut body, &ask);
        own.insert(&mut body, self.sampling);
        // Serializing maps of strings and numbers cannot fail.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

impl ExactOutput {
    /// True if requests to a target with this host ask for exact lengths.
    pub fn applies_to(self, target: &str) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Auto => !STRICT_API_HOSTS.iter().any(|host| target.ends_with(host)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::measure::dialect::prompt::{PromptExtras, RequestBody};
    use crate::measure::record::Ending;
    use crate::measure::shape::{RequestShape, ShapeReader};
    use crate::trace_file::row::RequestParams;

    fn entry() -> TraceEntry {
        let params = RequestParams { temperature: Some(0.5), ..RequestParams::default() };
        TraceEntry { model: Some("m".to_owned()), output_tokens: Some(7), params, ..TraceEntry::default() }
    }

    fn body(dialect: &str, entry: &TraceEntry, exact: bool) -> Value {
        let form = RequestTemplate::named(dialect).unwrap();
        serde_json::from_slice(&form.body(entry, &[], " the and", exact, 0, &OwnFields::default())).unwrap()
    }

    #[test]
    fn every_form_asks_what_its_dialect_reads() {
        for form in TEMPLATES {
            let dialect = form.dialect().unwrap();
            assert!(dialect::for_path(form.path()).is_none_or(|found| found == dialect), "{}", form.path());
            let shape = RequestShape { dialect: Some(dialect), ..RequestShape::default() };
            let mut reader = ShapeReader::new(shape, b"");
            reader.push(&form.body(&entry(), &[], " the and", true, 0, &OwnFields::default()));
            let shape = reader.take();
            let streams = !matches!(form.dialect, "openai.embeddings" | "tgi.stream");
            assert_eq!(shape.stream, streams.then_some(true), "{}", form.dialect);
            let limited = form.dialect != "openai.embeddings";
            assert_eq!(shape.max_tokens, limited.then_some(7), "{}", form.dialect);
        }
    }

    #[test]
    fn own_fields_go_where_the_dialect_has_its_sampling_parameters_and_replace_ours() {
        let map = |value: Value| value.as_object().cloned().unwrap();
        let own =
            OwnFields { sampling: map(json!({"temperature": 0.7})), body: map(json!({"max_tokens": 3, "lora": "a"})) };
        for (dialect, pointer) in [
            ("openai.chat", "/temperature"),
            ("tgi.stream", "/parameters/temperature"),
            ("sglang.generate", "/sampling_params/temperature"),
            ("ollama.chat", "/options/temperature"),
            ("llamacpp.completion", "/temperature"),
        ] {
            let body = RequestTemplate::named(dialect).unwrap().body(&entry(), &[], " a", true, 0, &own);
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body.pointer(pointer), Some(&json!(0.7)), "{dialect}: the row has 0.5");
            assert_eq!((&body["lora"], &body["max_tokens"]), (&json!("a"), &json!(3)), "{dialect}");
        }
    }

    #[test]
    fn an_exact_length_is_asked_for_only_where_the_trace_has_one() {
        let exact = body("openai.chat", &entry(), true);
        assert_eq!(
            (&exact["max_tokens"], &exact["min_tokens"], &exact["ignore_eos"]),
            (&json!(7), &json!(7), &json!(true))
        );
        assert_eq!(exact["stream_options"], json!({"include_usage": true}));
        let free = body("openai.chat", &entry(), false);
        assert_eq!((free.get("min_tokens"), free.get("ignore_eos")), (None, None));
        let params = RequestParams { max_tokens: Some(9), ..RequestParams::default() };
        let unknown =
            body("openai.completions", &TraceEntry { params, stream: Some(false), ..TraceEntry::default() }, true);
        assert_eq!((&unknown["max_tokens"], unknown.get("ignore_eos")), (&json!(9), None));
        assert_eq!((unknown.get("model"), unknown.get("stream_options")), (None, None));
    }

    #[test]
    fn a_client_that_left_asks_for_more_than_it_got() {
        let left = TraceEntry { ending: Some(Ending::DownstreamGone), ..entry() };
        let limited = |max_tokens| {
            max_output_tokens(&TraceEntry {
                params: RequestParams { max_tokens, ..RequestParams::default() },
                ..left.clone()
            })
        };
        assert_eq!((limited(Some(40)), limited(Some(7)), limited(None)), (Some(40), Some(263), Some(263)));
        assert_eq!(body("openai.chat", &left, true)["min_tokens"], 263);
        assert_eq!(max_output_tokens(&entry()), Some(7));
    }

    #[test]
    fn what_was_said_before_goes_in_messages_or_in_front() {
        let past = [PastTurn { user: " a".to_owned(), assistant: "B".to_owned() }];
        let body = |dialect: &str| {
            let body =
                RequestTemplate::named(dialect).unwrap().body(&entry(), &past, " c", true, 0, &OwnFields::default());
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let messages = json!([{"role": "user", "content": " a"}, {"role": "assistant", "content": "B"},
            {"role": "user", "content": " c"}]);
        for form in TEMPLATES.iter().filter(|form| form.roles) {
            let key = if form.dialect == "openai.responses" { "input" } else { "messages" };
            assert_eq!(body(form.dialect)[key], messages, "{}", form.dialect);
        }
        assert_eq!(body("openai.completions")["prompt"], " aB c");
        assert_eq!(body("tgi.stream")["inputs"], " aB c");
        assert_eq!(body("sglang.generate")["text"], " aB c");
    }

    #[test]
    fn what_changes_the_cost_is_asked_as_it_was_captured() {
        let params = RequestParams {
            max_tokens: Some(60),
            min_tokens: Some(3),
            n: Some(2),
            temperature: Some(0.25),
            ignore_eos: Some(true),
            logprobs: Some(true),
            tools: Some(true),
            structured: Some(true),
        };
        let captured = TraceEntry { params, output_tokens: Some(40), ..entry() };
        let read =
            |dialect: &str| RequestBody::read(body(dialect, &captured, true).to_string().as_bytes()).unwrap().extras();
        let extras = read("openai.chat");
        let all = PromptExtras {
            min_tokens: Some(3),
            ignore_eos: Some(true),
            logprobs: Some(true),
            tools: Some(true),
            structured: Some(true),
        };
        assert_eq!(extras, all, "what the capture reads is what it wrote down");
        let chat = body("openai.chat", &captured, true);
        assert_eq!((&chat["n"], &chat["temperature"]), (&json!(2), &json!(0.25)));
        assert_eq!(chat["max_tokens"], 20, "40 tokens are those of both choices");
        assert_eq!(chat["tools"][0]["function"]["parameters"]["type"], "object");
        assert_eq!(body("openai.chat", &entry(), true).get("tools"), None);
        let with_tools = ["openai.chat", "openai.responses", "anthropic.messages", "ollama.chat"];
        for form in TEMPLATES.iter().filter(|form| form.dialect != "openai.embeddings") {
            let tools = with_tools.contains(&form.dialect).then_some(true);
            assert_eq!(
                (read(form.dialect).tools, read(form.dialect).structured),
                (tools, Some(true)),
                "{}",
                form.dialect
            );
        }
    }

    #[test]
    fn images_and_sound_go_where_the_dialect_has_them() {
        let part = |kind| crate::trace_file::row::PromptPart { kind, bytes: Some(1_000), size: Some((32, 16)) };
        let mut captured = entry();
        captured.prompt.parts = vec![part(PartKind::Image), part(PartKind::Audio), part(PartKind::Video)];
        let chat = &body("openai.chat", &captured, true)["messages"][0]["content"];
        let kinds: Vec<&str> = chat.as_array().unwrap().iter().map(|part| part["type"].as_str().unwrap()).collect();
        assert_eq!((kinds, &chat[0]["text"]), (vec!["text", "image_url", "input_audio"], &json!(" the and")));
        let url = chat[1]["image_url"]["url"].as_str().unwrap();
        // A capture of this request reads back the captured values.
        let read = |data: &str| base64::Engine::decode(&base64::engine::general_purpose::STANDARD, data).unwrap();
        let png = read(url.strip_prefix("data:image/png;base64,").unwrap());
        assert_eq!((png.len(), &png[16..24]), (1_000, &[0, 0, 0, 32, 0, 0, 0, 16][..]));
        assert_eq!(read(chat[2]["input_audio"]["data"].as_str().unwrap()).len(), 1_000);
        let anthropic = &body("anthropic.messages", &captured, true)["messages"][0]["content"];
        assert_eq!(
            (anthropic.as_array().unwrap().len(), &anthropic[1]["source"]["media_type"]),
            (2, &json!("image/png"))
        );
        assert_eq!(body("ollama.chat", &captured, true)["messages"][0]["images"].as_array().unwrap().len(), 1);
        assert_eq!(body("openai.completions", &captured, true)["prompt"], " the and");
    }

    #[test]
    fn a_key_goes_where_the_dialect_has_it() {
        let fields = |name| RequestTemplate::named(name).unwrap().fields(Some("k")).collect::<Vec<_>>();
        assert_eq!(fields("openai.chat"), [("authorization", "Bearer k".to_owned())]);
        let version = ("anthropic-version", "2023-06-01".to_owned());
        assert_eq!(fields("anthropic.messages"), [version, ("x-api-key", "k".to_owned())]);
    }

    #[test]
    fn public_apis_are_not_asked_what_they_refuse() {
        assert!(ExactOutput::Auto.applies_to("127.0.0.1") && !ExactOutput::Auto.applies_to("api.openai.com"));
        assert!(ExactOutput::On.applies_to("api.openai.com"));
    }

    #[test]
    fn a_dialect_without_a_form_is_refused_by_name() {
        let error = RequestTemplate::named("bedrock.converse").unwrap_err();
        assert!(error.starts_with("no requests can be made in the dialect `bedrock.converse`; one of openai.chat, "));
    }
}
