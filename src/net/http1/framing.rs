//! Finds the end of a message's body from its head. Two parties that disagree on it see different requests on one
//! connection, so ambiguous heads are rejected.

use super::head::{Head, HttpVersion};
use super::head_error::HeadError;
use super::known_headers::KnownHeader;

/// Rule that ends a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The body has this many bytes.
    Length(u64),
    /// The body is chunked and may have trailers.
    Chunked,
    /// The body ends when the connection closes.
    UntilClose,
}

impl Head {
    /// Returns the framing of this request's body.
    ///
    /// # Errors
    /// Returns [`HeadError`] if the framing is ambiguous.
    pub fn request_framing(&self) -> Result<Framing, HeadError> {
        match self.framing()? {
            Some(Framing::Chunked) if self.version() == HttpVersion::Http10 => {
                Err(HeadError::Ambiguous("Transfer-Encoding in HTTP/1.0"))
            }
            Some(framing) => Ok(framing),
            None => Ok(Framing::Length(0)),
        }
    }

    /// Returns the framing of this response's body. `to_head` marks a response to a HEAD request.
    ///
    /// # Errors
    /// Returns [`HeadError`] if the framing is ambiguous.
    pub fn response_framing(&self, to_head: bool) -> Result<Framing, HeadError> {
        let framing = self.framing()?;
        if to_head || matches!(self.status(), 100..=199 | 204 | 304) {
            return Ok(Framing::Length(0));
        }
        Ok(framing.unwrap_or(Framing::UntilClose))
    }

    fn framing(&self) -> Result<Option<Framing>, HeadError> {
        let mut codings = self.all(KnownHeader::TransferEncoding);
        let mut lengths = self.all(KnownHeader::ContentLength);
        let (coding, length) = (codings.next(), lengths.next());
        if codings.next().is_some() {
            return Err(HeadError::Ambiguous("several Transfer-Encoding fields"));
        }
        if lengths.next().is_some() {
            return Err(HeadError::Ambiguous("several Content-Length fields"));
        }
        match (coding, length) {
            (Some(_), Some(_)) => Err(HeadError::Ambiguous("both Transfer-Encoding and Content-Length")),
            (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Some(Framing::Chunked)),
            (Some(_), None) => Err(HeadError::UnknownCoding),
            (None, Some(length)) => Ok(Some(Framing::Length(content_length(length)?))),
            (None, None) => Ok(None),
        }
    }
}

/// Accepts digits only: attackers use `+5`, `5, 5` and inner white space to make two parties read different lengths.
fn content_length(value: &[u8]) -> Result<u64, HeadError> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let length = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
    length.ok_or(HeadError::Ambiguous("a Content-Length that is not a plain number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<Head, HeadError> {
        let mut head = Head::default();
        head.parse_request(text.as_bytes()).map(|()| head)
    }

    fn framing(fields: &str) -> Result<Framing, HeadError> {
        request(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).and_then(|head| head.request_framing())
    }

    #[test]
    fn a_body_has_one_length_or_the_message_is_refused() {
        assert_eq!(framing(""), Ok(Framing::Length(0)));
        assert_eq!(framing("Content-Length: 12\r\n"), Ok(Framing::Length(12)));
        assert_eq!(framing("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunked));
        for bad in [
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: \r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert!(matches!(framing(bad), Err(HeadError::Ambiguous(_))), "{bad:?}");
        }
        for bad in ["gzip, chunked", "identity", "xchunked", "chunked, identity", "\x0bchunked"] {
            let framing = framing(&format!("Transfer-Encoding: {bad}\r\n"));
            assert!(framing.is_err(), "{bad:?} gives {framing:?}");
        }
        let old = request("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        assert!(old.request_framing().is_err());
    }
}
