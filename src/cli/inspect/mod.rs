//! `streamgauge inspect`: explains one recorded response stream, to debug a server.

mod explain;
mod screen;
mod summary;
mod text;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;
use serde::de::IgnoredAny;

use super::verb_help::VerbHelp;
use crate::inspect::inspection::{InspectedEvent, Inspection, RecordedExchange, inspect, inspect_timed};
use crate::inspect::recording::RecordedResponse;
use crate::measure::dialect::{Dialect, Routes, TABLE};
use crate::measure::record::{Ending, UnreadReason};
use crate::measure::shape::RequestShape;

/// Explain a recorded response event by event, as the proxy sees it
///
/// The output is a line for each event and a summary: dialect, first and last token, token counts, finish reasons. For
/// debugging a server or a client.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Response body as recorded; `-` reads stdin
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Path of the request, which determines the response's dialect
    #[arg(long)]
    path: String,

    /// Read the request's JSON body from this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    request: Option<PathBuf>,

    /// Set the response's Content-Type [default: guessed from the file]
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,

    /// Set the response's Content-Encoding or grpc-encoding: gzip, deflate, br or zstd [default: none]
    #[arg(long, value_name = "CODING")]
    content_encoding: Option<String>,

    /// Split the body into reads of these sizes in bytes, e.g. 512,64 [default: one read]
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    segments: Vec<usize>,

    /// Read FILE as a timed recording and report latencies
    ///
    /// Each line is one read: {"t": seconds since the request was sent, "b": bytes}. `b` is a string in which each character
    /// is the byte with that code (Latin-1). The bytes are the body, or the connection with its HTTP/1.1 head; the head then
    /// determines Content-Type, Content-Encoding and chunks.
    #[arg(long, conflicts_with = "segments")]
    timed: bool,

    /// Report which event other tools count as the first token, and why
    #[arg(long)]
    explain: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["path", "request", "timed", "explain", "json"],
    examples: &[
        (
            "Record a stream and look at it",
            "curl -sN localhost:8000/v1/completions -d @request.json > reply.sse
    streamgauge inspect reply.sse --path /v1/completions \\
      --request request.json",
        ),
        (
            "Report token times, and each tool's first token",
            "streamgauge inspect reply.timed.jsonl --path /v1/chat/completions \\
      --timed --explain",
        ),
        (
            "Print the number of output tokens in a script",
            "streamgauge inspect reply.sse --path /v1/chat/completions --json \\
      | jq .output_tokens",
        ),
    ],
};

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = read(&args.file)?;
    let request = args.request.as_deref().map(request).transpose()?.unwrap_or_default();
    let recording = args.timed.then(|| RecordedResponse::parse(&file)).transpose();
    let recording = recording.with_context(|| format!("{} is no recording with times", args.file.display()))?;
    let head = RequestShape::of("POST", args.path.split('?').next().unwrap_or_default(), &Routes::default());
    let recorded = recording.as_ref();
    let content_type =
        args.content_type.as_deref().or_else(|| recorded?.content_type.as_deref()).unwrap_or_else(|| {
            let body = recorded.and_then(|recording| recording.reads.first()).map_or(&file, |(_, read)| read);
            let (guess, by) = guess(&args.file, body, head.dialect);
            crate::cli::terminal::eprint_line(&format!("note: taken as {guess} by {by}; --content-type overrides it"));
            guess
        });
    let content_encoding = args.content_encoding.as_deref().or_else(|| recorded?.content_encoding.as_deref());
    let content_encoding = content_encoding.unwrap_or_default();
    let exchange = RecordedExchange { head, request: &request, content_type, content_encoding };
    let (inspection, events, unread) = match &recording {
        Some(recording) => inspect_timed(&exchange, recording),
        None => inspect(&exchange, reads(&file, &args.segments)?),
    };
    if inspection.dialect.is_none() {
        crate::cli::terminal::eprint_line(&plain_http(&args.path));
    }
    let inspection = if args.explain { inspection.with_peer_rules(&events) } else { inspection };
    let answer = if args.json {
        // A server's words are in there: what is not printable is escaped, as JSON may be.
        let json = serde_json::to_string_pretty(&inspection)?;
        json.split('\n').map(|line| screen::escape(line) + "\n").collect()
    } else {
        let cut = recording.is_some_and(|recording| recording.ending != Ending::Complete);
        let reply = InspectedReply { inspection: &inspection, events: &events, unread, truncated: cut };
        text::render(&reply, &screen::InspectScreen::of_stdout())
    };
    crate::cli::terminal::print(&answer)
}

/// Parts of the answer for people.
struct InspectedReply<'a> {
    inspection: &'a Inspection,
    events: &'a [InspectedEvent],
    unread: Option<UnreadReason>,
    /// The connection was gone before the body's end.
    truncated: bool,
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    Ok(bytes)
}

/// Reads a request's body. Invalid JSON is an error, because the inspection would silently ignore it.
fn request(path: &Path) -> anyhow::Result<Vec<u8>> {
    let body = read(path)?;
    let json = serde_json::from_slice::<IgnoredAny>(&body);
    json.with_context(|| format!("{} is no JSON, as the body of a request is (--request)", path.display()))?;
    Ok(body)
}

/// The body in reads of those sizes; in one where none are given.
fn reads<'a>(body: &'a [u8], segments: &[usize]) -> anyhow::Result<Vec<&'a [u8]>> {
    let total = segments.iter().fold(0_usize, |total, bytes| total.saturating_add(*bytes));
    if segments.is_empty() {
        return Ok(vec![body]);
    }
    anyhow::ensure!(total == body.len(), "--segments add up to {total} bytes, the body has {}", body.len());
    let mut rest = body;
    Ok(segments.iter().filter_map(|bytes| rest.split_off(..*bytes)).collect())
}

/// The body's kind, and its evidence: the file's name, the first bytes or the dialect.
fn guess(path: &Path, body: &[u8], dialect: Option<&'static Dialect>) -> (&'static str, &'static str) {
    const STREAM: &str = "text/event-stream";
    const LINES: &str = "application/x-ndjson";
    const DOCUMENT: &str = "application/json";
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("sse") => return (STREAM, "the file's name"),
        Some("ndjson") => return (LINES, "the file's name"),
        Some("json") => return (DOCUMENT, "the file's name"),
        _ => {}
    }
    let usual = dialect.map_or(STREAM, |dialect| dialect.content_type);
    match body.trim_ascii_start().first() {
        Some(b'{' | b'[') if usual == LINES => (LINES, "its path"),
        Some(b'{' | b'[') => (DOCUMENT, "its first bytes"),
        Some(_) if usual == STREAM => (STREAM, "its first bytes"),
        Some(_) => (usual, "its path"),
        None => (STREAM, "default"),
    }
}

fn plain_http(path: &str) -> String {
    let known = TABLE.iter().map(|dialect| format!("\n  {} ({})", dialect.name, dialect.route));
    let known: String = known.collect();
    format!("note: {} is plain HTTP: forwarded, not understood. Understood are:{known}", screen::escape(path))
}
