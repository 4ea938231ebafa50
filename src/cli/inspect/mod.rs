//! `streamgauge inspect`: what one recorded response stream means; for people who debug a server.

mod inspection;
mod text;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::ValueHint;

use crate::measure::dialect::{Dialect, Routes, TABLE};
use crate::measure::shape::RequestShape;

pub use inspection::{Error, Exchange, Finish, Inspection, Seen, inspect};

/// Say what a recorded response means, event by event
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The response body as it came; `-` is stdin
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// The request's path, which says what dialect the response speaks
    #[arg(long)]
    path: String,

    /// The request's JSON body, where it was kept
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    request: Option<PathBuf>,

    /// The response's Content-Type; guessed from the file if not given
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,

    /// The response's Content-Encoding: gzip, deflate, br or zstd
    #[arg(long, value_name = "CODING", default_value = "", hide_default_value = true)]
    content_encoding: String,

    /// The sizes of the reads that the body came in, in bytes
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    segments: Vec<usize>,

    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  Record a stream and look at it:
    curl -sN localhost:8000/v1/completions -d @request.json > reply.sse
    streamgauge inspect reply.sse --path /v1/completions --request request.json

  Count on it in a script:
    streamgauge inspect reply.sse --path /v1/chat/completions --json | jq .output_tokens";

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let body = read(&args.file)?;
    let request = args.request.as_deref().map(read).transpose()?.unwrap_or_default();
    let reads = reads(&body, &args.segments)?;
    let head = RequestShape::of("POST", args.path.split('?').next().unwrap_or_default(), &Routes::default());
    let content_type = args.content_type.as_deref().unwrap_or_else(|| {
        let (guess, by) = guess(&args.file, &body, head.dialect);
        super::say(&format!("note: taken as {guess} by {by}; --content-type says otherwise"));
        guess
    });
    let content_encoding = &args.content_encoding;
    let exchange = Exchange { head, request: &request, content_type, content_encoding };
    let (inspection, events, unread) = inspect(&exchange, reads);
    if inspection.dialect.is_none() {
        super::say(&plain_http(&args.path));
    }
    let answer = if args.json {
        // A server's words are in there: what is not printable is escaped, as JSON may be.
        let json = serde_json::to_string_pretty(&inspection)?;
        json.split('\n').map(|line| text::escaped(line) + "\n").collect()
    } else {
        text::render(&inspection, &events, unread, &text::Screen::of_stdout())
    };
    super::print(&answer)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path != Path::new("-") {
        return fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("cannot read stdin")?;
    Ok(bytes)
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

/// What a body is by its file's name, its first bytes or its dialect, and by which of them.
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
    format!("note: {} is plain HTTP: forwarded, not understood. Understood are:{known}", text::escaped(path))
}
