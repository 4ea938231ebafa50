//! The meaning of one recorded response, event by event, under this program's rules and other tools' rules. Pure.
//!
//! `streamgauge inspect` prints it, and reports in the formats of other tools use their [`first_token_rules`].

pub mod first_token_rules;
pub mod inspection;
pub mod recording;
