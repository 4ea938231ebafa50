//! Common code of the fuzzers, and the folders of streamgauge that parse untrusted input.
//!
//! Those folders are compiled here on their own. Without TLS and the exporters' protocols the fuzzers build in a
//! minute, and only fuzzed code is instrumented. The paths to them are the library's.

#![allow(dead_code, unreachable_pub, unused_imports, reason = "each folder is part of a larger program")]

#[path = "../../../src/config/mod.rs"]
pub mod config;
#[path = "../../../src/inspect/mod.rs"]
pub mod inspect;
#[path = "../../../src/export"]
pub mod export {
    pub mod prometheus {
        pub mod negotiate;
    }
    pub mod trace_context;
}
#[path = "../../../src/measure/mod.rs"]
pub mod measure;
#[path = "../../../src/net"]
pub mod net {
    pub mod http1;
}
#[path = "../../../src/report"]
pub mod report {
    pub mod peer_files;
    pub mod request_view;
}
#[path = "../../../src/stats/mod.rs"]
pub mod stats;
#[path = "../../../src/trace/mod.rs"]
pub mod trace;
#[path = "../../../src/trace_file/mod.rs"]
pub mod trace_file;

pub mod memory;
pub mod split;
pub mod storage;
