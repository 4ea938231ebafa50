//! A response as it was recorded, with the time of every read.
//!
//! One line of JSON per read: `t`, the seconds since the request was sent, and `b`, the bytes as a string. Each of its
//! characters is the byte of that code (Latin-1). The bytes may be those of the connection, which begin with the
//! HTTP/1.1 head and may be chunked, or those of the body alone.

use anyhow::{Context as _, anyhow, ensure};

use crate::measure::record::Ending;
use crate::measure::time::Stamp;
use crate::net::http1::head_scan::end_of_head;
use crate::net::http1::{BodyDecoder, Head, KnownHeader, head_error};

/// A recorded response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedResponse {
    /// The status; 200 where no head was recorded.
    pub status: u16,
    /// `Content-Type` and `Content-Encoding`, where a head was recorded that has them.
    pub content_type: Option<String>,
    /// See [`content_type`](Self::content_type).
    pub content_encoding: Option<String>,
    /// When the head was whole; the first read where none was recorded.
    pub head: Stamp,
    /// The body, read by read.
    pub reads: Vec<(Stamp, Vec<u8>)>,
    /// The last read.
    pub ended: Stamp,
    /// How the body ended.
    pub ending: Ending,
}

#[derive(serde::Deserialize)]
struct RecordedRead {
    t: f64,
    b: String,
}

/// Highest time of a line, in seconds: a year.
const MAX_TIME_SECONDS: f64 = 31_557_600.0;
/// First bytes of an HTTP/1 connection.
const HTTP1_PREFIX: &[u8] = b"HTTP/1.";
/// A line, for those who have none.
const EXAMPLE: &str = r#"{"t": 0.25, "b": "data: …"}"#;

impl Default for RecordedResponse {
    fn default() -> Self {
        Self::from_body(Vec::new())
    }
}

impl RecordedResponse {
    /// Reads the lines of a recording.
    ///
    /// # Errors
    /// A line that is not one, times that go back, and bytes that do not follow their HTTP framing.
    pub fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let mut reads: Vec<(Stamp, Vec<u8>)> = Vec::new();
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u64..) {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let (at, bytes) = parse_line(line).with_context(|| format!("line {number}"))?;
            if let Some((before, _)) = reads.last() {
                ensure!(at >= *before, "line {number}: its time is before that of the line above");
            }
            reads.push((at, bytes));
        }
        ensure!(!reads.is_empty(), "it has no line; each read is a line such as {EXAMPLE}");
        let begin: Vec<u8> = reads.iter().flat_map(|(_, read)| read).take(HTTP1_PREFIX.len()).copied().collect();
        if begin == HTTP1_PREFIX { Self::from_connection(&reads) } else { Ok(Self::from_body(reads)) }
    }

    fn from_body(reads: Vec<(Stamp, Vec<u8>)>) -> Self {
        let at = |read: Option<&(Stamp, Vec<u8>)>| read.map_or(Stamp::default(), |(at, _)| *at);
        Self {
            status: 200,
            content_type: None,
            content_encoding: None,
            head: at(reads.first()),
            ended: at(reads.last()),
            reads,
            ending: Ending::Complete,
        }
    }

    fn from_connection(reads: &[(Stamp, Vec<u8>)]) -> anyhow::Result<Self> {
        let (mut bytes, mut head) = (Vec::new(), Head::default());
        let mut reads = reads.iter();
        let head_at = loop {
            let (at, read) = reads.next().context("it ends within the HTTP head")?;
            bytes.extend_from_slice(read);
            // Interim responses come before the one that counts.
            while let Some(end) = end_of_head(&bytes, 0) {
                head.parse_response(&bytes[..end])?;
                bytes.drain(..end);
                if !matches!(head.status(), 100..=199) {
                    break;
                }
            }
            if head.status() >= 200 {
                break *at;
            }
            ensure!(bytes.len() <= head_error::MAX_HEAD, "its HTTP head is larger than {} bytes", head_error::MAX_HEAD);
        };
        let mut body = BodyDecoder::new(head.response_framing(false)?);
        let (mut decoded, mut ended) = (Vec::new(), head_at);
        for (at, read) in std::iter::once((head_at, &bytes)).chain(reads.map(|(at, read)| (*at, read))) {
            let mut plain = Vec::new();
            body.decode(read, |payload| plain.extend_from_slice(payload))?;
            if !plain.is_empty() {
                decoded.push((at, plain));
            }
            ended = at;
        }
        let whole = body.is_done() || body.ends_with_close();
        let field = |known| head.get(known).map(|value| String::from_utf8_lossy(value).into_owned());
        Ok(Self {
            status: head.status(),
            content_type: field(KnownHeader::ContentType),
            content_encoding: field(KnownHeader::ContentEncoding),
            head: head_at,
            reads: decoded,
            ended,
            ending: if whole { Ending::Complete } else { Ending::UpstreamFailed },
        })
    }
}

/// The time and the bytes of one line.
fn parse_line(line: &[u8]) -> anyhow::Result<(Stamp, Vec<u8>)> {
    // Serde's message may quote the line, so it is not shown.
    let line: RecordedRead = serde_json::from_slice(line)
        .map_err(|error| anyhow!("not a read with its time, at column {}; expected {EXAMPLE}", error.column()))?;
    ensure!((0.0..=MAX_TIME_SECONDS).contains(&line.t), "`t` is not a number of seconds from 0 to {MAX_TIME_SECONDS}");
    let byte = |c: char| u8::try_from(c).ok();
    let bytes: Option<Vec<u8>> = line.b.chars().map(byte).collect();
    let bytes = bytes.context("`b` has a character above U+00FF; each of its characters is one byte (Latin-1)")?;
    // A cast saturates, and the bound above keeps it exact to the nanosecond.
    Ok((Stamp::from_nanos((line.t * 1e9).round() as u64), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(reads: &[(f64, &str)]) -> Vec<u8> {
        let line = |(t, b): &(f64, &str)| serde_json::json!({"t": t, "b": b}).to_string() + "\n";
        reads.iter().map(line).collect::<String>().into_bytes()
    }

    fn at(millis: u64) -> Stamp {
        Stamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_body_alone_has_the_time_of_each_read() {
        let text = lines(&[(0.25, "data: \u{c3}\u{a9}\n"), (0.25, ""), (1.5, "\n")]);
        let recording = RecordedResponse::parse(&text).unwrap();
        assert_eq!((recording.status, recording.head, recording.ended), (200, at(250), at(1500)));
        let reads = [(at(250), "data: é\n".into()), (at(250), vec![]), (at(1500), b"\n".to_vec())];
        assert_eq!(recording.reads, reads);
        assert_eq!((recording.content_type, recording.ending), (None, Ending::Complete));
    }

    #[test]
    fn a_connection_is_undone_wherever_its_reads_are_cut() {
        let bytes = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Type: text/event-stream\r\n\
                     Content-Encoding: br\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        let whole = RecordedResponse::parse(&lines(&[(0.5, bytes)])).unwrap();
        assert_eq!(whole.reads, [(at(500), b"abcde".to_vec())]);
        assert_eq!((whole.status, whole.content_type.as_deref()), (201, Some("text/event-stream")));
        assert_eq!((whole.content_encoding.as_deref(), whole.ending), (Some("br"), Ending::Complete));
        for cut in 0..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let recording = RecordedResponse::parse(&lines(&[(0.5, first), (0.75, second)])).unwrap();
            assert_eq!(recording.reads.iter().flat_map(|(_, read)| read.clone()).collect::<Vec<_>>(), b"abcde");
            assert_eq!((recording.ended, recording.ending), (at(750), Ending::Complete));
        }
    }

    #[test]
    fn a_connection_that_stops_before_the_body_does_was_cut() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let recording = RecordedResponse::parse(&lines(&[(0.1, head), (0.2, "3\r\nab")])).unwrap();
        assert_eq!(recording.reads, [(at(200), b"ab".to_vec())]);
        assert_eq!(recording.ending, Ending::UpstreamFailed);
        let until_close = RecordedResponse::parse(&lines(&[(0.1, "HTTP/1.0 200 OK\r\n\r\nab")])).unwrap();
        assert_eq!(until_close.ending, Ending::Complete);
    }

    #[test]
    fn what_is_not_a_recording_is_named_by_its_line() {
        let message = |text: &[u8]| format!("{:#}", RecordedResponse::parse(text).unwrap_err());
        let line = r#"{"t": 0.25, "b": "data: …"}"#;
        assert_eq!(message(b"\n"), format!("it has no line; each read is a line such as {line}"));
        assert_eq!(
            message(b"{\"t\":1,\"b\":\"\"}\n\ndata: secret\n"),
            format!("line 3: not a read with its time, at column 1; expected {line}")
        );
        assert_eq!(message(b"{\"t\":-1,\"b\":\"\"}"), "line 1: `t` is not a number of seconds from 0 to 31557600");
        assert_eq!(message(&lines(&[(2.0, ""), (1.0, "")])), "line 2: its time is before that of the line above");
        assert_eq!(
            message(&lines(&[(0.0, "漢")])),
            "line 1: `b` has a character above U+00FF; each of its characters is one byte (Latin-1)"
        );
        assert_eq!(message(&lines(&[(0.0, "HTTP/1.1 200 OK\r\n")])), "it ends within the HTTP head");
        let chunk = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx";
        assert_eq!(
            message(&lines(&[(0.0, chunk), (0.1, "\r\n")])),
            "malformed body: a chunk size that is not plain hexadecimal"
        );
    }
}
