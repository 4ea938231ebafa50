//! Removes from a reply the usage that the proxy requested ([`InjectUsage`](super::inject_usage::InjectUsage)). The
//! final usage event is dropped, and continuous usage is cut out of every event.

use std::ops::Range;

use super::inject_usage::InjectedUsage;
use crate::measure::framing::MAX_EVENT;
use crate::measure::json_walker::{FieldState, JsonWalker};

/// Edits one reply as it streams through.
///
/// Holds back an incomplete event until it is complete; no client can use it earlier anyway.
#[derive(Debug)]
pub struct StripUsage {
    injected: InjectedUsage,
    /// The start of an incomplete event.
    held: Vec<u8>,
    /// Start of the incomplete event's last line; earlier bytes are not searched again.
    line: usize,
    /// An event was too large, so the rest of the stream passes unchanged.
    given_up: bool,
}

impl StripUsage {
    /// Creates an editor that removes what `injected` added.
    pub fn new(injected: InjectedUsage) -> Self {
        Self { injected, held: Vec::new(), line: 0, given_up: false }
    }

    /// Replaces `payload`, the bytes of one read, by the bytes for the client. `last` marks the end of the body.
    pub fn edit(&mut self, payload: &mut Vec<u8>, last: bool) {
        if self.given_up {
            return;
        }
        let mut line = 0;
        if !self.held.is_empty() {
            self.held.append(payload);
            line = std::mem::take(&mut self.line);
            if let (Err(line_start), false) = (block(&self.held, line, last), last || self.held.len() > MAX_EVENT) {
                self.line = line_start;
                return;
            }
            std::mem::swap(&mut self.held, payload);
        }
        let (mut from, mut to) = (0, 0);
        let line_start = loop {
            let len = match block(&payload[from..], std::mem::take(&mut line), last) {
                Ok(len) => len,
                Err(line_start) => break line_start,
            };
            let shown = self.shown(&payload[from..from + len]);
            for piece in shown.into_iter().flatten() {
                let piece = from + piece.start..from + piece.end;
                let len = piece.len();
                payload.copy_within(piece, to);
                to += len;
            }
            from += len;
        };
        let rest = payload.len() - from;
        if last || rest > MAX_EVENT {
            (self.given_up, self.held) = (true, Vec::new());
            payload.copy_within(from.., to);
            payload.truncate(to + rest);
        } else {
            self.held.extend_from_slice(&payload[from..]);
            self.line = line_start;
            payload.truncate(to);
        }
    }

    /// The ranges of an event (including its blank line) to send to the client.
    fn shown(&self, event: &[u8]) -> [Option<Range<usize>>; 2] {
        let whole = [Some(0..event.len()), None];
        let Some((data, at)) = data_of(event) else { return whole };
        if memchr::memmem::find(data, b"\"usage\"").is_none() {
            return whole;
        }
        match UsageEvent::read(data) {
            Some(UsageEvent { alone: true, .. }) => {
                if self.injected.usage {
                    [None, None]
                } else {
                    whole
                }
            }
            Some(UsageEvent { member: Some(member), .. }) if self.injected.continuous => {
                [Some(0..at + member.start), Some(at + member.end..event.len())]
            }
            _ => whole,
        }
    }
}

struct UsageEvent {
    /// The event has no choices: its only content is the usage.
    alone: bool,
    /// Range of the `usage` member with one comma.
    member: Option<Range<usize>>,
}

impl UsageEvent {
    fn read(data: &[u8]) -> Option<Self> {
        let mut walk = JsonWalker::new(data)?;
        let (mut no_choices, mut reports, mut member, mut before) = (false, false, None, 0);
        walk.object(|key, walk| {
            match key {
                b"choices" => no_choices = walk.length()? == Some(0),
                b"usage" => {
                    reports = walk.shown()? == FieldState::Other;
                    member = Some(before..walk.position());
                }
                _ => walk.skip()?,
            }
            before = walk.position();
            Some(())
        })?;
        walk.end()?;
        // Includes the preceding comma, or the following one if the member is first.
        let member = member.filter(|_| reports).map(|member: Range<usize>| match member.start {
            0 => {
                let open = memchr::memchr(b'{', data).map_or(0, |at| at + 1);
                let comma = data[member.end..].starts_with(b",");
                open..member.end + usize::from(comma)
            }
            _ => member,
        });
        Some(Self { alone: no_choices && reports, member })
    }
}

/// Length of the first event in `bytes`, including its blank line. Lines before `line`, a line start, are known not
/// to end it. At the end of a body no LF can follow a CR.
///
/// # Errors
/// Returns the start of the last line if the event is incomplete; the next search continues there.
fn block(bytes: &[u8], mut line: usize, last: bool) -> Result<usize, usize> {
    loop {
        let end = line + memchr::memchr2(b'\n', b'\r', &bytes[line..]).ok_or(line)?;
        let next = match (bytes[end], bytes.get(end + 1)) {
            (b'\r', Some(b'\n')) => end + 2,
            (b'\r', None) if !last => return Err(line),
            _ => end + 1,
        };
        if end == line {
            return Ok(next);
        }
        line = next;
    }
}

/// The value of an event's `data` and its position; `None` unless the event has exactly one such line.
fn data_of(event: &[u8]) -> Option<(&[u8], usize)> {
    let (mut found, mut at) = (None, 0);
    for line in event.split(|byte| matches!(byte, b'\n' | b'\r')) {
        if let Some(value) = line.strip_prefix(b"data:") {
            if found.is_some() {
                return None;
            }
            found = Some((value, at + 5));
        }
        at += line.len() + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: InjectedUsage = InjectedUsage { usage: true, continuous: false };
    const BOTH: InjectedUsage = InjectedUsage { usage: true, continuous: true };

    fn stripped(what: InjectedUsage, reads: &[&[u8]]) -> String {
        let (mut hide, mut out) = (StripUsage::new(what), Vec::new());
        for (at, read) in reads.iter().enumerate() {
            let mut payload = read.to_vec();
            hide.edit(&mut payload, at + 1 == reads.len());
            out.extend(payload);
        }
        String::from_utf8(out).unwrap()
    }

    fn hidden(what: InjectedUsage, body: &str) -> String {
        let body = body.as_bytes();
        let whole = stripped(what, &[body]);
        for cut in 0..=body.len() {
            assert_eq!(stripped(what, &[&body[..cut], &body[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(stripped(what, &body.chunks(1).collect::<Vec<_>>()), whole);
        whole
    }

    const TOKEN: &str = r#"data: {"choices":[{"delta":{"content":"\"usage\""}}]}"#;
    const FINAL: &str = r#"data: {"id":"a","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;

    #[test]
    fn the_usage_event_is_taken_out_and_all_else_stays() {
        for end in ["\n", "\r\n", "\r"] {
            let body = |lines: &[&str]| lines.iter().map(|line| format!("{line}{end}{end}")).collect::<String>();
            let unasked = r#"data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}"#;
            let azure = r#"data: {"choices":[],"prompt_filter_results":[],"usage":null}"#;
            let seen = [": ping", TOKEN, unasked, azure, FINAL, "data: [DONE]"];
            let expected = [": ping", TOKEN, unasked, azure, "data: [DONE]"];
            assert_eq!(hidden(USAGE, &body(&seen)), body(&expected));
        }
        assert_eq!(hidden(USAGE, &format!("{TOKEN}\n\ndata: [DO")), format!("{TOKEN}\n\ndata: [DO"));
    }

    #[test]
    fn running_usage_is_cut_out_of_every_event() {
        let seen = r#"data: {"id":"a","choices":[{"index":0}] , "usage":{"completion_tokens":1},"x":{"usage":{}}}

data:{"usage":{"completion_tokens":2},"choices":[{"index":0}]}

"#;
        let expected = r#"data: {"id":"a","choices":[{"index":0}] ,"x":{"usage":{}}}

data:{"choices":[{"index":0}]}

"#;
        assert_eq!(hidden(BOTH, seen), expected);
        assert_eq!(hidden(BOTH, &format!("{FINAL}\n\n")), "");
        let only_running = InjectedUsage { usage: false, continuous: true };
        assert_eq!(hidden(only_running, &format!("{FINAL}\n\n")), format!("{FINAL}\n\n"));
    }

    #[test]
    fn an_endless_event_goes_through() {
        let mut hide = StripUsage::new(USAGE);
        let mut seen = 0;
        for _ in 0..40 {
            let mut payload = vec![b'x'; MAX_EVENT / 16];
            hide.edit(&mut payload, false);
            seen += payload.len();
        }
        assert_eq!(seen, 40 * (MAX_EVENT / 16));
        assert_eq!(hide.held.capacity(), 0);
    }
}
