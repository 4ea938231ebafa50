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

/// Their names, in lower case, the short ones first.
const KNOWN: [(&[u8], Known); 15] = [
    (b"te", Known::Te),
    (b"host", Known::Host),
    (b"expect", Known::Expect),
    (b"upgrade", Known::Upgrade),
    (b"connection", Known::Connection),
    (b"keep-alive", Known::KeepAlive),
    (b"tracestate", Known::Tracestate),
    (b"traceparent", Known::Traceparent),
    (b"content-type", Known::ContentType),
    (b"content-length", Known::ContentLength),
    (b"http2-settings", Known::Http2Settings),
    (b"accept-encoding", Known::AcceptEncoding),
    (b"content-encoding", Known::ContentEncoding),
    (b"proxy-connection", Known::ProxyConnection),
    (b"transfer-encoding", Known::TransferEncoding),
];

/// Where in the table the names of each length begin, and where the longest end.
const OF_LENGTH: [usize; KNOWN[KNOWN.len() - 1].0.len() + 2] = {
    let mut begins = [0; KNOWN[KNOWN.len() - 1].0.len() + 2];
    let (mut length, mut place) = (0, 0);
    while length < begins.len() {
        while place < KNOWN.len() && KNOWN[place].0.len() < length {
            place += 1;
        }
        begins[length] = place;
        length += 1;
    }
    begins
};

impl Known {
    /// The field of that name, whatever its case.
    pub(super) fn of(name: &[u8]) -> Self {
        let &[begin, end] = OF_LENGTH.get(name.len()..name.len() + 2).and_then(<[_]>::first_chunk).unwrap_or(&[0, 0]);
        let known = KNOWN[begin..end].iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map_or(Self::Other, |(_, known)| *known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_field_is_found_in_any_case_and_no_other() {
        for (name, field) in KNOWN {
            assert_eq!((Known::of(name), Known::of(&name.to_ascii_uppercase())), (field, field));
            assert_eq!(Known::of(&[name, b"x"].concat()), Known::Other);
            assert_eq!(Known::of(&name[1..]), Known::Other);
        }
        for name in [&b""[..], b"x", b"x-a-name-that-is-longer-than-all"] {
            assert_eq!(Known::of(name), Known::Other);
        }
    }
}
