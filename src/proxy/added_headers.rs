//! Headers that the proxy adds to a request: none unless configured.

use std::net::SocketAddr;

use crate::config::ProxyConfig;
use crate::export::trace_context::RequestTrace;
use crate::net::http1::{Head, KnownHeader};
use crate::net::io::MaybeTlsStream;

/// The client's scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(super) fn from_io(io: &MaybeTlsStream) -> Self {
        match io {
            MaybeTlsStream::Plain(_) => Self::Http,
            MaybeTlsStream::Tls(_) => Self::Https,
        }
    }
}

/// Which of the client's trace fields are forwarded. The proxy's own are among the added fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TraceFields {
    pub(super) parent: bool,
    pub(super) state: bool,
}

impl TraceFields {
    /// True if the client's field is forwarded.
    pub(super) fn forwards(self, known: KnownHeader) -> bool {
        match known {
            KnownHeader::Traceparent => self.parent,
            KnownHeader::Tracestate => self.state,
            _ => true,
        }
    }
}

/// Headers added to one request.
#[derive(Debug, Default)]
pub(super) struct AddedHeaders {
    fields: Vec<(&'static str, String)>,
    trace: TraceFields,
}

impl AddedHeaders {
    pub(super) fn new(
        config: &ProxyConfig,
        request: &Head,
        peer: impl FnOnce() -> Option<SocketAddr>,
        scheme: Scheme,
        trace: Option<&RequestTrace>,
    ) -> Self {
        let mut fields = Vec::new();
        if config.headers.via {
            fields.push(("Via", "1.1 streamgauge".to_owned()));
        }
        if config.headers.forwarded {
            if let Some(peer) = peer() {
                fields.push(("X-Forwarded-For", peer.ip().to_string()));
            }
            let proto = if scheme == Scheme::Https { "https" } else { "http" };
            fields.push(("X-Forwarded-Proto", proto.to_owned()));
            if let Some(host) = request.get(KnownHeader::Host).and_then(|host| std::str::from_utf8(host).ok()) {
                fields.push(("X-Forwarded-Host", host.to_owned()));
            }
        }
        // With tracing off the client's fields pass unchanged. With tracing on the proxy's `traceparent` replaces the
        // client's, and `tracestate` passes only within its own trace.
        let trace = match trace {
            None => TraceFields { parent: true, state: true },
            Some(trace) => {
                fields.push(("traceparent", trace.upstream().to_header()));
                TraceFields { parent: false, state: trace.parent.is_some() }
            }
        };
        Self { fields, trace }
    }

    pub(super) fn fields(&self) -> &[(&'static str, String)] {
        &self.fields
    }

    /// Which of the client's trace fields are forwarded.
    pub(super) fn trace(&self) -> TraceFields {
        self.trace
    }
}
