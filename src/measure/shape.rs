//! What was asked: the shape of a request, read from its body as it passes.
//!
//! Sizes, names and numbers that change what a request costs; never what it says.

use std::sync::Arc;

use super::dialect::Dialect;
use super::framing::coding::Decoder;
use super::scan::{Fields, JsonScan, Scalar};

/// The shape of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestShape {
    /// The dialect of its path; `None` for plain HTTP.
    pub dialect: Option<&'static Dialect>,
    /// HTTP method.
    pub method: Box<str>,
    /// The model asked for, cut at 256 bytes.
    pub model: Option<String>,
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
    /// The server's host and port as configured.
    pub server: Option<(Arc<str>, u16)>,
}

impl RequestShape {
    /// The route under which the request is counted: the dialect's, empty for plain HTTP. Never the path itself, which
    /// may carry ids.
    pub fn route(&self) -> &'static str {
        self.dialect.map_or("", |dialect| dialect.route)
    }
}

/// Reads a request body into a [`RequestShape`].
#[derive(Default)]
pub struct ShapeReader {
    shape: RequestShape,
    scan: JsonScan,
    decoder: Option<Decoder>,
    unreadable: bool,
}

impl ShapeReader {
    /// A reader that starts from what the request head told. `encoding` is the body's `Content-Encoding`.
    pub fn new(shape: RequestShape, encoding: &[u8]) -> Self {
        let decoder = Decoder::for_encoding(encoding);
        let unreadable = decoder.is_none() || shape.dialect.is_none();
        Self { shape, scan: JsonScan::default(), decoder: decoder.filter(|decoder| !decoder.is_identity()), unreadable }
    }

    /// One read of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(dialect) = self.shape.dialect.filter(|_| !self.unreadable) else { return };
        let (scan, mut fields) = (&mut self.scan, Asked { dialect, shape: &mut self.shape });
        match &mut self.decoder {
            None => scan.push(bytes, &mut fields),
            Some(decoder) => self.unreadable = decoder.push(bytes, |plain| scan.push(plain, &mut fields)).is_err(),
        }
    }

    /// What is known so far.
    pub fn shape(&self) -> &RequestShape {
        &self.shape
    }

    /// Gives away what is known; nothing is known after that.
    pub fn take(&mut self) -> RequestShape {
        self.unreadable = true;
        std::mem::take(&mut self.shape)
    }
}

struct Asked<'a> {
    dialect: &'static Dialect,
    shape: &'a mut RequestShape,
}

impl Fields for Asked<'_> {
    fn wants(&self, path: &str) -> bool {
        self.dialect.request_fields.contains(&path)
    }

    fn scalar(&mut self, path: &str, _: u32, scalar: Scalar<'_>) {
        (self.dialect.request)(self.shape, path, scalar);
    }
}
