//! `streamgauge inspect`: what one recorded response stream means; for people who debug a server.

mod inspection;

pub use inspection::{Error, Exchange, Finish, Inspection, Seen, inspect};
