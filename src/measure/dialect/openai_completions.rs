//! `POST …/completions`: one prompt (or several) in, text out.
//!
//! There is no role event: the first event is normally the first token, and `"text":""` in a choice is a token whose
//! text is held back. The choice index runs over prompts and outputs together. A prompt that is echoed comes with the
//! first token, and so do its log probabilities.

use super::openai::{self, Choice, Stream};
use super::{Dialect, OutputKind, Reader, Sink, USUAL};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};
use crate::measure::text::TextFields;

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
    reader: |shape| Box::new(Completions(Stream::with_prompt(shape))),
    reply: openai::REPLY,
    text: Some(&TextFields { choice: "choices[].index", text: &[&["choices[].text"]], whole: &[&["choices[].text"]] }),
    ..USUAL
};

struct Completions(Stream);

impl Reader for Completions {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        self.0.event(event, choice, sink);
    }
}

fn choice<'a>(walk: &mut Walk<'a>) -> Option<Choice<'a>> {
    let mut choice = Choice::default();
    walk.object(|key, walk| match key {
        b"text" => text(&mut choice, walk),
        _ => choice.field(key, walk),
    })?;
    Some(choice)
}

/// Takes what a choice shows as its text.
pub(super) fn text(choice: &mut Choice<'_>, walk: &mut Walk<'_>) -> Option<()> {
    let shown = walk.shown()?;
    choice.evidence = shown != Shown::Null;
    choice.output = match shown {
        Shown::String(_) => Some(OutputKind::Text),
        Shown::Null | Shown::Empty | Shown::Other => None,
    };
    Some(())
}
