pub mod framing;
pub mod time;
