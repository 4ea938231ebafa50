//! The single definition of every number. Pure: no I/O, no async, no locks, no clock.
//!
//! The proxy, a replay and `inspect` all feed stamps and bytes to [`observer::StreamObserver`], which returns a
//! [`record::RequestRecord`].
//!
//! # Definitions
//!
//! | number | from | to | absent when |
//! |---|---|---|---|
//! | **TTFT** | first byte of the request (`t_in`) | first event with generated text of any kind: content, reasoning, tool name or arguments, refusal, audio | no such event; never 0 |
//! | TTFT upstream | last request byte written upstream (`t_up`) | the same event | as above |
//! | TTFT evidence | `t_in` | first proof that a token exists (also ids, log probabilities, a counter, empty content without a role) | no such event |
//! | TTFO | `t_in` | first generated text that is not reasoning | no such event |
//! | **ITL** | one token event | the next, divided by the later event's tokens where known | fewer than two token events |
//! | **TPOT** | first token event | last token event, divided by (output tokens − tokens of the first event, 1 if unknown) | fewer than two tokens |
//! | **E2E** | `t_in` | end of the response | |
//! | **goodput** | requests, and their output tokens, that meet *every* objective of an SLO, per second | | |
//!
//! Headers, role-only deltas, comments, pings, progress and usage events are not tokens. All events of one read share
//! its stamp, so a gap may be zero. With several choices (`n` > 1) the times are those of the merged sequence; the
//! record also has each choice's first and last token.
//!
//! **Token counts** carry their source: the server's usage, its running counter, per-token lists, a tokenizer, or the
//! number of events (an estimate). An all-zero usage does not count as a report.
//!
//! **Only successes** contribute to token latencies: the TTFT of a failed request is never mixed in.

mod bounded_vec;
pub mod calendar;
pub mod dialect;
pub mod event_observer;
pub mod failure;
pub mod framing;
pub mod glob;
pub mod histogram;
mod json_path;
pub mod json_scanner;
mod json_value;
pub mod json_walker;
pub mod observer;
mod outcome;
pub mod record;
pub mod reply_body;
pub mod request_class;
pub mod sample_share;
pub mod server_metrics;
pub mod session;
pub mod shape;
pub mod slo;
mod stream_stats;
mod string_cache;
pub mod text_collector;
pub mod time;
pub mod timeline;
mod unread_reason;
mod usage;
mod value_span;
pub mod whole_number;
pub mod work_budget;
