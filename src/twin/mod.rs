//! A twin: engines fitted to a capture, run in virtual time over any traffic.
//!
//! [`model`] is the file of a twin, one engine per upstream and model, and [`parameter`] what such an engine has.
//! [`simulation`] runs traffic through [`fleet`]s of such engines: a [`router`] chooses the replica, [`operations`] are
//! failures, start-up and autoscaling. The engine is [`crate::engine`], the same code that `sim` drives in real time.
//! [`response`] turns a simulated response into a row of the trace file, so that reports read a simulation like a run.
//! [`fit`] estimates a twin from rows.
//!
//! The room knows no sockets, threads or clock. All times are virtual, and a run depends only on its inputs.

pub mod evidence;
pub mod fit;
pub mod fleet;
pub mod model;
pub mod operations;
pub mod parameter;
mod replica;
pub mod response;
pub mod router;
pub mod simulation;
pub mod traffic;
