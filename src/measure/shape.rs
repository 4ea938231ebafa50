//! What was asked: the shape of a request, read from its body as it passes.
//!
//! Sizes, names and numbers that change what a request costs; never what it says.

use std::borrow::Cow;
use std::sync::Arc;

use super::dialect::{AmbiguousPath, Dialect, Routes, field, health, leads};
use super::framing::coding::{Decoder, decode};
use super::framing::{Event, Framer, GrpcFramer};
use super::json_scanner::{JsonScanner, Scalar, ScanFields};
use super::record::UnreadReason;
use super::work_budget::WorkBudget;

/// The shape of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestShape {
    /// The dialect of its path; `None` for plain HTTP.
    pub dialect: Option<&'static Dialect>,
    /// The path that several dialects share, while nothing has told which it is.
    pub shared: Option<&'static AmbiguousPath>,
    /// The path of a health probe; `None` for other requests.
    pub probe: Option<&'static str>,
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
                None => shape.shared = AmbiguousPath::for_path(path),
            }
        }
        if shape.dialect.is_none() {
            shape.probe = health::probe(&shape.method, path);
        }
        shape
    }

    /// Whether the method is one that asks for generation. Others list, probe and replay.
    pub(super) fn may_generate(&self) -> bool {
        matches!(&*self.method, "POST" | "PUT" | "")
    }

    /// The route under which the request is counted: the dialect's, a health probe's path, empty for other plain HTTP.
    /// Never the path itself, which may carry ids.
    pub fn route(&self) -> &'static str {
        self.dialect.map_or_else(|| self.probe.unwrap_or_default(), |dialect| dialect.route)
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
    scan: JsonScanner,
    /// The messages of a gRPC request.
    messages: Option<Framer>,
    decoder: Option<Box<Decoder>>,
    budget: WorkBudget,
    /// Nothing could be told of its body, or nothing more.
    unreadable: bool,
    unread: Option<UnreadReason>,
}

impl ShapeReader {
    /// A reader that starts from what the request head told. `encoding` is the body's `Content-Encoding`, or the
    /// `grpc-encoding` of its messages.
    pub fn new(shape: RequestShape, encoding: &[u8]) -> Self {
        let messages = shape.dialect.and_then(|dialect| dialect.message);
        let messages = messages.map(|_| Framer::Grpc(GrpcFramer::encoded(encoding)));
        let decoder = Decoder::for_encoding(if messages.is_some() { b"" } else { encoding });
        let plain_http = shape.dialect.is_none() && shape.shared.is_none();
        let unread = (decoder.is_none() && !plain_http).then_some(UnreadReason::Coding);
        let unreadable = plain_http || unread.is_some();
        let decoder = decoder.filter(|decoder| !decoder.is_identity()).map(Box::new);
        let budget = WorkBudget::default();
        Self { shape, scan: JsonScanner::default(), messages, decoder, budget, unreadable, unread }
    }

    /// One read of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.unreadable {
            return;
        }
        let Self { shape, scan, messages, decoder, budget, .. } = self;
        budget.receive(bytes.len());
        let read = decode(decoder.as_deref_mut(), bytes, budget, |plain, budget| match messages {
            None => Ok(scan.push_paid(plain, budget, &mut ShapeFields(shape))?),
            Some(messages) => Ok(messages.push(plain, budget, |event, _| message(shape, &event))?),
        });
        if let Err(unread) = read {
            (self.unreadable, self.unread) = (true, Some(unread));
            (self.messages, self.decoder) = (None, None);
        }
    }

    /// Why nothing more was read of a body that could tell something.
    pub fn unread(&self) -> Option<UnreadReason> {
        self.unread
    }

    /// What observing the body may still cost, and has cost.
    pub fn budget(&self) -> &WorkBudget {
        &self.budget
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
struct ShapeFields<'a>(&'a mut RequestShape);

impl ScanFields for ShapeFields<'_> {
    fn wants(&self, path: &[u8]) -> bool {
        match (self.0.dialect, self.0.shared) {
            (Some(dialect), _) => field(dialect.request, path).is_some(),
            (None, shared) => shared.is_some_and(|shared| shared.wants(path)),
        }
    }

    fn is_prefix_of_wanted(&self, path: &[u8]) -> bool {
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
