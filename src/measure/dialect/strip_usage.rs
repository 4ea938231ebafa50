//! Hiding from a client the usage that was asked for in its stead ([`AskUsage`](super::ask_usage::AskUsage)): the event
//! that reports it is taken out of the reply, and running usage out of every event.

use std::ops::Range;

use super::inject_usage::InjectedUsage;
use crate::measure::framing::MAX_EVENT;
use crate::measure::json_walker::{FieldState, JsonWalker};

/// Edits one reply. See the module.
///
/// Holds an unfinished event back until it is whole: no client makes anything of it before that either.
#[derive(Debug)]
pub struct StripUsage {
    asked: InjectedUsage,
    /// The beginning of an event.
    held: Vec<u8>,
    /// Where its last line begins: what comes before is not looked at again.
    line: usize,
    /// An event was too large to be looked at; everything goes through from there on.
    given_up: bool,
}

impl StripUsage {
    /// Hides what was asked for.
    pub fn new(asked: InjectedUsage) -> Self {
        Self { asked, held: Vec::new(), line: 0, given_up: false }
    }

    /// Edits what one read brought: `payload` is replaced by what the client may see. `last` if the body ends here.
    pub fn edit(&mut self, payload: &mut Vec<u8>, last: bool) {
        if self.given_up {
            return;
        }
        let mut line = 0;
        if !self.held.is_empty() {
            self.held.append(payload);
            line = std::mem::take(&mut self.line);
            if let (Err(begun), false) = (block(&self.held, line, last), last || self.held.len() > MAX_EVENT) {
                self.line = begun;
                return;
            }
            std::mem::swap(&mut self.held, payload);
        }
        let (mut from, mut kept) = (0, 0);
        let begun = loop {
            let len = match block(&payload[from..], std::mem::take(&mut line), last) {
                Ok(len) => len,
                Err(begun) => break begun,
            };
            let shown = self.shown(&payload[from..from + len]);
            for piece in shown.into_iter().flatten() {
                let piece = from + piece.start..from + piece.end;
                let len = piece.len();
                payload.copy_within(piece, kept);
                kept += len;
            }
            from += len;
        };
        let rest = payload.len() - from;
        if last || rest > MAX_EVENT {
            (self.given_up, self.held) = (true, Vec::new());
            payload.copy_within(from.., kept);
            payload.truncate(kept + rest);
        } else {
            self.held.extend_from_slice(&payload[from..]);
            self.line = begun;
            payload.truncate(kept);
        }
    }

    /// The pieces of an event, its blank line included, that the client may see.
    fn shown(&self, event: &[u8]) -> [Option<Range<usize>>; 2] {
        let whole = [Some(0..event.len()), None];
        let Some((data, at)) = data_of(event) else { return whole };
        if memchr::memmem::find(data, b"\"usage\"").is_none() {
            return whole;
        }
        match UsageEvent::read(data) {
            Some(UsageEvent { alone: true, .. }) => {
                if self.asked.usage {
                    [None, None]
                } else {
                    whole
                }
            }
            Some(UsageEvent { member: Some(member), .. }) if self.asked.continuous => {
                [Some(0..at + member.start), Some(at + member.end..event.len())]
            }
            _ => whole,
        }
    }
}

/// The usage in an event.
struct UsageEvent {
    /// It has no choices: it is there for the usage alone.
    alone: bool,
    /// Where the member stands, with one comma.
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
        // With the comma before it, or where it comes first with the one after.
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

/// The length of the first event in `bytes`, its blank line included. Lines before `line`, where one begins, are known
/// not to end it. At the end of a body a CR cannot be followed by its LF any more.
///
/// # Errors
/// Where the event is not whole: the beginning of its last line, from which to look on when more has come.
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

/// The value of an event's `data` and where it stands; `None` unless it has exactly one such line.
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
