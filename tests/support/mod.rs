//! What the tests of the proxy share: a scripted upstream, a raw client, a proxy in between.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests stop where they cannot go on, and may wait"
)]

pub mod captured;
pub mod client;
pub mod frames;
pub mod http2;
pub mod proxy;
pub mod replay;
pub mod sending;
pub mod upstream;

/// Resident memory of this process, in bytes. The proxy, the upstream and the client are all in it.
pub fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
