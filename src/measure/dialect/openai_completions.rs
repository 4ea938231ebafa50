//! `POST …/completions`: one or several prompts in, text out.
//!
//! There is no role event: the first event is normally the first token. `"text":""` in a choice is a token whose text
//! is held back. The choice index runs over prompts and outputs together. An echoed prompt and its log probabilities
//! arrive with the first token.

use super::openai::{self, OpenAiChoice, OpenAiStream};
use super::{DeltaSink, Dialect, DialectReader, OutputKind, USUAL};
use crate::measure::framing::Event;
use crate::measure::json_walker::{FieldState, JsonWalker};
use crate::measure::text_collector::TextFields;

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.completions",
    operation: "text_completion",
    route: "/v1/completions",
    matches: |path| {
        let before = path.strip_suffix("/completions");
        before.is_some_and(|path| path.ends_with("/v1") || path.ends_with("/openai") || path.contains("/openai/"))
    },
    path: openai::path,
    request: openai::REQUEST,
    reader: |shape| Box::new(CompletionsReader(OpenAiStream::with_prompt(shape))),
    reply: openai::REPLY,
    text: Some(&TextFields { choice: "choices[].index", text: &[&["choices[].text"]], whole: &[&["choices[].text"]] }),
    ..USUAL
};

struct CompletionsReader(OpenAiStream);

impl DialectReader for CompletionsReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        self.0.event(event, choice, sink);
    }

    fn recognize(&mut self, bytes: &[u8]) -> Option<usize> {
        self.0.recognize(bytes)
    }
}

fn choice<'a>(walk: &mut JsonWalker<'a>) -> Option<OpenAiChoice<'a>> {
    let mut choice = OpenAiChoice::default();
    walk.object(|key, walk| match key {
        b"text" => text(&mut choice, walk),
        _ => choice.field(key, walk),
    })?;
    Some(choice)
}

/// Takes the `text` of a choice.
pub(super) fn text(choice: &mut OpenAiChoice<'_>, walk: &mut JsonWalker<'_>) -> Option<()> {
    let shown = walk.shown()?;
    choice.evidence = shown != FieldState::Null;
    choice.output = match shown {
        FieldState::String(_) => Some(OutputKind::Text),
        FieldState::Null | FieldState::Empty | FieldState::Other => None,
    };
    Some(())
}
