//! `--ask-usage` for one exchange: edits the request on its way up and the response on its way down.
//!
//! Only uncompressed events can be edited, so the client's `Accept-Encoding` is not forwarded. The observer reads what
//! the server sent, so an edited read's original is kept until it is observed.

use crate::config::ProxyConfig;
use crate::measure::dialect::Dialect;
use crate::measure::dialect::inject_usage::{self, InjectUsage};
use crate::measure::dialect::strip_usage::StripUsage;
use crate::net::http1::{Framing, Head, KnownHeader};

/// Servers that support continuous usage, by `gen_ai.provider.name`.
const CONTINUOUS_USAGE_PROVIDERS: [&str; 2] = ["vllm", "sglang"];

/// The editors of one exchange.
pub(super) struct UsageInjection {
    request: InjectUsage,
    reply: Option<StripUsage>,
    /// Original bytes of the response's last read.
    raw: Vec<u8>,
}

impl UsageInjection {
    /// Starts if usage is requested, the dialect has a field for it, and the body is readable.
    pub(super) fn begin(config: &ProxyConfig, dialect: Option<&Dialect>, request: &Head) -> Option<Box<Self>> {
        let knows = dialect.is_some_and(|dialect| dialect.requests(inject_usage::FIELD));
        if !config.ask_usage || !knows || request.get(KnownHeader::ContentEncoding).is_some() {
            return None;
        }
        let continuous =
            config.provider.as_deref().is_some_and(|provider| CONTINUOUS_USAGE_PROVIDERS.contains(&provider));
        Some(Box::new(Self { request: InjectUsage::new(continuous), reply: None, raw: Vec::new() }))
    }

    /// The framing of an edited request body: its final length is unknown in advance.
    pub(super) fn request_framing(framing: Framing) -> Framing {
        if framing == Framing::Length(0) { framing } else { Framing::Chunked }
    }

    /// Edits a piece of the request body; `send` receives the result.
    pub(super) fn edit_request(&mut self, payload: &[u8], send: impl FnMut(&[u8])) {
        self.request.push(payload, send);
    }

    /// Decides on the response's head: a compressed response or one with a fixed length stays unedited.
    pub(super) fn on_response_head(&mut self, head: &Head) {
        let injected = self.request.injected();
        let events = head.get(KnownHeader::ContentType).is_some_and(|kind| {
            kind.get(..17).is_some_and(|essence| essence.eq_ignore_ascii_case(b"text/event-stream"))
        });
        let editable =
            head.get(KnownHeader::ContentEncoding).is_none() && head.get(KnownHeader::ContentLength).is_none();
        if (injected.usage || injected.continuous) && events && editable {
            self.reply = Some(StripUsage::new(injected));
        }
    }

    /// Removes the injected events from `out[from..]`; `last` at the end of the response.
    pub(super) fn edit_response(&mut self, out: &mut Vec<u8>, from: usize, last: bool) {
        let Some(hide) = &mut self.reply else { return };
        self.raw.clear();
        self.raw.extend_from_slice(&out[from..]);
        let mut seen = out.split_off(from);
        hide.edit(&mut seen, last);
        out.append(&mut seen);
    }

    /// The original bytes of the last piece, if it was edited.
    pub(super) fn original(&self) -> Option<&[u8]> {
        self.reply.is_some().then_some(&self.raw[..])
    }
}
