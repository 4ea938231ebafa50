//! The last requests, for the live page and `/api/state`: a ring of ids, times and counts, without text.
//!
//! The control thread adds a request when it counts it; the forwarding threads are not involved.

use std::collections::VecDeque;
use std::sync::Arc;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt as _;

use crate::export::registry::models::escape_invisible;
use crate::export::registry::snapshot::TimePoint;
use crate::export::registry::thread_gauges::known_method;
use crate::export::trace_context::{RequestTrace, TraceId};
use crate::measure::failure::FailureOrigin;
use crate::measure::record::{Quality, RecordTimes, RequestRecord, TokenCount, UnreadReason, Usage};
use crate::measure::slo::{RequestVerdict, Slos};
use crate::measure::time::Gap;

/// Maximum number of requests. They take at most 400 KB, with ids of full length.
const MAX_RECENT_REQUESTS: usize = 500;

/// Log target of access log lines.
pub const ACCESS_LOG_TARGET: &str = "streamgauge::access";

/// Metadata of a recent request. It contains no text of prompts or responses.
#[derive(Clone, Debug)]
pub(in crate::export) struct RecentRequest {
    /// End in nanoseconds since 1970.
    pub(in crate::export) unix: u64,
    pub(in crate::export) trace_id: Option<TraceId>,
    /// The server's id of the response, cut at 64 bytes.
    pub(in crate::export) response_id: Option<Box<str>>,
    /// Exported model name at that time.
    pub(in crate::export) model: Option<Arc<str>>,
    pub(in crate::export) route: &'static str,
    pub(in crate::export) status: Option<u16>,
    /// `true` if the proxy produced the response itself.
    pub(in crate::export) local_reply: bool,
    /// Party at fault for a failure.
    pub(in crate::export) fault: Option<&'static str>,
    pub(in crate::export) outcome: &'static str,
    pub(in crate::export) times: RecordTimes,
    pub(in crate::export) ttft: Option<Gap>,
    pub(in crate::export) tpot: Option<Gap>,
    pub(in crate::export) longest_gap: Option<Gap>,
    pub(in crate::export) duration: Gap,
    pub(in crate::export) output_tokens: Option<TokenCount>,
    pub(in crate::export) usage: Usage,
    pub(in crate::export) engine_prefill: Option<Gap>,
    slos: Arc<Slos>,
    /// Indexes of the SLOs that the request missed.
    missed: Box<[usize]>,
    /// Reliability of the measured values.
    pub(in crate::export) quality: Quality,
}

impl RecentRequest {
    pub(super) fn new(
        record: &RequestRecord,
        trace: Option<&RequestTrace>,
        model: Option<Arc<str>>,
        moment: TimePoint,
    ) -> Self {
        let missed = record.slos.verdicts(record).filter(|(_, verdict)| matches!(verdict, RequestVerdict::Missed(_)));
        let index = |slo| record.slos.iter().position(|other| std::ptr::eq(other, slo));
        Self {
            unix: moment.unix_of(record.times.ended),
            trace_id: trace.map(|trace| trace.trace_id),
            response_id: record.response_id.clone(),
            model,
            route: record.shape.route(),
            status: record.status,
            local_reply: record.local_reply.is_some(),
            fault: record.failure_origin().map(FailureOrigin::name),
            outcome: record.outcome.name(),
            times: record.times,
            ttft: record.ttft(),
            tpot: record.tpot(),
            longest_gap: record.longest_gap,
            duration: record.duration(),
            output_tokens: record.output_tokens,
            usage: record.usage,
            engine_prefill: record.engine_prefill,
            missed: missed.filter_map(|(slo, _)| index(slo)).collect(),
            slos: Arc::clone(&record.slos),
            quality: record.quality,
        }
    }

    /// Returns the names of the SLOs that the request missed.
    pub(in crate::export) fn missed_slos(&self) -> impl Iterator<Item = &str> {
        self.slos.iter().enumerate().filter(|(at, _)| self.missed.contains(at)).map(|(_, slo)| slo.name())
    }

    /// Writes the access log line, whose exported record belongs to the SERVER span.
    pub(super) fn log(&self, record: &RequestRecord, trace: Option<&RequestTrace>) {
        let _span = trace.map(|trace| Context::new().with_remote_span_context(trace.server_context()).attach());
        let millis = |gap: Option<Gap>| gap.map(Gap::as_millis);
        tracing::info!(
            target: ACCESS_LOG_TARGET,
            trace_id = self.trace_id.map(tracing::field::display),
            response_id = self.response_id.as_deref().map(escape_invisible).as_deref(),
            method = known_method(&record.shape.method),
            route = self.route,
            model = self.model.as_deref(),
            status = self.status,
            // Absent if the server answered.
            answered_by = self.local_reply.then_some("proxy"),
            outcome = self.outcome,
            fault = self.fault,
            ttft_ms = millis(self.ttft),
            tpot_ms = millis(self.tpot),
            duration_ms = self.duration.as_millis(),
            output_tokens = self.output_tokens.map(|count| count.tokens),
            tokens_from = self.output_tokens.map(|count| count.source.name()),
            // Absent if there was no problem.
            malformed_events = Some(self.quality.malformed_events).filter(|events| *events > 0),
            unread = self.quality.unread.map(UnreadReason::name),
            request_unread = self.quality.request_unread.map(UnreadReason::name),
            write_blocked_ms = millis(Some(self.quality.write_blocked).filter(|blocked| *blocked > Gap::ZERO)),
            request_bytes = record.request_bytes,
            response_bytes = record.response_bytes,
            "request"
        );
    }
}

/// The last requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct RecentRequests {
    requests: VecDeque<RecentRequest>,
    /// Number of requests that were ever added.
    added: u64,
}

impl RecentRequests {
    pub(super) fn push(&mut self, request: RecentRequest) {
        if self.requests.len() == MAX_RECENT_REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back(request);
        self.added += 1;
    }

    /// Returns the requests after the first `after` ever added; all of them without a number, or if one of those after it
    /// is gone.
    pub(super) fn since(&self, after: Option<u64>) -> RecentSince {
        let oldest = self.added - self.requests.len() as u64;
        let known = after.filter(|after| (oldest..=self.added).contains(after));
        let new = usize::try_from(self.added - known.unwrap_or(oldest)).unwrap_or(usize::MAX);
        RecentSince { requests: self.latest(new), added: self.added, whole: known.is_none() }
    }

    /// Returns at most this many requests, latest first.
    pub(super) fn latest(&self, most: usize) -> Vec<RecentRequest> {
        self.requests.iter().rev().take(most).cloned().collect()
    }
}

/// Recent requests after a position.
#[derive(Debug)]
pub(in crate::export) struct RecentSince {
    /// Latest first.
    pub(in crate::export) requests: Vec<RecentRequest>,
    /// Number of requests that were ever added: the next position.
    pub(in crate::export) added: u64,
    /// These are all requests that are kept.
    pub(in crate::export) whole: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::fixtures::{NOW, record};

    fn recent(record: &RequestRecord) -> RecentRequest {
        RecentRequest::new(record, None, None, NOW)
    }

    #[test]
    fn the_ring_keeps_the_latest_and_returns_those_after_a_cursor() {
        let mut ring = RecentRequests::default();
        assert!(ring.since(None).requests.is_empty());
        for status in 0..MAX_RECENT_REQUESTS as u16 + 7 {
            ring.push(recent(&RequestRecord { status: Some(status), ..record() }));
        }
        let statuses = |after| {
            let reply = ring.since(after);
            let statuses: Vec<u16> = reply.requests.iter().map(|recent| recent.status.unwrap()).collect();
            (statuses, reply.whole)
        };
        let (all, whole) = statuses(None);
        assert_eq!((all.len(), all[0], all[MAX_RECENT_REQUESTS - 1], whole), (500, 506, 7, true));
        assert_eq!(statuses(Some(505)), (vec![506, 505], false));
        assert_eq!((statuses(Some(507)), ring.since(None).added), ((vec![], false), 507));
        assert_eq!(statuses(Some(6)), (all.clone(), true), "one of them is gone");
        assert_eq!(statuses(Some(508)), (all, true), "a cursor of the future");
    }

    #[test]
    fn a_request_names_the_slos_that_it_missed() {
        let rules = ["met: ttft<=300ms", "slow: ttft<=100ms", "other[model=huge]: ttft<=1ms", "late: e2e<=1ms"];
        let slos = Arc::new(Slos::new(rules.map(|rule| rule.parse().unwrap()).to_vec()).unwrap());
        let judged = recent(&RequestRecord { slos, ..record() });
        assert_eq!(judged.missed_slos().collect::<Vec<_>>(), ["slow", "late"]);
    }
}
