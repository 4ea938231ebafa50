//! From a row to the bytes of a request: prompt, parameters, media, earlier turns.

pub(super) mod body;
pub(super) mod client_abort;
pub(super) mod conversation;
pub mod encoder;
mod http_request;
pub mod media;
pub mod template;
pub mod tokenize;
