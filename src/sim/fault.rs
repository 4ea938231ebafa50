//! Faults injected on request through the request header [`HEADER`].

use thiserror::Error;

use crate::engine::Stall;
use crate::measure::time::Gap;

pub(super) const HEADER: &str = "x-sim-fault";

/// The grammar, as shown in the response to an invalid header.
const GRAMMAR: &str = "a comma-separated list of stall=DURATION@TOKEN, reset@TOKEN, close@TOKEN, error@TOKEN, \
                       slow-headers=DURATION, status=400..599 and hangup, with durations such as 250ms or 2s";

/// The longest accepted pause.
const MAX_PAUSE: Gap = Gap::from_millis(3_600_000);

/// How a reply is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutKind {
    /// TCP RST.
    Reset,
    /// FIN in the middle of the body.
    Close,
    /// An error event, then `[DONE]`; a reply without streaming becomes a 500.
    Error,
}

/// Cuts a reply off after this many tokens of all choices together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamCut {
    pub(super) after: u32,
    pub(super) kind: CutKind,
}

/// Faults to inject into one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    pub(super) stall: Option<Stall>,
    pub(super) cut: Option<StreamCut>,
    pub(super) slow_headers: Option<Gap>,
    pub(super) status: Option<u16>,
    pub(super) hangup: bool,
}

/// An invalid part of the header.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{HEADER}: cannot read `{part}`: {why}; expected {GRAMMAR}")]
pub(super) struct FaultError {
    part: String,
    why: &'static str,
}

impl Faults {
    /// Parses the header's value. Skips empty parts; rejects duplicates.
    pub(super) fn parse(text: &str) -> Result<Self, FaultError> {
        let mut faults = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let fail = |why| FaultError { part: part.chars().take(64).collect(), why };
            faults.part(part).map_err(fail)?;
        }
        Ok(faults)
    }

    fn part(&mut self, part: &str) -> Result<(), &'static str> {
        if let Some(rest) = part.strip_prefix("stall=") {
            let (gap, before) = rest.split_once('@').ok_or("no @TOKEN")?;
            let before = token(before)?;
            if before == 0 {
                return Err("tokens are counted from 1");
            }
            once(&mut self.stall, Stall { before, gap: pause(gap)? })
        } else if let Some(gap) = part.strip_prefix("slow-headers=") {
            once(&mut self.slow_headers, pause(gap)?)
        } else if let Some(code) = part.strip_prefix("status=") {
            let code = code.parse().ok().filter(|code| (400..600).contains(code));
            once(&mut self.status, code.ok_or("no status from 400 to 599")?)
        } else if let Some((kind, after)) = part.split_once('@') {
            let kind = match kind {
                "reset" => CutKind::Reset,
                "close" => CutKind::Close,
                "error" => CutKind::Error,
                _ => return Err("no such fault"),
            };
            once(&mut self.cut, StreamCut { after: token(after)?, kind })
        } else if part == "hangup" {
            self.hangup = true;
            Ok(())
        } else {
            Err("no such fault")
        }
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err("only one of its kind is possible"),
    }
}

fn token(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "no number of a token")
}

fn pause(text: &str) -> Result<Gap, &'static str> {
    let gap = humantime::parse_duration(text).map(Gap::from).map_err(|_| "no duration")?;
    if gap > MAX_PAUSE { Err("longer than an hour") } else { Ok(gap) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_understood() {
        let all = Faults::parse("stall=2s@10, reset@5, slow-headers=1s, status=503, hangup,").unwrap();
        let stall = Stall { before: 10, gap: Gap::from_millis(2_000) };
        assert_eq!(all.stall, Some(stall));
        assert_eq!(all.cut, Some(StreamCut { after: 5, kind: CutKind::Reset }));
        assert_eq!(all.slow_headers, Some(Gap::from_millis(1_000)));
        assert_eq!(all.status, Some(503));
        assert!(all.hangup);
        assert_eq!(Faults::parse("error@0").unwrap().cut, Some(StreamCut { after: 0, kind: CutKind::Error }));
        assert_eq!(Faults::parse("close@3").unwrap().cut, Some(StreamCut { after: 3, kind: CutKind::Close }));
        assert_eq!(Faults::parse(""), Ok(Faults::default()));
    }

    #[test]
    fn what_is_wrong_is_named_together_with_the_grammar() {
        for bad in [
            "explode",
            "stall=2s",
            "stall=soon@3",
            "stall=2s@0",
            "stall=2h@3",
            "reset@",
            "reset@-1",
            "reset@4294967296",
            "status=200",
            "status=x",
            "reset@1,close@2",
            "boom@3",
            "stall=9999999999999999999s@1",
        ] {
            let error = Faults::parse(bad).unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains(bad.rsplit(',').next().unwrap()) && message.contains("stall=DURATION@TOKEN"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_hostile_header_is_not_echoed_at_length() {
        let error = Faults::parse(&"x".repeat(10_000)).unwrap_err();
        assert_eq!(error.part.len(), 64);
    }
}
