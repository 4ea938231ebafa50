//! The result of each request, and the files of a run.

pub mod output;
pub mod row;
