//! Header fields that the proxy interprets. It forwards all others.

/// A header field that the proxy interprets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownHeader {
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

/// Names in lower case, ordered by length.
const KNOWN_HEADERS: [(&[u8], KnownHeader); 15] = [
    (b"te", KnownHeader::Te),
    (b"host", KnownHeader::Host),
    (b"expect", KnownHeader::Expect),
    (b"upgrade", KnownHeader::Upgrade),
    (b"connection", KnownHeader::Connection),
    (b"keep-alive", KnownHeader::KeepAlive),
    (b"tracestate", KnownHeader::Tracestate),
    (b"traceparent", KnownHeader::Traceparent),
    (b"content-type", KnownHeader::ContentType),
    (b"content-length", KnownHeader::ContentLength),
    (b"http2-settings", KnownHeader::Http2Settings),
    (b"accept-encoding", KnownHeader::AcceptEncoding),
    (b"content-encoding", KnownHeader::ContentEncoding),
    (b"proxy-connection", KnownHeader::ProxyConnection),
    (b"transfer-encoding", KnownHeader::TransferEncoding),
];

/// Start of each name length in the table, followed by the end of the last one.
const LENGTH_INDEX: [usize; KNOWN_HEADERS[KNOWN_HEADERS.len() - 1].0.len() + 2] = {
    let mut begins = [0; KNOWN_HEADERS[KNOWN_HEADERS.len() - 1].0.len() + 2];
    let (mut length, mut place) = (0, 0);
    while length < begins.len() {
        while place < KNOWN_HEADERS.len() && KNOWN_HEADERS[place].0.len() < length {
            place += 1;
        }
        begins[length] = place;
        length += 1;
    }
    begins
};

impl KnownHeader {
    /// Finds a field by its case-insensitive name.
    pub(super) fn from_name(name: &[u8]) -> Self {
        let &[begin, end] =
            LENGTH_INDEX.get(name.len()..name.len() + 2).and_then(<[_]>::first_chunk).unwrap_or(&[0, 0]);
        let known = KNOWN_HEADERS[begin..end].iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map_or(Self::Other, |(_, known)| *known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_field_is_found_in_any_case_and_no_other() {
        for (name, field) in KNOWN_HEADERS {
            assert_eq!(
                (KnownHeader::from_name(name), KnownHeader::from_name(&name.to_ascii_uppercase())),
                (field, field)
            );
            assert_eq!(KnownHeader::from_name(&[name, b"x"].concat()), KnownHeader::Other);
            assert_eq!(KnownHeader::from_name(&name[1..]), KnownHeader::Other);
        }
        for name in [&b""[..], b"x", b"x-a-name-that-is-longer-than-all"] {
            assert_eq!(KnownHeader::from_name(name), KnownHeader::Other);
        }
    }
}
