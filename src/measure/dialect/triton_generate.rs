//! Triton's `/v2/models/M/generate_stream` and `/generate`; the model is in the path.
//!
//! The vLLM backend sends `text_output` increments, as a list if there are several answers. It adds `finish_reason`
//! and counts on request. Other backends may send anything; each event with text counts as an event of unknown token
//! count. Only the end of the body marks the end.

use super::document_reply::sum;
use super::fault::ErrorObject;
use super::skeleton::Skeleton;
use super::{
    ChoiceCounters, Delta, DeltaSink, Dialect, DialectReader, OutputKind, ReplyField, RequestField, TokenIncrement,
    USUAL, count, finish_reason, segment_of,
};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::usage::{FinishReason, Usage};

pub(super) const DIALECT: Dialect = Dialect {
    name: "triton.generate",
    route: "/v2/models/{model}/generate_stream",
    matches: |path| path.contains("/v2/models/") && (path.ends_with("/generate_stream") || path.ends_with("/generate")),
    path: |shape, path| {
        shape.model = segment_of(path, "/v2/models/", '/');
        shape.stream = Some(path.ends_with("/generate_stream"));
    },
    request: REQUEST,
    prompt: &["text_input"],
    reader: |_| Box::new(TritonGenerateReader::default()),
    reply: REPLY,
    ends_with_body: true,
    error_body: |_, message| serde_json::json!({"error": message}).to_string(),
    ..USUAL
};

/// The `stream` parameter is for the backend; the path decides whether the server streams.
const REQUEST: &[(&str, RequestField)] = &[
    ("parameters.max_tokens", RequestField::MaxTokens),
    ("max_tokens", RequestField::MaxTokensElse),
    ("parameters.n", RequestField::Choices),
    ("parameters.temperature", RequestField::Temperature),
    ("parameters.top_p", RequestField::TopP),
    ("parameters.seed", RequestField::Seed),
    ("parameters.top_k", RequestField::TopK),
];

const REPLY: &[(&str, ReplyField)] = &[
    ("model_name", ReplyField::Model),
    ("finish_reason", ReplyField::Finish),
    ("finish_reason[]", ReplyField::Finish),
    ("num_input_tokens", ReplyField::Input),
    ("num_output_tokens", ReplyField::Output),
    ("num_output_tokens[]", ReplyField::Output),
    ("error", ReplyField::Error),
];

/// Maps a finish reason of the backend. The vLLM backend writes a missing reason as Python's `None`.
pub(super) fn finished(raw: &str) -> Option<FinishReason> {
    finish_reason(raw).filter(|_| raw != "None")
}

#[derive(Default)]
struct TritonGenerateReader {
    generated: ChoiceCounters,
    skeleton: Skeleton<()>,
    identified: bool,
}

impl TritonGenerateReader {
    /// Reads an event and reports its deltas, output last; `None` if it is not JSON.
    fn read(&mut self, data: &[u8], sink: &mut dyn DeltaSink) -> Option<()> {
        // Validates the whole event first, so that trailing garbage cannot cause a partial report.
        let mut whole = JsonWalker::new(data)?;
        whole.skip()?;
        whole.end()?;
        let mut walk = self.skeleton.walk(data)?;
        let (mut alone, mut only_text) = (false, true);
        let (mut model, mut fault, mut tokens) = (None, None, None);
        let (mut shows, mut held_back) = (false, false);
        let Self { generated, identified, .. } = self;
        walk.object(|key, walk| {
            match key {
                b"model_name" => model = walk.text()?,
                b"error" => fault = ErrorObject::read(walk)?,
                b"num_output_tokens" => each(walk, |choice, walk| {
                    let grown = count(walk)?;
                    tokens = sum(tokens, grown);
                    let total = generated.get(choice).saturating_add(grown.unwrap_or(0));
                    generated.set(choice, total);
                    sink.delta(choice, Delta::Total(total));
                    only_text = false;
                    Some(())
                })?,
                b"num_input_tokens" => each(walk, |_, walk| {
                    if let Some(input) = count(walk)?.filter(|input| *input > 0) {
                        sink.delta(0, Delta::Usage(Usage { input: Some(input), ..Usage::default() }));
                    }
                    only_text = false;
                    Some(())
                })?,
                b"finish_reason" => each(walk, |choice, walk| {
                    if let Some(raw) = walk.text()?
                        && let Some(reason) = finished(raw)
                    {
                        sink.delta(choice, Delta::Finish(reason, raw));
                    }
                    only_text = false;
                    Some(())
                })?,
                b"text_output" => each(walk, |choice, walk| {
                    held_back = true;
                    if let FieldState::String(_) = walk.shown()? {
                        alone = choice == 0 && !shows;
                        shows = true;
                        sink.delta(choice, Delta::Output { kind: OutputKind::Text, tokens: None });
                    }
                    Some(())
                })?,
                _ => walk.skip()?,
            }
            Some(())
        })?;
        if let Some(model) = model
            && !std::mem::replace(identified, true)
        {
            sink.delta(0, Delta::Model(model));
        }
        if let Some(fault) = fault {
            fault.emit(sink);
        }
        let counted = tokens.map(TokenIncrement::growth);
        match counted {
            Some(TokenIncrement { tokens: 1.., .. }) => sink.delta(0, Delta::Evidence { tokens: counted }),
            Some(_) => sink.delta(0, Delta::NoToken),
            // Empty text beside an error is not a token.
            None if held_back && !shows && fault.is_none() => sink.delta(0, Delta::Evidence { tokens: None }),
            None => {}
        }
        let is_steady = alone && only_text && fault.is_none();
        self.skeleton.parsed(data, walk, is_steady.then_some(()));
        Some(())
    }
}

/// Takes a value, or each entry of a list with one entry per choice.
fn each<'a>(walk: &mut JsonWalker<'a>, mut take: impl FnMut(u32, &mut JsonWalker<'a>) -> Option<()>) -> Option<()> {
    if !walk.is_array() {
        return take(0, walk);
    }
    let mut choice = 0;
    walk.array(|walk| {
        take(choice, walk)?;
        choice += 1;
        Some(())
    })
}

impl DialectReader for TritonGenerateReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        if self.skeleton.meaning_of(event, |(), _, _| ()).is_some() {
            return sink.delta(0, Delta::Output { kind: OutputKind::Text, tokens: None });
        }
        if event.data.trim_ascii() == b"[DONE]" {
            return sink.delta(0, Delta::Done);
        }
        if self.read(event.data, sink).is_none() {
            sink.delta(0, Delta::Malformed);
        }
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.skeleton.recognize(bytes, |(), _, _| ())
    }
}
