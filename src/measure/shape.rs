//! What was asked: the shape of a request, read from its body as it passes.
//!
//! Sizes, names and numbers that change what a request costs; never what it says.

use std::borrow::Cow;
use std::sync::Arc;

use super::dialect::{Dialect, Routes, Shared, field, leads};
use super::framing::coding::Decoder;
use super::framing::{Event, Framer, Grpc};
use super::scan::{Fields, JsonScan, Scalar};

/// The shape of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestShape {
    /// The dialect of its path; `None` for plain HTTP.
    pub dialect: Option<&'static Dialect>,
    /// The path that several dialects share, while nothing has told which it is.
    pub shared: Option<&'static Shared>,
    /// HTTP method.
    pub method: Cow<'static, str>,
    /// The model asked for, cut at 256 bytes.
    pub model: Option<Arc<str>>,
    /// Whether a stream was asked for, where the request says.
    pub stream: Option<bool>,
    /// Limit on generated tokens.
    pub max_tokens: Option<u64>,
    /// Choices asked for.
    pub choices: Option<u64>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Nucleus sampling mass.
    pub top_p: Option<f64>,
    /// Penalty on tokens by how often they came before.
    pub frequency_penalty: Option<f64>,
    /// Penalty on tokens that came before.
    pub presence_penalty: Option<f64>,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Whether the final usage report was asked for.
    pub include_usage: bool,
    /// Whether usage was asked for on every event, so that it may be read as a counter.
    pub continuous_usage: bool,
    /// Whether the answer is to begin with the prompt.
    pub echo: bool,
    /// The server's host and port as configured.
    pub server: Option<(Arc<str>, u16)>,
}

impl RequestShape {
    /// What a request's head tells: its method and its path (without query).
    pub fn of(method: &str, path: &str, routes: &Routes) -> Self {
        let mut shape = Self { method: of_method(method), ..Self::default() };
        if shape.may_generate() {
            shape.dialect = routes.dialect(path);
            match shape.dialect {
                Some(dialect) => (dialect.path)(&mut shape, path),
                None => shape.shared = Shared::for_path(path),
            }
        }
        shape
    }

    /// Whether the method is one that asks for generation. Others list, probe and replay.
    pub(super) fn may_generate(&self) -> bool {
        matches!(&*self.method, "POST" | "PUT" | "")
    }

    /// The route under which the request is counted: the dialect's, empty for plain HTTP. Never the path itself, which
    /// may carry ids.
    pub fn route(&self) -> &'static str {
        self.dialect.map_or("", |dialect| dialect.route)
    }
}

/// A method that asks for generation needs no room of its own.
fn of_method(method: &str) -> Cow<'static, str> {
    match method {
        "POST" => "POST".into(),
        other => other.to_owned().into(),
    }
}

/// Reads a request body into a [`RequestShape`].
#[derive(Default)]
pub struct ShapeReader {
    shape: RequestShape,
    scan: JsonScan,
    /// The messages of a gRPC request.
    messages: Option<Framer>,
    decoder: Option<Box<Decoder>>,
    unreadable: bool,
}

impl ShapeReader {
    /// A reader that starts from what the request head told. `encoding` is the body's `Content-Encoding`, or the
    /// `grpc-encoding` of its messages.
    pub fn new(shape: RequestShape, encoding: &[u8]) -> Self {
        let messages = shape.dialect.and_then(|dialect| dialect.message);
        let messages = messages.map(|_| Framer::Grpc(Grpc::encoded(encoding)));
        let decoder = Decoder::for_encoding(if messages.is_some() { b"" } else { encoding });
        let unreadable = decoder.is_none() || shape.dialect.is_none() && shape.shared.is_none();
        let decoder = decoder.filter(|decoder| !decoder.is_identity()).map(Box::new);
        Self { shape, scan: JsonScan::default(), messages, decoder, unreadable }
    }

    /// One read of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.unreadable {
            return;
        }
        let Self { shape, scan, messages, decoder, .. } = self;
        let mut read = |plain: &[u8]| match messages {
            None => {
                scan.push(plain, &mut Body(shape));
                true
            }
            Some(messages) => messages.push(plain, |event| message(shape, &event)).is_ok(),
        };
        let mut readable = true;
        let decoded = match decoder {
            None => {
                readable = read(bytes);
                Ok(())
            }
            Some(decoder) => decoder.push(bytes, |plain| readable = readable && read(plain)),
        };
        self.unreadable = !readable || decoded.is_err();
    }

    /// What is known so far.
    pub fn shape(&self) -> &RequestShape {
        &self.shape
    }

    /// Gives away what is known; nothing is known after that.
    pub fn take(&mut self) -> RequestShape {
        std::mem::take(&mut self.shape)
    }
}

/// What a JSON body tells.
struct Body<'a>(&'a mut RequestShape);

impl Fields for Body<'_> {
    fn wants(&self, path: &[u8]) -> bool {
        match (self.0.dialect, self.0.shared) {
            (Some(dialect), _) => field(dialect.request, path).is_some(),
            (None, shared) => shared.is_some_and(|shared| shared.wants(path)),
        }
    }

    fn leads(&self, path: &[u8]) -> bool {
        match (self.0.dialect, self.0.shared) {
            (Some(dialect), _) => leads(dialect.request, path),
            (None, shared) => shared.is_some_and(|shared| shared.leads(path)),
        }
    }

    fn scalar(&mut self, path: &[u8], _: u32, scalar: Scalar<'_>) {
        match (self.0.dialect, self.0.shared) {
            (Some(dialect), _) => {
                if let Some(asked) = field(dialect.request, path) {
                    asked.note(self.0, scalar);
                }
            }
            (None, Some(shared)) => shared.note(self.0, path, scalar),
            (None, None) => {}
        }
    }
}

/// What a message of a gRPC body tells.
fn message(shape: &mut RequestShape, event: &Event<'_>) {
    if let Some(note) = shape.dialect.and_then(|dialect| dialect.message) {
        note(shape, event.data);
    }
}
