//! Request bodies, one function per dialect. Pure.

use serde_json::{Map, Value, json};

use super::conversation::PastTurn;
use super::media::Media;
use crate::trace_file::row::{PartKind, RequestParams};

/// Object of SGLang's requests for sampling parameters.
pub(in crate::replay) const SGLANG_SAMPLING: &str = "sampling_params";

/// Fields of requests that the user sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnFields {
    /// Sampling parameters, in the object of the dialect.
    pub sampling: Map<String, Value>,
    /// Fields of the body.
    pub body: Map<String, Value>,
}

/// Fields of prompts and streams, on which the measurement depends.
const RESERVED_FIELDS: [&str; 8] =
    ["contents", "input", "inputs", "messages", "prompt", "stream", "stream_options", "text"];

impl OwnFields {
    /// Sampling parameters, and fields of the body.
    pub fn new(temperature: Option<f64>, top_p: Option<f64>, top_k: Option<u32>, body: Map<String, Value>) -> Self {
        let mut sampling = Map::new();
        insert_some(&mut sampling, "temperature", temperature);
        insert_some(&mut sampling, "top_p", top_p);
        insert_some(&mut sampling, "top_k", top_k);
        Self { sampling, body }
    }

    /// True if a field belongs to the prompt or the stream, so no flag may set it.
    pub fn is_reserved(field: &str) -> bool {
        RESERVED_FIELDS.contains(&field)
    }

    pub(in crate::replay) fn insert(&self, body: &mut Map<String, Value>, sampling: &str) {
        let place = match sampling {
            "" => Some(&mut *body),
            name => body.entry(name).or_insert_with(|| Map::new().into()).as_object_mut(),
        };
        place.into_iter().for_each(|place| place.extend(self.sampling.clone()));
        body.extend(self.body.clone());
    }
}

pub(in crate::replay) struct BodySpec<'a> {
    pub(in crate::replay) prompt: &'a str,
    /// The session's earlier turns.
    pub(in crate::replay) past_turns: &'a [PastTurn],
    /// Images and audio.
    pub(in crate::replay) media: &'a [Media],
    pub(in crate::replay) model: Option<&'a str>,
    pub(in crate::replay) params: &'a RequestParams,
    pub(in crate::replay) stream: bool,
    /// Planned output length in tokens; `exact` asks for exactly that.
    pub(in crate::replay) output: Option<u64>,
    pub(in crate::replay) exact: bool,
}

pub(in crate::replay) fn insert_some(body: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(key.to_owned(), value.into());
    }
}

/// The earlier turns as messages; the last message has `content`.
fn messages(ask: &BodySpec<'_>, content: impl Into<Value>) -> Option<Value> {
    let message = |role, content: Value| json!({"role": role, "content": content});
    let past = ask.past_turns.iter().flat_map(|turn| {
        [message("user", turn.user.as_str().into()), message("assistant", turn.assistant.as_str().into())]
    });
    Some(past.chain([message("user", content.into())]).collect())
}

/// The prompt: plain text, or with media a list of parts that starts with the text.
fn parts(ask: &BodySpec<'_>, text: &str, part: impl Fn(&Media) -> Value) -> Value {
    match ask.media {
        [] => ask.prompt.into(),
        media => [json!({"type": text, "text": ask.prompt})].into_iter().chain(media.iter().map(part)).collect(),
    }
}

/// The schema for rows with structured output: text of any length.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": false,
    })
}

/// Placeholder tool as (name, description, arguments).
fn tool() -> (&'static str, &'static str, Value) {
    ("look_up", "Looks something up", schema())
}

/// OpenAI's tool format, which Ollama also accepts.
fn function_tools(ask: &BodySpec<'_>) -> Option<Value> {
    let (name, about, arguments) = tool();
    let function = json!({"name": name, "description": about, "parameters": arguments});
    ask.tools().then(|| json!([{"type": "function", "function": function}]))
}

fn response_format(ask: &BodySpec<'_>) -> Option<Value> {
    ask.structured()
        .then(|| json!({"type": "json_schema", "json_schema": {"name": "reply", "strict": true, "schema": schema()}}))
}

impl BodySpec<'_> {
    fn tools(&self) -> bool {
        self.params.tools == Some(true)
    }

    fn structured(&self) -> bool {
        self.params.structured == Some(true)
    }

    /// The minimum output length: the exact length, or the captured minimum.
    fn min_output_tokens(&self) -> Option<u64> {
        self.output.filter(|_| self.exact).or(self.params.min_tokens)
    }

    fn ignore_eos(&self) -> Option<bool> {
        if self.exact { Some(true) } else { self.params.ignore_eos }
    }
}

/// Earlier turns and the prompt as one text.
fn text(ask: &BodySpec<'_>) -> Option<String> {
    let past = ask.past_turns.iter().flat_map(|turn| [&*turn.user, &*turn.assistant]);
    Some(past.chain([ask.prompt]).collect())
}

/// Fields common to OpenAI's two generating routes, with the extensions of vLLM and SGLang.
fn openai(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    insert_some(body, "stream", Some(ask.stream));
    insert_some(body, "stream_options", ask.stream.then(|| json!({"include_usage": true})));
    insert_some(body, "max_tokens", ask.output);
    insert_some(body, "min_tokens", ask.min_output_tokens());
    insert_some(body, "ignore_eos", ask.ignore_eos());
    insert_some(body, "n", ask.params.n);
    insert_some(body, "temperature", ask.params.temperature);
    insert_some(body, "response_format", response_format(ask));
}

pub(in crate::replay) fn openai_chat(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let content = parts(ask, "text", |media| match media.kind {
        PartKind::Audio => json!({"type": "input_audio", "input_audio": {"data": media.base64, "format": "wav"}}),
        _ => json!({"type": "image_url", "image_url": {"url": media.url()}}),
    });
    insert_some(body, "messages", messages(ask, content));
    openai(body, ask);
    insert_some(body, "tools", function_tools(ask));
    insert_some(body, "logprobs", ask.params.logprobs);
}

pub(in crate::replay) fn openai_completions(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    insert_some(body, "prompt", text(ask));
    openai(body, ask);
    // In this API `logprobs` is the number of alternatives.
    insert_some(body, "logprobs", ask.params.logprobs.filter(|enabled| *enabled).map(|_| 1));
}

pub(in crate::replay) fn openai_responses(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let content = parts(ask, "input_text", |media| json!({"type": "input_image", "image_url": media.url()}));
    let plain = ask.past_turns.is_empty() && ask.media.is_empty();
    insert_some(body, "input", if plain { text(ask).map(Value::from) } else { messages(ask, content) });
    insert_some(body, "stream", Some(ask.stream));
    insert_some(body, "max_output_tokens", ask.output);
    insert_some(body, "temperature", ask.params.temperature);
    let (name, about, arguments) = tool();
    let tools =
        json!([{"type": "function", "name": name, "description": about, "parameters": arguments, "strict": true}]);
    insert_some(body, "tools", ask.tools().then_some(tools));
    let format = json!({"format": {"type": "json_schema", "name": "reply", "strict": true, "schema": schema()}});
    insert_some(body, "text", ask.structured().then_some(format));
}

pub(in crate::replay) fn openai_embeddings(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    insert_some(body, "input", text(ask));
}

pub(in crate::replay) fn anthropic_messages(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let content = parts(
        ask,
        "text",
        |media| json!({"type": "image", "source": {"type": "base64", "media_type": media.mime, "data": media.base64}}),
    );
    insert_some(body, "messages", messages(ask, content));
    insert_some(body, "stream", Some(ask.stream));
    let (name, about, arguments) = tool();
    insert_some(
        body,
        "tools",
        ask.tools().then(|| json!([{"name": name, "description": about, "input_schema": arguments}])),
    );
    let format = json!({"format": {"type": "json_schema", "schema": schema()}});
    insert_some(body, "output_config", ask.structured().then_some(format));
    // The only dialect in which the field is mandatory.
    insert_some(body, "max_tokens", Some(ask.output.unwrap_or(1_024)));
    insert_some(body, "temperature", ask.params.temperature);
}

pub(in crate::replay) fn tgi(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let mut parameters = Map::new();
    insert_some(&mut parameters, "max_new_tokens", ask.output);
    insert_some(&mut parameters, "temperature", ask.params.temperature.filter(|temperature| *temperature > 0.0));
    insert_some(&mut parameters, "details", Some(true));
    insert_some(&mut parameters, "grammar", ask.structured().then(|| json!({"type": "json", "value": schema()})));
    body.remove("model");
    insert_some(body, "inputs", text(ask));
    insert_some(body, "parameters", Some(parameters));
}

pub(in crate::replay) fn sglang(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let mut sampling = Map::new();
    insert_some(&mut sampling, "max_new_tokens", ask.output);
    insert_some(&mut sampling, "min_new_tokens", ask.min_output_tokens());
    insert_some(&mut sampling, "ignore_eos", ask.ignore_eos());
    insert_some(&mut sampling, "json_schema", ask.structured().then(|| schema().to_string()));
    insert_some(&mut sampling, "n", ask.params.n);
    insert_some(&mut sampling, "temperature", ask.params.temperature);
    body.remove("model");
    insert_some(body, "text", text(ask));
    insert_some(body, SGLANG_SAMPLING, Some(sampling));
    insert_some(body, "return_logprob", ask.params.logprobs);
    insert_some(body, "stream", Some(ask.stream));
}

pub(in crate::replay) fn llamacpp(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    insert_some(body, "prompt", text(ask));
    insert_some(body, "stream", Some(ask.stream));
    insert_some(body, "n_predict", ask.output);
    insert_some(body, "ignore_eos", ask.ignore_eos());
    insert_some(body, "temperature", ask.params.temperature);
    insert_some(body, "json_schema", ask.structured().then(schema));
}

fn ollama(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let mut options = Map::new();
    insert_some(&mut options, "num_predict", ask.output);
    insert_some(&mut options, "temperature", ask.params.temperature);
    insert_some(body, "stream", Some(ask.stream));
    insert_some(body, "options", Some(options));
    insert_some(body, "format", ask.structured().then(schema));
}

pub(in crate::replay) fn ollama_chat(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    let mut messages = messages(ask, ask.prompt);
    let images: Vec<&str> = ask.media.iter().map(|media| &*media.base64).collect();
    if let Some(last) = messages.as_mut().and_then(Value::as_array_mut).and_then(|all| all.last_mut())
        && !images.is_empty()
    {
        last["images"] = images.into();
    }
    insert_some(body, "messages", messages);
    insert_some(body, "tools", function_tools(ask));
    ollama(body, ask);
}

pub(in crate::replay) fn ollama_generate(body: &mut Map<String, Value>, ask: &BodySpec<'_>) {
    insert_some(body, "prompt", text(ask));
    ollama(body, ask);
}
