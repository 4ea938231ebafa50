//! Messages from the proxy to the writer thread: bodies, and finished requests with the state of their stream's task.

use std::borrow::Borrow;
use std::fmt;
use std::hint::black_box;
use std::sync::{Arc, OnceLock};

use super::body_memory::MemoryReservation;
use super::prefetch::{self, Prefetch};
use super::request_digest::RequestDigest;
use crate::measure::dialect::Dialect;
use crate::measure::record::RequestRecord;
use crate::measure::timeline::TokenEvent;

/// Maximum gaps held per stream (512 KiB).
pub const MAX_STREAM_GAPS: usize = 65_536;

pub(super) enum CaptureMessage {
    /// The body of a request that has been sent.
    RequestBody {
        body: Vec<u8>,
        room: MemoryReservation,
        encoding: Vec<u8>,
        dialect: &'static Dialect,
        answer: Arc<OnceLock<RequestDigest>>,
    },
    RequestEnded(Box<dyn CapturedRequest>),
    /// Write everything that is queued, then exit.
    Stop,
}

impl Prefetch for CaptureMessage {
    fn fetch(&mut self) {
        if let Self::RequestEnded(ended) = self
            && let Some((following, record)) = ended.parts()
        {
            black_box((following.sent, following.in_flight, following.gaps.len(), following.session.is_some()));
            black_box(following.body.iter().step_by(64).fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
            prefetch::record(record);
        }
    }
}

/// A finished request, passed on by the thread that counted it.
pub trait CapturedRequest: Send {
    /// The capture handle and the record; `None` if the capture did not follow the request.
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)>;

    /// Takes the id of the request's session, as captures write it. Not called if the request has none.
    fn set_session(&mut self, _session: &str) {}
}

impl<R: Borrow<RequestRecord> + Send> CapturedRequest for (CaptureHandle, R) {
    fn parts(&mut self) -> Option<(&mut CaptureHandle, &RequestRecord)> {
        Some((&mut self.0, self.1.borrow()))
    }
}

/// Capture state of one request.
#[derive(Default)]
pub struct CaptureHandle {
    /// Body bytes received so far, until they are handed over.
    pub(super) body: Vec<u8>,
    /// Set for a body that is handed over before the end.
    pub(super) reservation: Option<MemoryReservation>,
    /// True once the request was sent completely.
    pub(super) sent: bool,
    pub(super) encoding: Vec<u8>,
    /// Session id from the request header.
    pub(super) session: Option<Vec<u8>>,
    /// Id of the parent's session from the request header.
    pub(super) parent: Option<Vec<u8>>,
    pub(super) in_flight: u32,
    /// Gaps drained before the request's end, and the number of gaps beyond the limit.
    pub(super) gaps: Vec<TokenEvent>,
    pub(super) lost_gaps: u64,
    /// The writer thread stores here the digest of a body that was handed over before the end.
    pub(super) digest_slot: Option<Arc<OnceLock<RequestDigest>>>,
    /// The body exceeds a memory limit.
    pub(super) oversize: bool,
    /// The client marked the request with [`PROBE_HEADER`](crate::trace_file::PROBE_HEADER).
    pub(super) is_probe: bool,
}

impl fmt::Debug for CaptureHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body must not reach a log.
        f.debug_struct("Following").finish_non_exhaustive()
    }
}

impl CaptureHandle {
    /// Adds gaps of a running stream, up to [`MAX_STREAM_GAPS`]; counts the rest as lost.
    pub fn push_gaps(&mut self, gaps: &[TokenEvent]) {
        let room = (MAX_STREAM_GAPS - self.gaps.len()).min(gaps.len());
        self.gaps.extend_from_slice(&gaps[..room]);
        self.lost_gaps += (gaps.len() - room) as u64;
    }

    pub(super) fn drop_body(&mut self) {
        (self.body, self.reservation, self.oversize) = (Vec::new(), None, true);
    }
}
