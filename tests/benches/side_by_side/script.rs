//! The messages: the request, and the reply that the upstream makes of a [`Script`], all bytes prepared beforehand.
//!
//! The events have the form and the size of vLLM's. Each carries its send time, as 16 hexadecimal digits behind a `#`
//! in its text, so that the receiver can compute its delay.

use std::io::Write as _;

use streamgauge::clock::Clock;

/// Nanoseconds on the line that upstream and client share.
pub(crate) fn now() -> u64 {
    Clock::Monotonic.now().as_nanos()
}

/// The course of one reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    /// Events that carry text. A reply of one event has no role event before it and no `[DONE]` behind it.
    pub(crate) events: usize,
    /// Nanoseconds from one event to the next; 0 hands the whole reply to the socket at once.
    pub(crate) gap: u64,
    /// Closes the connection up to [`HANG_UP`] after the last byte, unannounced, as llama-server does.
    pub(crate) hangs_up: bool,
    /// The part that differs from event to event.
    pub(crate) varies: Varies,
}

/// The difference between one event of a reply and the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Varies {
    /// The text.
    Text,
    /// Text and a number that means nothing.
    Number,
    /// Text and a running usage, as vLLM sends it with `continuous_usage_stats`.
    Usage,
    /// Text and the log probability of its token, with the most probable one beside it.
    LogProbabilities,
}

/// The longest wait before an upstream that hangs up does so, in nanoseconds.
pub(crate) const HANG_UP: u64 = 200_000;

/// The words that the events carry in turn: of different lengths, as tokens are.
const WORDS: [&str; 12] =
    [" the", " a", " licence", "ing", " Section", ",", " perm", "issions", " of", " distribution", ".", " work"];

/// Digits of the stamp inside an event.
const DIGITS: usize = 16;

/// One event in its HTTP chunk.
#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    /// Where the stamp's digits begin.
    stamp_at: usize,
}

impl Chunk {
    fn new(delta: &str, finish: &str) -> Self {
        Self::with(delta, finish, "null", "")
    }

    /// An event of text with what varies in the `index`-th.
    fn varying(word: &str, varies: Varies, index: usize) -> Self {
        let delta = format!("\"content\":\"{word} #{}\"", "0".repeat(DIGITS));
        match varies {
            Varies::Text => Self::new(&delta, "null"),
            Varies::Number => Self::with(&delta, "null", "null", &format!(",\"sequence\":{index}")),
            Varies::Usage => {
                let (total, output) = (index + 31, index + 1);
                let counts = format!("\"prompt_tokens\":30,\"total_tokens\":{total},\"completion_tokens\":{output}");
                Self::with(&delta, "null", "null", &format!(",\"usage\":{{{counts}}}"))
            }
            Varies::LogProbabilities => {
                let bytes: Vec<_> = word.bytes().map(|byte| byte.to_string()).collect();
                let logprob = (index * 7_919 % 1_000_000) as f64 / -1e6;
                let token = format!("\"token\":\"{word}\",\"logprob\":{logprob:?},\"bytes\":[{}]", bytes.join(","));
                let logprobs = format!("{{\"content\":[{{{token},\"top_logprobs\":[{{{token}}}]}}]}}");
                Self::with(&delta, "null", &logprobs, "")
            }
        }
    }

    fn with(delta: &str, finish: &str, logprobs: &str, rest: &str) -> Self {
        let event = format!(
            "data: {{\"id\":\"chatcmpl-90902278b0c7377e\",\"object\":\"chat.completion.chunk\",\"created\":1795221312,\
             \"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\
             \"logprobs\":{logprobs},\"finish_reason\":{finish},\"token_ids\":null}}],\
             \"system_fingerprint\":\"vllm-0.32.0-84145912\"{rest}}}\n\n"
        );
        let bytes = chunk(&event);
        let stamp_at = bytes.iter().position(|b| *b == b'#').map_or(bytes.len(), |at| at + 1);
        Self { bytes, stamp_at }
    }

    fn text(word: &str, role: &str, finish: &str) -> Self {
        Self::new(&format!("{role}\"content\":\"{word} #{}\"", "0".repeat(DIGITS)), finish)
    }

    /// Bytes inside the HTTP chunk.
    fn payload(&self) -> usize {
        let line = self.bytes.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
        self.bytes.len() - line - 2
    }
}

/// The bytes of one reply, and what a client that lost nothing has counted at its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) script: Script,
    /// Every event of the whole reply, the role event and `[DONE]` among them.
    pub(crate) all_events: usize,
    /// Bytes of the body.
    pub(crate) payload: usize,
    /// The whole reply, its stamps zero: for scripts without a pace.
    pub(crate) whole: Vec<u8>,
    /// The head and the role event.
    pub(crate) opening: Vec<u8>,
    contents: Vec<Chunk>,
    last: Chunk,
    closing: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(script: Script) -> Self {
        let single = script.events == 1;
        let mut opening = b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 00:51:04 GMT\r\nserver: uvicorn\r\n\
            content-type: text/event-stream; charset=utf-8\r\nx-request-id: 62c3020d-d162-4310-a73c-363a126ba4d0\r\n\
            Transfer-Encoding: chunked\r\n\r\n"
            .to_vec();
        let role = Chunk::new("\"role\":\"assistant\",\"content\":\"\"", "null");
        let mut payload = 0;
        let mut closing = Vec::new();
        if !single {
            opening.extend_from_slice(&role.bytes);
            payload += role.payload();
            let done = "data: [DONE]\n\n";
            closing.extend_from_slice(chunk(done).as_slice());
            payload += done.len();
        }
        closing.extend_from_slice(b"0\r\n\r\n");
        let different = if script.varies == Varies::Text { WORDS.len() } else { script.events };
        let words = WORDS.iter().cycle().take(different).enumerate();
        let contents: Vec<Chunk> = words.map(|(index, word)| Chunk::varying(word, script.varies, index)).collect();
        let last = Chunk::text(" end", if single { "\"role\":\"assistant\"," } else { "" }, "\"stop\"");
        let all_events = if single { 1 } else { script.events + 2 };
        let mut reply = Self { script, all_events, payload, whole: opening.clone(), opening, contents, last, closing };
        for index in 0..script.events {
            reply.payload += reply.chunk(index).payload();
            let bytes = reply.chunk(index).bytes.clone();
            reply.whole.extend_from_slice(&bytes);
        }
        reply.whole.extend_from_slice(&reply.closing);
        reply
    }

    /// Puts event `index` into `out`, stamped; behind the last one stands the end of the reply.
    pub(crate) fn stamped(&self, index: usize, at: u64, out: &mut Vec<u8>) {
        let chunk = self.chunk(index);
        out.extend_from_slice(&chunk.bytes[..chunk.stamp_at]);
        // Writing into a vector does not fail.
        let _written = write!(out, "{at:016x}").is_ok();
        out.extend_from_slice(&chunk.bytes[chunk.stamp_at + DIGITS..]);
        if index + 1 == self.script.events {
            out.extend_from_slice(&self.closing);
        }
    }

    fn chunk(&self, index: usize) -> &Chunk {
        if index + 1 == self.script.events { &self.last } else { &self.contents[index % self.contents.len()] }
    }
}

/// When an event was sent; `None` for events without text (role, `[DONE]`).
pub(crate) fn stamp(event: &[u8]) -> Option<u64> {
    let at = memchr::memchr(b'#', event)? + 1;
    let digits = event.get(at..at + DIGITS)?;
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u64::from((*digit as char).to_digit(16)?)))
}

/// A chat request of about 300 bytes of JSON, for one of any number of models.
pub(crate) fn request(host: &str, model: usize) -> Vec<u8> {
    let body = request_body(model);
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nUser-Agent: side-by-side\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The JSON of [`request`].
pub(crate) fn request_body(model: usize) -> String {
    let model = if model == 0 { String::new() } else { format!("-{model}") };
    let rest = "\",\"stream\":true,\"temperature\":0.7,\"max_tokens\":1024,\
        \"messages\":[{\"role\":\"system\",\"content\":\"You are a helpful assistant who answers in short sentences.\"},\
        {\"role\":\"user\",\"content\":\"What does a stream gauge measure, and why is it left in the river?\"}]}";
    format!("{{\"model\":\"meta-llama/Llama-3.1-8B-Instruct{model}{rest}")
}

fn chunk(payload: &str) -> Vec<u8> {
    format!("{:x}\r\n{payload}\r\n", payload.len()).into_bytes()
}
