//! gRPC fields in a message's head.

use super::head::Head;
use super::known_headers::KnownHeader;

impl Head {
    /// Returns the `Content-Type` of a gRPC message without its parameters, or `None` for any other message.
    pub fn grpc(&self) -> Option<&[u8]> {
        const GRPC: &[u8] = b"application/grpc";
        let kind = self.get(KnownHeader::ContentType)?.trim_ascii_start();
        let is_grpc = kind.get(..GRPC.len())?.eq_ignore_ascii_case(GRPC);
        is_grpc.then(|| kind.split(|byte| *byte == b';').next().unwrap_or(kind).trim_ascii_end())
    }

    /// Returns the body's compression: `Content-Encoding` for the whole body, or `grpc-encoding` for each gRPC message.
    /// Empty if the head names none.
    pub fn body_coding(&self) -> &[u8] {
        let coding =
            if self.grpc().is_some() { self.value("grpc-encoding") } else { self.get(KnownHeader::ContentEncoding) };
        coding.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_message_is_told_by_its_type_and_has_a_coding_of_its_own() {
        let read = |kind: &str| {
            let mut head = Head::default();
            head.push(b"content-type", kind.as_bytes());
            head.push(b"content-encoding", b"br");
            head.push(b"grpc-encoding", b"gzip");
            let grpc = head.grpc().map(|kind| String::from_utf8_lossy(kind).into_owned());
            (grpc, String::from_utf8_lossy(head.body_coding()).into_owned())
        };
        for kind in ["application/grpc", "application/grpc+proto; a=b", "Application/GRPC-web"] {
            let essence = kind.split(';').next().map(str::to_owned);
            assert_eq!(read(kind), (essence, "gzip".to_owned()));
        }
        for kind in ["application/json", "application/grp", ""] {
            assert_eq!(read(kind), (None, "br".to_owned()), "{kind}");
        }
        assert_eq!((Head::default().grpc(), Head::default().body_coding()), (None, &b""[..]));
    }
}
