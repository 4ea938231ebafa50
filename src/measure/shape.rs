//! The shape of a request, read from its body as it streams through.
//!
//! It has sizes, names and numbers that affect the cost of a request, and never its text.

use std::borrow::Cow;
use std::sync::Arc;

pub use super::dialect::RequestShape;
use super::dialect::{AmbiguousPath, Routes, field, health, leads};
use super::framing::coding::{Decoder, MAX_INPUT_BYTES, decode_slice};
use super::framing::{Event, Framer, GrpcFramer};
use super::json_scanner::{JsonScanner, Scalar, ScanFields};
use super::request_class::RequestClasses;
use super::unread_reason::UnreadReason;
use super::work_budget::{WorkBudget, WorkReserve};

impl RequestShape {
    /// Creates a shape from the request head: method and path (without query).
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
}

/// Borrows the common methods and allocates only for others.
fn of_method(method: &str) -> Cow<'static, str> {
    match method {
        "POST" => "POST".into(),
        other => other.to_owned().into(),
    }
}

/// Builds a [`RequestShape`] from the request body, read by read.
#[derive(Default)]
pub struct ShapeReader {
    shape: RequestShape,
    scan: JsonScanner,
    /// Framer of a gRPC request's messages.
    messages: Option<Framer>,
    decoder: Option<Box<Decoder>>,
    /// Classes whose values may be in the body; `None` without any.
    classes: Option<Arc<RequestClasses>>,
    budget: WorkBudget,
    /// The rest of the body cannot be read.
    unreadable: bool,
    unread: Option<UnreadReason>,
}

impl ShapeReader {
    /// Starts from the shape of the request head. `encoding` is the body's `Content-Encoding`, or its messages'
    /// `grpc-encoding`.
    pub fn new(shape: RequestShape, encoding: &[u8]) -> Self {
        let messages = shape.dialect.and_then(|dialect| dialect.message);
        let messages = messages.map(|_| Framer::Grpc(GrpcFramer::encoded(encoding)));
        let decoder = Decoder::for_encoding(if messages.is_some() { b"" } else { encoding });
        let plain_http = shape.dialect.is_none() && shape.shared.is_none();
        let unread = (decoder.is_none() && !plain_http).then_some(UnreadReason::Coding);
        let unreadable = plain_http || unread.is_some();
        let decoder = decoder.filter(|decoder| !decoder.is_identity()).map(Box::new);
        let (classes, budget) = (None, WorkBudget::default());
        Self { shape, scan: JsonScanner::default(), messages, decoder, classes, budget, unreadable, unread }
    }

    /// Draws from `reserve` beyond what the reads grant.
    pub fn set_reserve(&mut self, reserve: &WorkReserve) {
        self.budget = WorkBudget::with_reserve(reserve);
    }

    /// Reads the values of these classes from the body.
    pub fn set_classes(&mut self, classes: Arc<RequestClasses>) {
        self.classes = Some(classes);
    }

    /// Takes one read of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.receive(bytes.len());
        let (mut rest, mut is_done) = (bytes, false);
        while !is_done {
            let slice = self.push_slice(rest);
            (rest, is_done) = (&rest[slice.0..], slice.1);
        }
    }

    /// Begins a read of this many bytes, which [`push_slice`](Self::push_slice) takes.
    pub fn receive(&mut self, bytes: usize) {
        self.budget.receive(bytes);
    }

    /// Takes one slice of a read; returns the bytes that it took, and whether it was the last one.
    pub fn push_slice(&mut self, bytes: &[u8]) -> (usize, bool) {
        if self.unreadable {
            return (bytes.len(), true);
        }
        let Self { shape, scan, messages, decoder, classes, budget, .. } = self;
        let classes = classes.as_deref();
        let piece_bytes = messages.as_ref().map_or(MAX_INPUT_BYTES, Framer::piece_bytes);
        let read = decode_slice(decoder.as_deref_mut(), (bytes, piece_bytes), budget, |plain, budget| match messages {
            None => Ok(scan.push_paid(plain, budget, &mut ShapeFields { shape, classes })?),
            Some(messages) => {
                Ok(messages.push(plain, budget, &mut |event: Event<'_>, _: &mut WorkBudget| message(shape, &event))?)
            }
        });
        read.unwrap_or_else(|unread| {
            (self.unreadable, self.unread) = (true, Some(unread));
            (self.messages, self.decoder) = (None, None);
            (bytes.len(), true)
        })
    }

    /// Reason why reading stopped, if the body was relevant.
    pub fn unread(&self) -> Option<UnreadReason> {
        self.unread
    }

    /// Remaining and spent work on the body.
    pub fn budget(&self) -> &WorkBudget {
        &self.budget
    }

    /// Sets the server that takes the request.
    pub fn set_server(&mut self, server: Option<(Arc<str>, u16)>) {
        self.shape.server = server;
    }

    /// The shape so far.
    pub fn shape(&self) -> &RequestShape {
        &self.shape
    }

    /// Moves the shape out and leaves an empty one.
    pub fn take(&mut self) -> RequestShape {
        std::mem::take(&mut self.shape)
    }
}

/// Fields of a JSON body.
struct ShapeFields<'a> {
    shape: &'a mut RequestShape,
    classes: Option<&'a RequestClasses>,
}

impl ScanFields for ShapeFields<'_> {
    fn wants(&self, path: &[u8]) -> bool {
        let by_dialect = match (self.shape.dialect, self.shape.shared) {
            (Some(dialect), _) => field(dialect.request, path).is_some(),
            (None, shared) => shared.is_some_and(|shared| shared.wants(path)),
        };
        by_dialect || self.classes.is_some_and(|classes| classes.wants(path))
    }

    fn is_prefix_of_wanted(&self, path: &[u8]) -> bool {
        let by_dialect = match (self.shape.dialect, self.shape.shared) {
            (Some(dialect), _) => leads(dialect.request, path),
            (None, shared) => shared.is_some_and(|shared| shared.leads(path)),
        };
        by_dialect || self.classes.is_some_and(|classes| classes.leads(path))
    }

    fn scalar(&mut self, path: &[u8], _: u32, scalar: Scalar<'_>) {
        if let Some(classes) = self.classes {
            classes.note(&mut self.shape.classes, path, scalar);
        }
        match (self.shape.dialect, self.shape.shared) {
            (Some(dialect), _) => {
                if let Some(request_field) = field(dialect.request, path) {
                    request_field.note(self.shape, scalar);
                }
            }
            (None, Some(shared)) if shared.wants(path) => shared.note(self.shape, path, scalar),
            (None, _) => {}
        }
    }
}

/// Reads one message of a gRPC body.
fn message(shape: &mut RequestShape, event: &Event<'_>) {
    if let Some(note) = shape.dialect.and_then(|dialect| dialect.message) {
        note(shape, event.data);
    }
}
