//! A request's bytes on the wire. Pure.

use crate::replay::sender::target::TargetUrl;

/// Encodes the HTTP request; returns its bytes and the offset of its body. `fields` are additional header lines.
pub(super) fn encode_http_request<N: AsRef<str>>(
    target: &TargetUrl,
    path: &str,
    fields: impl IntoIterator<Item = (N, String)>,
    body: &[u8],
) -> (Vec<u8>, usize) {
    let mut out = Vec::with_capacity(body.len() + 512);
    let head = format!(
        "POST {}{path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        target.base,
        target.authority(),
        body.len(),
    );
    out.extend_from_slice(head.as_bytes());
    for (name, value) in fields {
        for part in [name.as_ref(), ": ", &value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
    let head = out.len();
    out.extend_from_slice(body);
    (out, head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_under_the_targets_prefix_with_its_own_fields() {
        let target = "http://h:1/api/v1".parse().unwrap();
        let (bytes, head) = encode_http_request(&target, "/v1/completions", [("x-a", "b".to_owned())], b"{}");
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            "POST /api/v1/completions HTTP/1.1\r\nhost: h:1\r\ncontent-type: application/json\r\n\
             content-length: 2\r\nx-a: b\r\n\r\n{}"
        );
        assert_eq!(&text[head..], "{}");
    }
}
