//! Message heads, parsed in place and kept as received.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::head_error::{HeadError, MAX_FIELDS, malformed};
use super::head_scan::check_line_ends;
use super::known_headers::KnownHeader;

/// Maximum total length of a head's `Connection` values, in bytes. The parser searches them for every field's name.
const MAX_CONNECTION_BYTES: usize = 1_024;

/// HTTP version of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

/// One message head. Its buffers are reused for the next message.
#[derive(Debug, Default)]
pub struct Head {
    bytes: Vec<u8>,
    method: Range<usize>,
    target: Range<usize>,
    status: u16,
    reason: Range<usize>,
    version: HttpVersion,
    fields: Vec<HeaderField>,
}

#[derive(Clone, Debug)]
struct HeaderField {
    name: Range<usize>,
    value: Range<usize>,
    /// End of the field's line, including white space after the value.
    end: usize,
    known: KnownHeader,
    /// The field is hop-by-hop.
    hop: bool,
}

impl Head {
    /// Parses a complete request head, including its empty line.
    ///
    /// # Errors
    /// Returns [`HeadError`] if the head is invalid.
    pub fn parse_request(&mut self, bytes: &[u8]) -> Result<(), HeadError> {
        check_line_ends(bytes)?;
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(bytes, &mut fields) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err(HeadError::Malformed("it ends early")),
            Err(error) => return Err(malformed(error)),
        }
        self.load_parsed(bytes, request.headers);
        self.method = range_in(bytes, request.method.unwrap_or_default().as_bytes());
        self.target = range_in(bytes, request.path.unwrap_or_default().as_bytes());
        self.version = version(request.version);
        self.finish_request()
    }

    /// Parses a complete response head, including its empty line.
    ///
    /// # Errors
    /// Returns [`HeadError`] if the head is invalid.
    pub fn parse_response(&mut self, bytes: &[u8]) -> Result<(), HeadError> {
        check_line_ends(bytes)?;
        let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        match config.parse_response_with_uninit_headers(&mut response, bytes, &mut fields) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err(HeadError::Malformed("it ends early")),
            Err(error) => return Err(malformed(error)),
        }
        self.load_parsed(bytes, response.headers);
        self.status = response.code.unwrap_or_default();
        self.reason = reason(bytes);
        self.version = version(response.version);
        self.mark_hop_by_hop()
    }

    /// Parses the trailer section of a chunked body, including its empty line.
    ///
    /// # Errors
    /// Returns [`HeadError`] if the section is invalid.
    pub fn parse_trailers(bytes: &[u8]) -> Result<Self, HeadError> {
        check_line_ends(bytes)?;
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        match httparse::parse_headers(bytes, &mut fields) {
            Ok(httparse::Status::Complete((_, fields))) => {
                let mut trailers = Self::default();
                trailers.load_parsed(bytes, fields);
                trailers.mark_hop_by_hop()?;
                Ok(trailers)
            }
            Ok(httparse::Status::Partial) => Err(HeadError::Malformed("it ends early")),
            Err(error) => Err(malformed(error)),
        }
    }

    /// Starts a request head that was not received over HTTP/1.
    pub fn compose_request(&mut self, method: &str, target: &str) {
        self.clear();
        self.method = self.append(method.as_bytes());
        self.target = self.append(target.as_bytes());
        self.version = HttpVersion::Http2;
    }

    /// Starts a response head that was not received over HTTP/1.
    pub fn compose_response(&mut self, status: u16) {
        self.clear();
        self.status = status;
        self.version = HttpVersion::Http2;
    }

    /// Adds a field to a composed head.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let name_at = self.append(name);
        self.append(b": ");
        let value = self.append(value);
        self.append(b"\r\n");
        let (known, end) = (KnownHeader::from_name(name), value.end);
        self.fields.push(HeaderField { name: name_at, value, end, known, hop: false });
    }

    /// Completes a composed request head.
    ///
    /// # Errors
    /// Returns [`HeadError::Malformed`] if the request's destination is ambiguous.
    pub fn finish_request(&mut self) -> Result<(), HeadError> {
        self.mark_hop_by_hop()?;
        let mut hosts = self.all(KnownHeader::Host);
        let (host, other, named) = (hosts.next(), hosts.next(), self.authority());
        // No host contains these bytes: parties disagree on whether they end it.
        let odd = |host: &[u8]| host.iter().any(|byte| b" \t,/?#@\\".contains(byte));
        match (host, other) {
            (_, Some(_)) => Err(HeadError::Malformed("several Host fields")),
            (None, _) if self.version == HttpVersion::Http11 => Err(HeadError::Malformed("no Host field")),
            (host, _) if host.or(named).is_some_and(odd) => {
                Err(HeadError::Malformed("a Host that is not one host and port"))
            }
            (Some(host), _) if named.is_some_and(|named| !named.eq_ignore_ascii_case(host)) => {
                Err(HeadError::Malformed("a Host that is not its target's"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the host and port of a target in absolute form.
    pub fn authority(&self) -> Option<&[u8]> {
        let target = Some(&self.bytes[self.target.clone()]).filter(|target| !target.starts_with(b"/"))?;
        let scheme = memchr::memmem::find(target, b"://")?;
        target[scheme + 3..].split(|byte| matches!(byte, b'/' | b'?')).next()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.fields.clear();
        (self.method, self.target, self.reason) = (0..0, 0..0, 0..0);
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn load_parsed(&mut self, bytes: &[u8], parsed: &[httparse::Header<'_>]) {
        self.clear();
        self.bytes.extend_from_slice(bytes);
        self.fields.extend(parsed.iter().map(|field| {
            let name = range_in(bytes, field.name.as_bytes());
            // An empty value need not point into the head; its position is after the colon.
            let value = match range_in(bytes, field.value) {
                value if value.is_empty() => name.end + 1..name.end + 1,
                value => value,
            };
            let blanks = bytes[value.end..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            let (known, end) = (KnownHeader::from_name(field.name.as_bytes()), value.end + blanks);
            HeaderField { name, value, end, known, hop: false }
        }));
    }

    /// Marks hop-by-hop fields: those defined as such and those that `Connection` names. `Connection` cannot name the
    /// fields for routing or framing.
    fn mark_hop_by_hop(&mut self) -> Result<(), HeadError> {
        if self.all(KnownHeader::Connection).map(<[u8]>::len).sum::<usize>() > MAX_CONNECTION_BYTES {
            return Err(HeadError::Malformed("a Connection field of more than 1024 bytes"));
        }
        let bytes = &self.bytes;
        let listed = |name: &[u8], fields: &[HeaderField]| {
            fields
                .iter()
                .filter(|field| field.known == KnownHeader::Connection)
                .any(|field| tokens(&bytes[field.value.clone()]).any(|token| token.eq_ignore_ascii_case(name)))
        };
        let has_connection = self.fields.iter().any(|field| field.known == KnownHeader::Connection);
        for at in 0..self.fields.len() {
            let field = &self.fields[at];
            let hop = match field.known {
                KnownHeader::Connection
                | KnownHeader::KeepAlive
                | KnownHeader::ProxyConnection
                | KnownHeader::TransferEncoding
                | KnownHeader::Te
                | KnownHeader::Upgrade
                | KnownHeader::Http2Settings => true,
                KnownHeader::Host | KnownHeader::ContentLength => false,
                _ => has_connection && listed(&bytes[field.name.clone()], &self.fields),
            };
            self.fields[at].hop = hop;
        }
        Ok(())
    }

    /// Returns the request method.
    pub fn method(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.method.clone()]).unwrap_or_default()
    }

    /// Returns the request target as received.
    pub fn target(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.target.clone()]).unwrap_or_default()
    }

    /// Returns the target's path, without its query and without the authority of an absolute form.
    pub fn path(&self) -> &str {
        let target = self.target();
        let absolute = if target.starts_with('/') { None } else { target.split_once("://") };
        let path = match absolute {
            Some((_, rest)) => {
                rest.find(['/', '?']).map(|at| &rest[at..]).filter(|path| path.starts_with('/')).unwrap_or("/")
            }
            None => target,
        };
        path.split_once('?').map_or(path, |(path, _)| path)
    }

    /// Returns the response status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the HTTP version.
    pub fn version(&self) -> HttpVersion {
        self.version
    }

    /// Returns the first value of a known field.
    pub fn get(&self, known: KnownHeader) -> Option<&[u8]> {
        self.all(known).next()
    }

    /// Returns every value of a known field.
    pub fn all(&self, known: KnownHeader) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().filter(move |field| field.known == known).map(|field| &self.bytes[field.value.clone()])
    }

    /// Returns the first value of the field `name`.
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        let named = |field: &&HeaderField| self.bytes[field.name.clone()].eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().find(named).map(|field| &self.bytes[field.value.clone()])
    }

    /// Iterates over the end-to-end fields: (name, value, known name).
    pub fn end_to_end(&self) -> impl Iterator<Item = (&[u8], &[u8], KnownHeader)> {
        self.fields
            .iter()
            .filter(|field| !field.hop)
            .map(|field| (&self.bytes[field.name.clone()], &self.bytes[field.value.clone()], field.known))
    }

    /// Returns `true` if a comma-separated field contains `token`.
    pub fn has_token(&self, known: KnownHeader, token: &str) -> bool {
        self.all(known).flat_map(tokens).any(|listed| listed.eq_ignore_ascii_case(token.as_bytes()))
    }

    /// Returns `true` if the sender accepts another message on this connection.
    pub fn keeps_alive(&self) -> bool {
        match self.version {
            HttpVersion::Http10 => self.has_token(KnownHeader::Connection, "keep-alive"),
            _ => !self.has_token(KnownHeader::Connection, "close"),
        }
    }

    /// Returns the requested protocol, except `h2c`, because that upgrade would hide requests from the proxy.
    pub fn upgrade(&self) -> Option<&[u8]> {
        let first = self.get(KnownHeader::Upgrade)?;
        let is_requested = self.has_token(KnownHeader::Connection, "upgrade") && self.version == HttpVersion::Http11;
        // A server may choose any protocol from any of these fields (RFC 9110, section 7.8).
        let mut protocols =
            self.all(KnownHeader::Upgrade).flat_map(tokens).filter_map(|one| one.split(|b| *b == b'/').next());
        let is_h2c = protocols.any(|name| name.trim_ascii().eq_ignore_ascii_case(b"h2c"));
        (is_requested && !is_h2c).then_some(first)
    }

    /// Writes `METHOD target HTTP/1.1`.
    pub fn write_request_line(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.method.clone()]);
        out.push(b' ');
        out.extend_from_slice(&self.bytes[self.target.clone()]);
        out.extend_from_slice(b" HTTP/1.1\r\n");
    }

    /// Writes `HTTP/1.1 status reason` with the received reason.
    pub fn write_status_line(&self, out: &mut Vec<u8>) {
        let digit = |value: u16| b'0' + (value % 10) as u8;
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&[digit(self.status / 100), digit(self.status / 10), digit(self.status), b' ']);
        let reason = &self.bytes[self.reason.clone()];
        match reason {
            [] if self.version == HttpVersion::Http2 => {
                let status = http::StatusCode::from_u16(self.status);
                let reason = status.ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
                out.extend_from_slice(reason.as_bytes());
            }
            reason => out.extend_from_slice(reason),
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Writes the fields that `keep` selects. Each line keeps its case, order and white space.
    pub fn write_fields(&self, out: &mut Vec<u8>, keep: impl Fn(KnownHeader, bool) -> bool) {
        for field in self.fields.iter().filter(|field| keep(field.known, field.hop)) {
            out.extend_from_slice(&self.bytes[field.name.start..field.end]);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Clears the head and releases the memory of an unusually large one.
    pub fn shrink(&mut self) {
        self.clear();
        self.bytes.shrink_to(2 * 1024);
        self.fields.shrink_to(32);
    }
}

/// Splits a field value at its commas.
fn tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn version(minor: Option<u8>) -> HttpVersion {
    if minor == Some(0) { HttpVersion::Http10 } else { HttpVersion::Http11 }
}

/// Finds the reason in a valid response head. httparse reports a non-ASCII reason as empty.
fn reason(bytes: &[u8]) -> Range<usize> {
    let start = bytes.iter().position(u8::is_ascii_graphic).unwrap_or_default();
    let end = memchr::memchr(b'\r', &bytes[start..]).map_or(bytes.len(), |end| start + end);
    (start + "HTTP/1.1 200 ".len()).min(end)..end
}

/// Returns the position of `part`, a slice of `whole`.
fn range_in(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    if part.is_empty() || start + part.len() > whole.len() { 0..0 } else { start..start + part.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::http1::Framing;

    fn request(text: &str) -> Result<Head, HeadError> {
        let mut head = Head::default();
        head.parse_request(text.as_bytes()).map(|()| head)
    }

    #[test]
    fn a_head_passes_on_its_fields_as_they_came() {
        let head = request(
            "POST /v1/x?a=b HTTP/1.1\r\nhOsT: a\r\nX-B:  1\r\nx-a:2 \r\nConnection: close, X-Hop\r\nx-hop: 3\r\nX-C: \r\nX-D:\r\nX-B: 4\r\n\r\n",
        )
        .unwrap();
        let mut out = Vec::new();
        head.write_request_line(&mut out);
        head.write_fields(&mut out, |_, hop| !hop);
        let expected = "POST /v1/x?a=b HTTP/1.1\r\nhOsT: a\r\nX-B:  1\r\nx-a:2 \r\nX-C: \r\nX-D:\r\nX-B: 4\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!((head.method(), head.path(), head.keeps_alive()), ("POST", "/v1/x", false));
        assert_eq!(
            (head.value("x-a"), head.value("x-c"), head.value("x-d")),
            (Some(&b"2"[..]), Some(&b""[..]), Some(&b""[..]))
        );
    }

    #[test]
    fn what_two_parties_could_read_differently_is_refused() {
        for bad in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: 1\rY: 2\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: 1\n\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX : 1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET http://b?/a HTTP/1.0\r\nHost: b?\r\n\r\n",
            "GET http://a:8\\0/ HTTP/1.0\r\n\r\n",
            "GET http://a@b/ HTTP/1.0\r\n\r\n",
            "GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "G\x7fT / HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert!(matches!(request(bad), Err(HeadError::Malformed(_))), "{bad:?}");
        }
        let many = "X: 1\r\n".repeat(MAX_FIELDS);
        assert_eq!(request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n")).unwrap_err(), HeadError::TooLarge);
        let connection =
            |names: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", "a,".repeat(names));
        assert!(request(&connection(512)).is_ok() && request(&connection(513)).is_err());
    }

    #[test]
    fn connection_cannot_name_away_where_a_message_goes_or_ends() {
        let head =
            request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: host, content-length\r\n\r\n");
        let fields: Vec<_> = head.unwrap().end_to_end().map(|(_, _, known)| known).collect();
        assert_eq!(fields, [KnownHeader::Host, KnownHeader::ContentLength]);
    }

    #[test]
    fn a_response_keeps_its_reason_and_is_framed_by_its_request() {
        let mut head = Head::default();
        head.parse_response(b"HTTP/1.1 299 Odd but fine\r\nX: 1\r\n\r\n").unwrap();
        let mut out = Vec::new();
        head.write_status_line(&mut out);
        assert_eq!(out, b"HTTP/1.1 299 Odd but fine\r\n");
        for (line, written) in [
            (&b"HTTP/1.1 200 d\xe9j\xc3\xa0 vu"[..], &b"HTTP/1.1 200 d\xe9j\xc3\xa0 vu\r\n"[..]),
            (b"\r\nHTTP/1.0 200 OK", b"HTTP/1.1 200 OK\r\n"),
            (b"HTTP/1.1 200", b"HTTP/1.1 200 \r\n"),
        ] {
            head.parse_response(&[line, b"\r\n\r\n"].concat()).unwrap();
            out.clear();
            head.write_status_line(&mut out);
            assert_eq!(out, written);
        }
        head.parse_response(b"HTTP/1.1 299 Odd but fine\r\nX: 1\r\n\r\n").unwrap();
        assert_eq!(head.response_framing(false), Ok(Framing::UntilClose));
        assert_eq!(head.response_framing(true), Ok(Framing::Length(0)));
        head.parse_response(b"HTTP/1.1 204\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        assert_eq!(head.response_framing(false), Ok(Framing::Length(0)));
    }

    #[test]
    fn the_path_is_found_in_every_form_of_target() {
        for (target, path) in [
            ("/a/b?c=/d", "/a/b"),
            ("http://h:1/a?x", "/a"),
            ("http://h", "/"),
            ("http://h?/x", "/"),
            ("*", "*"),
            ("/a://b", "/a://b"),
        ] {
            let host = if target.starts_with("http://h:1") { "H:1" } else { "h" };
            let head = request(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
            assert_eq!(head.path(), path);
        }
    }
}
