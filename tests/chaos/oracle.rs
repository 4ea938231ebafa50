//! Judges each exchange by its plan: every byte, and how the exchange ended.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::listening::Listening;
use crate::plan::{ClientFault, Plan, ServerFault};
use crate::reply::Content;

/// Failures that are kept as text; further ones are only counted.
const MAX_REASONS: usize = 20;

/// How an exchange ended, as the client saw it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Complete by its framing.
    Whole,
    /// With an error, or incomplete by its framing.
    Broken(String),
    /// The client left, as planned.
    Left,
}

/// An exchange as the client saw it.
#[derive(Debug)]
pub(crate) struct Observed {
    /// 0 without a reply.
    pub(crate) status: u16,
    /// The header by which the proxy marks its own errors.
    pub(crate) proxy_error: Option<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) end: End,
    /// True if the connection had served a request before.
    pub(crate) reused: bool,
}

/// Outcomes of an exchange that followed its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Whole,
    LeftByClient,
    BrokenByServer,
    /// The server did not answer, or refused the connection, so the proxy did.
    AnsweredByProxy,
}

/// A failure of the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    WrongBytes(u64, String),
    Broken(String),
}

/// The exchange's outcome, or its departure from the plan. `is_refused` is true if the server may have refused a
/// connection meanwhile.
pub(crate) fn judge(plan: &Plan, seen: &Observed, is_refused: bool) -> Result<Outcome, Failure> {
    let described = || {
        let Observed { status, proxy_error, end, reused, .. } = seen;
        let (got, all) = (seen.body.len(), plan.reply.bytes.len());
        format!("status {status}, {proxy_error:?}, {got} of {all} bytes, {end:?}, reused {reused}")
    };
    let broken = |expected: &str| Err(Failure::Broken(format!("expected {expected}; got {}", described())));
    if plan.client == ClientFault::Garbage {
        return match seen.status {
            0 | 400..500 => Ok(Outcome::LeftByClient),
            _ => broken("a rejection"),
        };
    }
    if seen.proxy_error.is_some() {
        let is_upstreams = seen.proxy_error.as_ref().is_some_and(|error| error.starts_with("upstream"));
        let may_answer = plan.server.is_silent() || plan.may_be_refused() || is_refused;
        return match seen.status == 502 && is_upstreams && may_answer {
            true => Ok(Outcome::AnsweredByProxy),
            false => broken("the server's reply"),
        };
    }
    let wrong = seen.body.iter().zip(&plan.reply.bytes).filter(|(seen, planned)| seen != planned).count();
    let surplus = seen.body.len().saturating_sub(plan.reply.bytes.len());
    if wrong + surplus > 0 {
        let first = seen.body.iter().zip(&plan.reply.bytes).position(|(seen, planned)| seen != planned);
        let place = first.unwrap_or(plan.reply.bytes.len());
        return Err(Failure::WrongBytes((wrong + surplus) as u64, format!("byte {place} is wrong; {}", described())));
    }
    match &seen.end {
        End::Left if plan.client.leaves() => Ok(Outcome::LeftByClient),
        End::Left => broken("a client that stays"),
        End::Broken(_) if plan.server.breaks() => Ok(Outcome::BrokenByServer),
        _ if plan.server.breaks() => broken("a broken reply"),
        End::Whole if seen.status == plan.status && seen.body.len() == plan.reply.bytes.len() => Ok(Outcome::Whole),
        _ => broken("the whole reply"),
    }
}

/// Counts of all exchanges; clients and servers share it.
#[derive(Default)]
pub(crate) struct Oracle {
    counts: Mutex<Counts>,
    /// Whether the servers listen.
    pub(crate) listening: Listening,
    /// Exchanges that are open now.
    pub(crate) open: AtomicU64,
    /// Requests that a client sent again, because its kept connection had closed before any byte of a reply. Every
    /// client has to expect that (RFC 9112, section 9.5).
    pub(crate) closed: AtomicU64,
    /// Requests that a client sent again after a GOAWAY below their ids.
    pub(crate) sent_again: AtomicU64,
}

/// The report's numbers.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    pub(crate) outcomes: BTreeMap<(&'static str, Outcome), u64>,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) wrong_bytes: u64,
    pub(crate) broken: u64,
    pub(crate) reasons: Vec<String>,
    /// Bytes of replies that were compared with their plan.
    pub(crate) bytes: u64,
    began: Option<Instant>,
}

impl Oracle {
    /// Counts the exchange of a client of this kind.
    pub(crate) fn count(&self, kind: &'static str, plan: &Plan, seen: &Observed, began: Instant) {
        let judged = judge(plan, seen, self.listening.has_refused_since(began));
        if judged == Ok(Outcome::AnsweredByProxy) && judge(plan, seen, false).is_err() {
            self.listening.count_answer();
        }
        let mut counts = self.counts.lock().unwrap();
        counts.began.get_or_insert_with(Instant::now);
        counts.bytes += seen.body.len() as u64;
        if plan.reply.content != Content::Events {
            *counts.faults.entry(format!("reply {:?}", plan.reply.content)).or_default() += 1;
        }
        if plan.client != ClientFault::None {
            *counts.faults.entry(format!("client {:?}", plan.client)).or_default() += 1;
        }
        if plan.server != ServerFault::None {
            *counts.faults.entry(format!("server {:?}", plan.server)).or_default() += 1;
        }
        match judged {
            Ok(outcome) => *counts.outcomes.entry((kind, outcome)).or_default() += 1,
            Err(failure) => counts.fail(kind, plan, failure),
        }
    }

    /// Counts a fault that the server saw.
    pub(crate) fn fail(&self, kind: &'static str, plan: &Plan, failure: Failure) {
        self.counts.lock().unwrap().fail(kind, plan, failure);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }

    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::SeqCst)
    }
}

impl Counts {
    fn fail(&mut self, kind: &str, plan: &Plan, failure: Failure) {
        let reason = match failure {
            Failure::WrongBytes(number, reason) => {
                self.wrong_bytes += number;
                reason
            }
            Failure::Broken(reason) => {
                self.broken += 1;
                reason
            }
        };
        if self.reasons.len() < MAX_REASONS {
            let Plan { seed, server, client, framing, .. } = plan;
            let size = plan.request.len();
            let faults = format!("server {server:?}, client {client:?}, {framing:?}, request of {size} bytes");
            let at = self.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
            self.reasons.push(format!("at {at:.1} s, request {seed:x}, {kind}, {faults}: {reason}"));
        }
    }
}
