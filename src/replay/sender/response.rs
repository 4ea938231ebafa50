//! Reads a response: its head, its body, and the gaps between its tokens.

use crate::measure::observer::StreamObserver;
use crate::measure::reply_body::ResponseHead;
use crate::measure::text_collector::TextBudget;
use crate::measure::timeline::TokenEvent;
use crate::net::http1::head_error::MAX_HEAD;
use crate::net::http1::head_scan::end_of_head;
use crate::net::http1::{BodyDecoder, Framing, Head, KnownHeader};
use crate::net::io::Arrival;
use crate::replay::result::row::FailureReason;

/// Limit on gaps per response (half a megabyte). Further gaps count as lost.
const MAX_GAPS: usize = 1 << 16;

/// The gaps of one response.
#[derive(Default)]
pub(in crate::replay) struct ResponseGaps {
    pub(in crate::replay) gaps: Vec<TokenEvent>,
    /// Gaps dropped beyond the limit.
    pub(in crate::replay) lost: u64,
    /// Reads that returned body bytes.
    pub(in crate::replay) reads: u32,
}

impl ResponseGaps {
    pub(in crate::replay) fn push(&mut self, more: &[TokenEvent]) {
        let room = MAX_GAPS.saturating_sub(self.gaps.len()).min(more.len());
        self.gaps.extend_from_slice(&more[..room]);
        self.lost += (more.len() - room) as u64;
    }
}

/// Parser state of one response.
#[derive(Default)]
pub(in crate::replay) struct ResponseReader {
    /// Bytes received of the head.
    inbox: Vec<u8>,
    body: Option<BodyDecoder>,
    keep_alive: bool,
    /// The server identifies itself as simulated.
    simulated: bool,
    /// Memory budget for the text, if the next turn repeats it.
    text_budget: Option<TextBudget>,
}

impl ResponseReader {
    /// Collects the text if there is a `text_budget`.
    pub(in crate::replay) fn new(text_budget: Option<TextBudget>) -> Self {
        Self { text_budget, ..Self::default() }
    }

    /// True if the connection is reusable after the response.
    pub(in crate::replay) fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// True if the server identifies itself as simulated.
    pub(in crate::replay) fn is_simulated(&self) -> bool {
        self.simulated
    }

    pub(in crate::replay) fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    /// True if the connection's end marks the body's end.
    pub(in crate::replay) fn ends_with_close(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::ends_with_close)
    }

    /// Processes the bytes of one read.
    ///
    /// # Errors
    /// The bytes are not an HTTP/1.1 response.
    pub(in crate::replay) fn read(
        &mut self,
        bytes: &[u8],
        arrival: Arrival,
        observer: &mut StreamObserver,
        gaps: &mut ResponseGaps,
    ) -> Result<(), FailureReason> {
        let head;
        let mut rest = bytes;
        if self.body.is_none() {
            self.inbox.extend_from_slice(bytes);
            self.read_heads(arrival, observer)?;
            head = std::mem::take(&mut self.inbox);
            if self.body.is_none() {
                self.inbox = head;
                return Ok(());
            }
            rest = &head;
        }
        let Some(body) = &mut self.body else { return Ok(()) };
        let mut brought = false;
        let mut read = |payload: &[u8]| {
            brought |= !payload.is_empty();
            observer.bytes(arrival.at, payload);
            if let Some(progress) = observer.progress(arrival.at) {
                gaps.push(&progress.gaps);
            }
        };
        let used = body.decode(rest, &mut read).map_err(|_| FailureReason::Malformed)?;
        gaps.reads = gaps.reads.saturating_add(brought.into());
        if used < rest.len() {
            // More bytes than the response: they belong to no request.
            self.keep_alive = false;
        }
        Ok(())
    }

    /// Parses interim heads and the final head from the inbox.
    fn read_heads(&mut self, arrival: Arrival, observer: &mut StreamObserver) -> Result<(), FailureReason> {
        let mut head = Head::default();
        while let Some(end) = end_of_head(&self.inbox, 0) {
            head.parse_response(&self.inbox[..end]).map_err(|_| FailureReason::Malformed)?;
            self.inbox.drain(..end);
            if matches!(head.status(), 100..=199) {
                continue;
            }
            let framing = head.response_framing(false).map_err(|_| FailureReason::Malformed)?;
            self.keep_alive = head.keeps_alive() && framing != Framing::UntilClose;
            self.simulated = head.is_simulated();
            let response = ResponseHead {
                status: head.status(),
                content_type: head.get(KnownHeader::ContentType).unwrap_or_default(),
                content_encoding: head.get(KnownHeader::ContentEncoding).unwrap_or_default(),
            };
            observer.head(arrival.at, response, arrival.source);
            if let Some(budget) = &self.text_budget {
                observer.keep_text(budget);
            }
            self.body = Some(BodyDecoder::new(framing));
            return Ok(());
        }
        if self.inbox.len() > MAX_HEAD { Err(FailureReason::Malformed) } else { Ok(()) }
    }
}
