//! `POST …/completions`: one prompt (or several) in, text out.
//!
//! There is no role event: the first event is normally the first token, and `"text":""` in a choice is a token whose
//! text is held back. The choice index runs over prompts and outputs together.

use super::openai::{self, Choice, Stream};
use super::openai_document::Document;
use super::{Dialect, OutputKind, Reader, Sink};
use crate::measure::framing::Event;
use crate::measure::json::{Shown, Walk};
use crate::measure::scan::Scalar;

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai.completions",
    operation: "text_completion",
    route: "/v1/completions",
    matches: |path| {
        let path = path.strip_suffix("/completions").unwrap_or("");
        path.ends_with("/v1") || path.starts_with("/openai/") || path.contains("/openai/") || path.ends_with("/openai")
    },
    reader: |shape| Box::new(Completions { stream: Stream::new(shape), document: Document::default() }),
    request_fields: openai::REQUEST_FIELDS,
    request: openai::request,
    error_body: openai::error_body,
};

struct Completions {
    stream: Stream,
    document: Document,
}

impl Reader for Completions {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        self.stream.event(event, choice, sink);
    }

    fn wants(&self, path: &str) -> bool {
        Document::FIELDS.contains(&path)
    }

    fn scalar(&mut self, path: &str, index: u32, scalar: Scalar<'_>, sink: &mut dyn Sink) {
        self.document.scalar(path, index, scalar, sink);
    }

    fn document_end(&mut self, sink: &mut dyn Sink) {
        self.document.end(sink);
    }
}

fn choice<'a>(walk: &mut Walk<'a>) -> Option<Choice<'a>> {
    let mut choice = Choice::default();
    walk.object(|key, walk| match key {
        b"text" => {
            let shown = walk.shown()?;
            choice.evidence = shown != Shown::Null;
            choice.output = match shown {
                Shown::String(place) => Some((OutputKind::Text, Some(place))),
                Shown::Null | Shown::Empty | Shown::Other => None,
            };
            Some(())
        }
        _ => choice.field(key, walk),
    })?;
    Some(choice)
}
