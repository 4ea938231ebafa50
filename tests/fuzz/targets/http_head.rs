//! HTTP/1 heads: what is accepted is written on as it came, reads back the same, and cannot be read in two ways.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::net::http1::head::HttpVersion;
use streamgauge_fuzz::net::http1::head_error::MAX_FIELDS;
use streamgauge_fuzz::net::http1::head_scan::end_of_head;
use streamgauge_fuzz::net::http1::{Framing, Head, KnownHeader};

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = end_of_head(bytes, 0) else { return };
    // However much has been searched before, the end is where it is.
    for searched in 0..end {
        assert_eq!(end_of_head(bytes, searched.min(end - 1)), Some(end));
    }
    // Empty lines before a message are no part of it.
    let mut bytes = &bytes[..end];
    while let Some(rest) = bytes.strip_prefix(b"\r\n") {
        bytes = rest;
    }
    let mut head = Head::default();
    if head.parse_request(bytes).is_ok() {
        request(&head, bytes);
    }
    if head.parse_response(bytes).is_ok() {
        response(&head, bytes);
    }
    if let Some(at) = bytes.windows(2).position(|two| two == b"\r\n")
        && let Ok(trailers) = Head::parse_trailers(&bytes[at + 2..])
    {
        assert_eq!(fields_of(&trailers), bytes[at + 2..]);
    }
});

fn request(head: &Head, bytes: &[u8]) {
    let mut written = Vec::new();
    head.write_request_line(&mut written);
    let line = written.len();
    written.extend(fields_of(head));
    assert_eq!(&written[line..], after_first_line(bytes), "every line goes on as it came");
    if head.get(KnownHeader::Host).is_none() {
        // A client of HTTP/1.0 need not send `Host`; the forwarded HTTP/1.1 request has one.
        let host = [b"Host: ", head.authority().unwrap_or(b"a"), b"\r\n"].concat();
        written.splice(line..line, host);
    }
    let mut again = Head::default();
    again.parse_request(&written).expect("what was written can be read");
    assert_eq!((again.method(), again.target(), again.path()), (head.method(), head.target(), head.path()));
    assert!(again.end_to_end().eq(head.end_to_end()) || head.get(KnownHeader::Host).is_none());
    // The version written is our own.
    if head.version() == HttpVersion::Http11 {
        assert_eq!(again.request_framing(), head.request_framing());
        assert_eq!((again.keeps_alive(), again.upgrade()), (head.keeps_alive(), head.upgrade()));
    }
    unambiguous(head, bytes, head.request_framing().ok());
    assert!(naive(bytes, "host").len() <= 1);
    assert!(!head.method().is_empty() && !head.target().is_empty());
}

fn response(head: &Head, bytes: &[u8]) {
    let mut written = Vec::new();
    head.write_status_line(&mut written);
    let line = written.len();
    written.extend(fields_of(head));
    assert_eq!(&written[line..], after_first_line(bytes), "every line goes on as it came");
    let mut again = Head::default();
    again.parse_response(&written).expect("what was written can be read");
    assert_eq!(again.status(), head.status());
    assert!(again.end_to_end().eq(head.end_to_end()));
    for to_head in [false, true] {
        assert_eq!(again.response_framing(to_head), head.response_framing(to_head));
    }
    unambiguous(head, bytes, head.response_framing(false).ok());
}

fn fields_of(head: &Head) -> Vec<u8> {
    let mut written = Vec::new();
    head.write_fields(&mut written, |_, _| true);
    written.extend_from_slice(b"\r\n");
    written
}

fn after_first_line(bytes: &[u8]) -> &[u8] {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a head has lines");
    &bytes[end + 2..]
}

/// Holds for everybody who reads these bytes, however lazily.
fn unambiguous(head: &Head, bytes: &[u8], framing: Option<Framing>) {
    let text = &bytes[..bytes.len() - 4];
    assert!(!bytes.contains(&0));
    let bare = text.iter().zip(text.iter().skip(1)).any(|(a, b)| (*a == b'\r') != (*b == b'\n'));
    assert!(!bare, "every CR has its LF and the reverse");
    assert!(text.windows(3).all(|three| !matches!(three, b"\n \0" | [b'\n', b' ' | b'\t', _])), "no line is folded");
    let (lengths, codings) = (naive(bytes, "content-length"), naive(bytes, "transfer-encoding"));
    if framing.is_some() {
        assert!(lengths.len() + codings.len() <= 1);
    }
    if let Some(Framing::Length(length)) = framing.filter(|_| !lengths.is_empty()) {
        // A status without a body has none, whatever its length.
        assert!(length == 0 || lengths[0].parse() == Ok(length));
    }
    assert!(head.end_to_end().count() <= MAX_FIELDS);
    for (name, value, known) in head.end_to_end() {
        assert!(!matches!(
            known,
            KnownHeader::Connection | KnownHeader::TransferEncoding | KnownHeader::Te | KnownHeader::Upgrade
        ));
        assert!(!name.is_empty() && name.iter().all(u8::is_ascii_graphic) && !name.contains(&b':'));
        assert_eq!(value, value.trim_ascii());
    }
}

/// The values of a field, by a parser that only knows lines and colons.
fn naive(bytes: &[u8], name: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let fields = text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).collect()
}
