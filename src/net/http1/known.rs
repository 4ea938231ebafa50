//! The fields that a proxy has to know; all others it carries.

/// The fields that a proxy has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Any other field.
    Other,
    /// `Connection`.
    Connection,
    /// `Keep-Alive`.
    KeepAlive,
    /// `Proxy-Connection`.
    ProxyConnection,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Content-Length`.
    ContentLength,
    /// `Content-Type`.
    ContentType,
    /// `Content-Encoding`.
    ContentEncoding,
    /// `Accept-Encoding`.
    AcceptEncoding,
    /// `Host`.
    Host,
    /// `TE`.
    Te,
    /// `Upgrade`.
    Upgrade,
    /// `HTTP2-Settings`.
    Http2Settings,
    /// `Expect`.
    Expect,
    /// `traceparent`.
    Traceparent,
    /// `tracestate`.
    Tracestate,
}

/// Their names, in lower case.
const KNOWN: [(&[u8], Known); 15] = [
    (b"connection", Known::Connection),
    (b"keep-alive", Known::KeepAlive),
    (b"proxy-connection", Known::ProxyConnection),
    (b"transfer-encoding", Known::TransferEncoding),
    (b"content-length", Known::ContentLength),
    (b"content-type", Known::ContentType),
    (b"content-encoding", Known::ContentEncoding),
    (b"accept-encoding", Known::AcceptEncoding),
    (b"host", Known::Host),
    (b"te", Known::Te),
    (b"upgrade", Known::Upgrade),
    (b"http2-settings", Known::Http2Settings),
    (b"expect", Known::Expect),
    (b"traceparent", Known::Traceparent),
    (b"tracestate", Known::Tracestate),
];

impl Known {
    /// The field of that name, whatever its case.
    pub(super) fn of(name: &[u8]) -> Self {
        KNOWN
            .iter()
            .find(|(known, _)| known.len() == name.len() && known.eq_ignore_ascii_case(name))
            .map_or(Self::Other, |(_, known)| *known)
    }
}
