//! Triton's and KServe's gRPC `ModelStreamInfer`.
//!
//! Several requests share one stream, and each has an id; each message is one step of one request. Times are those of
//! the merged sequence: a gap lies between any two messages, also of different requests.
//!
//! Text is in a string tensor, `text_output` if one has that name. A step with only other tensors is a token without
//! visible text. A request's last message may have `triton_final_response` and no outputs; it is then no token.
//!
//! Field numbers are those of KServe's `grpc_service.proto`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::fault::tell_plain;
use super::protobuf::{ProtobufValue, fields};
use super::triton_generate::finished;
use super::{Delta, DeltaSink, Dialect, DialectReader, OutputKind, RequestShape, USUAL};
use crate::measure::framing::Event;
use crate::measure::string_cache::shared;

pub(super) const DIALECT: Dialect = Dialect {
    name: "triton.grpc",
    route: "/inference.GRPCInferenceService/ModelStreamInfer",
    content_type: "application/grpc",
    matches: |path| path.ends_with("/inference.GRPCInferenceService/ModelStreamInfer"),
    path: |shape, _| shape.stream = Some(true),
    message: Some(request),
    reader: |_| Box::new(TritonGrpcReader::default()),
    ends_with_body: true,
    ..USUAL
};

/// Distinct requests per stream.
const MAX_REQUESTS: usize = 128;

/// Reads a `ModelInferRequest`.
fn request(shape: &mut RequestShape, message: &[u8]) {
    if let Some(Some((1, model))) = fields(message).find(|field| matches!(field, None | Some((1, _)))) {
        shape.model = shape.model.take().or_else(|| model.text().map(shared));
    }
}

#[derive(Default)]
struct TritonGrpcReader {
    /// Requests so far: a hash of the id, and whether the last response has arrived.
    requests: Vec<(u64, bool)>,
    identified: bool,
}

/// The relevant fields of one `ModelInferResponse`.
#[derive(Default)]
struct TritonResponse<'a> {
    model: Option<&'a str>,
    id: &'a [u8],
    last: bool,
    outputs: usize,
    /// The outputs that contain the text and the finish reason.
    text: Option<TritonOutput<'a>>,
    finish: Option<TritonOutput<'a>>,
}

/// A string tensor.
#[derive(Clone, Copy)]
struct TritonOutput<'a> {
    /// Its index among the outputs.
    place: usize,
    is_text_output: bool,
    /// The `contents` field; empty if the contents are in `raw_output_contents`.
    contents: &'a [u8],
}

impl<'a> TritonResponse<'a> {
    fn read(message: &'a [u8]) -> Option<Self> {
        let mut response = Self::default();
        for field in fields(message) {
            match field? {
                (1, model) => response.model = model.text(),
                (3, id) => response.id = id.bytes(),
                (4, parameter) => response.last |= is_final(parameter.bytes())?,
                (5, output) => response.output(output.bytes())?,
                _ => {}
            }
        }
        Some(response)
    }

    fn output(&mut self, output: &'a [u8]) -> Option<()> {
        let (mut name, mut datatype, mut contents): (&[u8], &[u8], &[u8]) = (b"", b"", b"");
        for field in fields(output) {
            match field? {
                (1, value) => name = value.bytes(),
                (2, value) => datatype = value.bytes(),
                (5, value) => contents = value.bytes(),
                _ => {}
            }
        }
        let place = self.outputs;
        self.outputs += 1;
        if datatype == b"BYTES" {
            let output = TritonOutput { place, is_text_output: name == b"text_output", contents };
            if name == b"finish_reason" {
                self.finish = Some(output);
            } else if self.text.is_none_or(|text| !text.is_text_output) {
                self.text = Some(output).filter(|text| text.is_text_output || self.text.is_none()).or(self.text);
            }
        }
        Some(())
    }
}

/// Whether a parameter (a map entry) marks the last response.
fn is_final(entry: &[u8]) -> Option<bool> {
    let (mut named, mut set) = (false, false);
    for field in fields(entry) {
        match field? {
            (1, key) => named = key.bytes() == b"triton_final_response",
            (2, parameter) => {
                for field in fields(parameter.bytes()) {
                    set = matches!(field?, (1, ProtobufValue::Varint(1..)));
                }
            }
            _ => {}
        }
    }
    Some(named && set)
}

impl<'a> TritonOutput<'a> {
    /// Calls `each` with every string of the tensor. `message` is the whole response, which has the raw contents.
    fn each(self, message: &'a [u8], mut each: impl FnMut(&'a [u8])) -> Option<()> {
        let mut in_contents = false;
        for field in fields(self.contents) {
            if let (8, string) = field? {
                in_contents = true;
                each(string.bytes());
            }
        }
        if in_contents {
            return Some(());
        }
        let mut raw = fields(message).filter_map(|field| field.filter(|(number, _)| *number == 6));
        let Some((_, raw)) = raw.nth(self.place) else { return Some(()) };
        let mut rest = raw.bytes();
        while !rest.is_empty() {
            let length = u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?);
            each(rest.split_off(..length as usize)?);
        }
        Some(())
    }
}

impl TritonGrpcReader {
    /// Returns the index of a request on this stream.
    fn number(&mut self, id: &[u8]) -> usize {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some(known) = self.requests.iter().position(|(known, _)| *known == hash) {
            return known;
        }
        if self.requests.len() < MAX_REQUESTS {
            self.requests.push((hash, false));
        }
        self.requests.len() - 1
    }

    fn response(&mut self, message: &[u8], sink: &mut dyn DeltaSink) -> Option<()> {
        let response = TritonResponse::read(message)?;
        let request = self.number(response.id);
        if !std::mem::replace(&mut self.identified, true) {
            if let Some(id) = std::str::from_utf8(response.id).ok().filter(|id| !id.is_empty()) {
                sink.delta(0, Delta::Id(id));
            }
            response.model.into_iter().for_each(|model| sink.delta(0, Delta::Model(model)));
        }
        let (mut strings, mut shows) = (0, false);
        if let Some(text) = response.text {
            // Checks the contents before any report.
            text.each(message, |_| ())?;
            text.each(message, |string| {
                if !string.is_empty() {
                    shows = true;
                    sink.delta((request + strings) as u32, Delta::Output { kind: OutputKind::Text, tokens: None });
                }
                strings += 1;
            })?;
        } else if response.outputs > 0 {
            shows = true;
            sink.delta(request as u32, Delta::Output { kind: OutputKind::Text, tokens: None });
        }
        if strings > 0 && !shows {
            sink.delta(request as u32, Delta::Evidence { tokens: None });
        }
        if let Some(finish) = response.finish {
            let mut choice = request as u32;
            finish.each(message, |raw| {
                if let Ok(raw) = std::str::from_utf8(raw)
                    && let Some(reason) = finished(raw)
                {
                    sink.delta(choice, Delta::Finish(reason, raw));
                }
                choice += 1;
            })?;
        }
        if response.last {
            self.requests[request].1 = true;
            if self.requests.iter().all(|(_, last)| *last) {
                sink.delta(0, Delta::Done);
            }
        }
        Some(())
    }
}

impl DialectReader for TritonGrpcReader {
    fn event(&mut self, event: &Event<'_>, sink: &mut dyn DeltaSink) {
        let read = fields(event.data).try_for_each(|field| {
            match field? {
                (1, error) if !error.bytes().is_empty() => {
                    tell_plain(error.text(), None, sink);
                }
                (2, response) => self.response(response.bytes(), sink)?,
                _ => {}
            }
            Some(())
        });
        if read.is_none() {
            sink.delta(0, Delta::Malformed);
        }
    }
}
