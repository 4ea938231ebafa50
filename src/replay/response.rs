//! A reply as it comes in: its head, its body, and the gaps between its tokens.

use super::results::FailureReason;
use crate::measure::observer::{ResponseHead, StreamObserver};
use crate::measure::text_collector::TextBudget;
use crate::measure::timeline::TokenEvent;
use crate::net::http1::head::MAX_HEAD;
use crate::net::http1::head_scan::end_of_head;
use crate::net::http1::{BodyDecoder, Framing, Head, KnownHeader};
use crate::net::io::Arrival;

/// Gaps kept for one reply; half a megabyte. What comes after is counted as lost.
const MAX_GAPS: usize = 1 << 16;

/// What is kept of one reply as it comes in.
#[derive(Default)]
pub(super) struct ResponseGaps {
    pub(super) gaps: Vec<TokenEvent>,
    /// Gaps that were not kept.
    pub(super) lost: u64,
    /// Reads that brought its body.
    pub(super) reads: u32,
}

impl ResponseGaps {
    pub(super) fn push(&mut self, more: &[TokenEvent]) {
        let room = MAX_GAPS.saturating_sub(self.gaps.len()).min(more.len());
        self.gaps.extend_from_slice(&more[..room]);
        self.lost += (more.len() - room) as u64;
    }
}

/// A reply as it comes in.
#[derive(Default)]
pub(super) struct ResponseReader {
    /// What came of the head.
    inbox: Vec<u8>,
    body: Option<BodyDecoder>,
    keep_alive: bool,
    /// The server says that it is.
    simulated: bool,
    /// What its text takes, where the next turn says it again.
    text_budget: Option<TextBudget>,
}

impl ResponseReader {
    /// One whose text is kept within `said`, where that is given.
    pub(super) fn new(said: Option<TextBudget>) -> Self {
        Self { text_budget: said, ..Self::default() }
    }

    /// Whether the connection may be used again when it has ended.
    pub(super) fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether its server says that it is simulated.
    pub(super) fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Whether all of it has come.
    pub(super) fn has_ended(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    /// Whether the end of its connection is its end.
    pub(super) fn ends_with_close(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::ends_with_close)
    }

    /// One read.
    ///
    /// # Errors
    /// What is no answer of HTTP/1.1.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        arrival: Arrival,
        observer: &mut StreamObserver,
        kept: &mut ResponseGaps,
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
                kept.push(&progress.gaps);
            }
        };
        let used = body.decode(rest, &mut read).map_err(|_| FailureReason::Malformed)?;
        kept.reads = kept.reads.saturating_add(brought.into());
        if used < rest.len() {
            // More than was asked for: whose it is nobody knows.
            self.keep_alive = false;
        }
        Ok(())
    }

    /// Reads heads, interim ones and the final one, from the inbox.
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
