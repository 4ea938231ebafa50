//! A request on its way from the feeder to its exchange.

use tokio::sync::OwnedSemaphorePermit;

use crate::replay::plan::schedule::ScheduledRequest;
use crate::replay::request::client_abort::ClientAbort;
use crate::replay::request::conversation::ConversationTurn;
use crate::replay::request::template::RequestTemplate;
use crate::trace_file::row::RequestTargets;

/// A request's encoded bytes.
pub(in crate::replay) struct WireRequest {
    pub(in crate::replay) bytes: Vec<u8>,
    /// Offset of the body.
    pub(in crate::replay) body: usize,
    /// Its share of the budget for encoded requests.
    pub(in crate::replay) _permit: Option<OwnedSemaphorePermit>,
}

pub(in crate::replay) struct ReplayRequest {
    pub(in crate::replay) scheduled: ScheduledRequest,
    pub(in crate::replay) form: &'static RequestTemplate,
    /// Index of the target.
    pub(in crate::replay) target: usize,
    pub(in crate::replay) planned_values: RequestTargets,
    pub(in crate::replay) client_abort: Option<ClientAbort>,
    /// It waits for the turn before it.
    pub(in crate::replay) is_later_turn: bool,
    /// The turn of a live session, once its prompt is known.
    pub(in crate::replay) turn: Option<ConversationTurn>,
    /// Later turns are encoded once their due time is known.
    pub(in crate::replay) wire: Option<WireRequest>,
}
