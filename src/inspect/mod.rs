//! What one recorded response means, event by event, under our rules and those of other tools. Pure.
//!
//! `streamgauge inspect` prints it, and reports in the formats of other tools use their [`first_token_rules`].

pub mod first_token_rules;
pub mod inspection;
pub mod recording;
