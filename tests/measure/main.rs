//! Observers of streams: dialects, framing, and the definition of every number.

#![expect(clippy::unwrap_used, reason = "clippy recognizes tests by their attribute; their helpers have none")]

#[path = "../support/mod.rs"]
mod support;

mod dialect_rules;
mod dialect_variants;
mod dialect_vectors;
mod framing_properties;
mod observer;
mod one_definition;
mod skeletons;
mod work_budget;
