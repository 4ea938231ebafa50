//! `--ask-usage` for one exchange: the request is edited on its way up and the reply on its way down.
//!
//! A server that may not compress sends events that can be edited: the client's `Accept-Encoding` does not go on.
//! The observer reads what the server really sent, so a read that is edited is kept as it came until it is observed.

use crate::config::ProxyConfig;
use crate::measure::dialect::Dialect;
use crate::measure::dialect::inject_usage::{self, InjectUsage};
use crate::measure::dialect::strip_usage::StripUsage;
use crate::net::http1::{Framing, Head, KnownHeader};

/// Servers that know running usage, by their `gen_ai.provider.name`.
const CONTINUOUS_USAGE_PROVIDERS: [&str; 2] = ["vllm", "sglang"];

/// See the module.
pub(super) struct UsageInjection {
    request: InjectUsage,
    reply: Option<StripUsage>,
    /// The last read of the reply, as it came.
    raw: Vec<u8>,
}

impl UsageInjection {
    /// Begins if usage is to be asked for, the dialect has a field for that, and the body can be read.
    pub(super) fn begin(config: &ProxyConfig, dialect: Option<&Dialect>, request: &Head) -> Option<Box<Self>> {
        let knows = dialect.is_some_and(|dialect| dialect.requests(inject_usage::FIELD));
        if !config.ask_usage || !knows || request.get(KnownHeader::ContentEncoding).is_some() {
            return None;
        }
        let continuous =
            config.provider.as_deref().is_some_and(|provider| CONTINUOUS_USAGE_PROVIDERS.contains(&provider));
        Some(Box::new(Self { request: InjectUsage::new(continuous), reply: None, raw: Vec::new() }))
    }

    /// How a request body of this framing goes on: what is added is not known before its end.
    pub(super) fn request_framing(framing: Framing) -> Framing {
        if framing == Framing::Length(0) { framing } else { Framing::Chunked }
    }

    /// A piece of the request body; `send` gets it with what is added.
    pub(super) fn edit_request(&mut self, payload: &[u8], send: impl FnMut(&[u8])) {
        self.request.push(payload, send);
    }

    /// The reply begins. A compressed one, or one of a given length, is left as it is.
    pub(super) fn on_response_head(&mut self, head: &Head) {
        let asked = self.request.injected();
        let events = head.get(KnownHeader::ContentType).is_some_and(|kind| {
            kind.get(..17).is_some_and(|essence| essence.eq_ignore_ascii_case(b"text/event-stream"))
        });
        let editable =
            head.get(KnownHeader::ContentEncoding).is_none() && head.get(KnownHeader::ContentLength).is_none();
        if (asked.usage || asked.continuous) && events && editable {
            self.reply = Some(StripUsage::new(asked));
        }
    }

    /// Leaves of the reply's piece `out[from..]` what the client may see; `last` if the reply ends with it.
    pub(super) fn edit_response(&mut self, out: &mut Vec<u8>, from: usize, last: bool) {
        let Some(hide) = &mut self.reply else { return };
        self.raw.clear();
        self.raw.extend_from_slice(&out[from..]);
        let mut seen = out.split_off(from);
        hide.edit(&mut seen, last);
        out.append(&mut seen);
    }

    /// The last piece of the reply as it came, if it was edited.
    pub(super) fn original(&self) -> Option<&[u8]> {
        self.reply.is_some().then_some(&self.raw[..])
    }
}
