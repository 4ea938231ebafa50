//! Paths that several servers share; the keys of the request body identify the server.

use super::{
    AmbiguousPath, Dialect, RequestField, RequestShape, lmdeploy_generate, sglang_generate, tgi_stream, triton_generate,
};
use crate::measure::json_scanner::Scalar;

static SHARED: &[AmbiguousPath] = &[
    AmbiguousPath {
        matches: |path| path.ends_with("/generate"),
        keys: &[
            ("text", &sglang_generate::DIALECT),
            ("sampling_params", &sglang_generate::DIALECT),
            ("prompt", &lmdeploy_generate::DIALECT),
            ("max_tokens", &lmdeploy_generate::DIALECT),
            ("inputs", &tgi_stream::DIALECT),
            ("text_input", &triton_generate::DIALECT),
        ],
    },
    AmbiguousPath { matches: |path| path == "/", keys: &[("inputs", &tgi_stream::DIALECT)] },
];

/// Fields that may precede the deciding key.
const REQUEST: &[(&str, RequestField)] =
    &[("model", RequestField::Model), ("stream", RequestField::Stream), ("max_tokens", RequestField::MaxTokens)];

impl AmbiguousPath {
    /// Returns the shared path that matches this request path (without query).
    pub fn for_path(path: &str) -> Option<&'static Self> {
        SHARED.iter().find(|shared| (shared.matches)(path))
    }

    pub(in crate::measure) fn wants(&self, path: &[u8]) -> bool {
        self.dialect_of(path).is_some() || field(REQUEST, path).is_some()
    }

    pub(in crate::measure) fn leads(&self, path: &[u8]) -> bool {
        self.dialect_of(path).is_some() || leads(REQUEST, path)
    }

    pub(in crate::measure) fn note(&self, shape: &mut RequestShape, path: &[u8], scalar: Scalar<'_>) {
        shape.dialect = self.dialect_of(path);
        let request = shape.dialect.map_or(REQUEST, |dialect| dialect.request);
        if let Some(request_field) = field(request, path) {
            request_field.note(shape, scalar);
        }
    }

    fn dialect_of(&self, path: &[u8]) -> Option<&'static Dialect> {
        let key = path.split(|byte| matches!(byte, b'.' | b'[')).next()?;
        self.keys.iter().find(|(decisive, _)| decisive.as_bytes() == key).map(|(_, dialect)| *dialect)
    }
}

/// Returns the table's entry for `path`.
pub(in crate::measure) fn field<T: Copy>(table: &[(&str, T)], path: &[u8]) -> Option<T> {
    table.iter().find(|(known, _)| known.as_bytes() == path).map(|(_, field)| *field)
}

/// True if the table has an entry at `path` or below it.
pub(in crate::measure) fn leads<T>(table: &[(&str, T)], path: &[u8]) -> bool {
    table.iter().any(|(known, _)| {
        known.as_bytes().strip_prefix(path).is_some_and(|rest| matches!(rest, [] | [b'.' | b'[', ..]))
    })
}

#[cfg(test)]
mod tests {
    use crate::measure::dialect::Routes;
    use crate::measure::shape::{RequestShape, ShapeReader};

    fn shape_of(path: &str, body: &str) -> RequestShape {
        let mut reader = ShapeReader::new(RequestShape::of("POST", path, &Routes::default()), b"");
        body.as_bytes().chunks(1).for_each(|byte| reader.push(byte));
        reader.take()
    }

    #[test]
    fn the_body_tells_whose_a_shared_path_is() {
        for (path, body, name) in [
            ("/generate", r#"{"text":"a","stream":true}"#, Some("sglang.generate")),
            ("/generate", r#"{"stream":true,"text":["a","b"]}"#, Some("sglang.generate")),
            ("/generate", r#"{"input_ids":[1,2],"sampling_params":{"max_new_tokens":4}}"#, Some("sglang.generate")),
            ("/generate", r#"{"prompt":"a","max_tokens":4}"#, Some("lmdeploy.generate")),
            ("/generate", r#"{"input_ids":[1],"max_tokens":4,"stream":true}"#, Some("lmdeploy.generate")),
            ("/generate", r#"{"inputs":"a","parameters":{}}"#, Some("tgi.stream")),
            ("/x/generate", r#"{"text_input":"a"}"#, Some("triton.generate")),
            ("/generate", r#"{"input_ids":[1,2]}"#, None),
            ("/", r#"{"inputs":"a","stream":true}"#, Some("tgi.stream")),
            ("/", r#"{"prompt":"a","text":"b"}"#, None),
            ("/", "[]", None),
        ] {
            assert_eq!(shape_of(path, body).dialect.map(|dialect| dialect.name), name, "{path} {body}");
        }
    }

    #[test]
    fn what_came_before_the_decision_is_not_lost_and_what_comes_after_is_read_in_its_dialect() {
        let shape = shape_of(
            "/generate",
            r#"{"stream":true,"model":"m","text":"a","sampling_params":{"max_new_tokens":4,"n":2}}"#,
        );
        assert_eq!((shape.stream, shape.model.as_deref()), (Some(true), Some("m")));
        assert_eq!((shape.max_tokens, shape.choices), (Some(4), Some(2)));
        let shape = shape_of("/generate", r#"{"input_ids":[1],"max_tokens":4,"temperature":0.5}"#);
        assert_eq!((shape.max_tokens, shape.temperature), (Some(4), Some(0.5)));
    }

    #[test]
    fn only_what_is_posted_asks_for_generation() {
        let dialect = |method| RequestShape::of(method, "/v1/chat/completions", &Routes::default()).dialect;
        for method in ["GET", "HEAD", "OPTIONS", "DELETE", "CONNECT"] {
            assert_eq!(dialect(method), None, "{method}");
        }
        assert!(dialect("POST").is_some() && dialect("PUT").is_some());
    }
}
