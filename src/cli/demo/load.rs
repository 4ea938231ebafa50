//! The clients of the demo: a few conversations at a time, through the proxy's socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::measure::time::Gap;

/// Conversations at a time: three or four requests a second.
pub(super) const CLIENTS: u64 = 8;
/// Mean time between a client's reply and its next request.
const MEAN_THINK_TIME: Gap = Gap::from_millis(800);

/// The models that clients request. One server has them all; only their use differs.
pub(super) const MODELS: [&str; 3] = [CHAT, DOCS, CODE];
const CHAT: &str = "sim-chat";
const DOCS: &str = "sim-docs";
const CODE: &str = "sim-code";

/// One sort of request.
struct TrafficClass {
    /// How often it comes, in proportion to the others.
    weight: u8,
    model: &'static str,
    stream: bool,
    /// On average; from half to one and a half of it are asked.
    prompt_tokens: usize,
    max_tokens: u32,
    /// The client hangs up in the middle.
    aborts: bool,
    /// Fault that the simulated server injects.
    fault: &'static str,
}

/// The class of most requests.
const DEFAULT_CLASS: TrafficClass =
    TrafficClass { weight: 1, model: CHAT, stream: true, prompt_tokens: 60, max_tokens: 250, aborts: false, fault: "" };

/// Short questions, long documents and quick completions; of forty requests two are left by their clients and three go
/// wrong.
const TRAFFIC_MIX: [TrafficClass; 9] = [
    TrafficClass { weight: 16, ..DEFAULT_CLASS },
    TrafficClass { weight: 2, aborts: true, ..DEFAULT_CLASS },
    TrafficClass { fault: "error@25", ..DEFAULT_CLASS },
    TrafficClass { weight: 6, model: DOCS, prompt_tokens: 5_000, ..DEFAULT_CLASS },
    TrafficClass { weight: 2, model: DOCS, stream: false, prompt_tokens: 3_000, max_tokens: 120, ..DEFAULT_CLASS },
    TrafficClass { model: DOCS, prompt_tokens: 2_000, fault: "stall=1500ms@15", ..DEFAULT_CLASS },
    TrafficClass { weight: 8, model: CODE, prompt_tokens: 300, max_tokens: 40, ..DEFAULT_CLASS },
    TrafficClass { weight: 3, model: CODE, stream: false, prompt_tokens: 300, max_tokens: 40, ..DEFAULT_CLASS },
    TrafficClass { model: CODE, fault: "reset@10", ..DEFAULT_CLASS },
];

/// After this time a client that leaves has seen some of the reply.
const ABORT_DELAY: Gap = Gap::from_millis(500);

/// Clients that send requests until they are stopped. Dropping it closes their connections.
pub(super) struct DemoClients {
    sending: Arc<AtomicBool>,
    _clients: JoinSet<()>,
}

impl DemoClients {
    /// Starts them; belongs on a runtime.
    pub(super) fn start(proxy: SocketAddr) -> Self {
        let asking = Arc::new(AtomicBool::new(true));
        let client = |number| client(number, proxy, Arc::clone(&asking));
        let _clients = (0..CLIENTS).map(client).collect();
        Self { sending: asking, _clients }
    }

    /// Replies that are on their way are read to their end, and nothing is asked for any more.
    pub(super) fn stop_sending(&self) {
        self.sending.store(false, Relaxed);
    }
}

async fn client(number: u64, proxy: SocketAddr, asking: Arc<AtomicBool>) {
    let mut random = Pcg64Mcg::seed_from_u64(number);
    for turn in 0_u64.. {
        let pause: f64 = Exp1.sample(&mut random);
        Clock::Monotonic.sleep(Gap::from_nanos((pause * MEAN_THINK_TIME.as_nanos() as f64) as u64)).await;
        let Ok(sort) = TRAFFIC_MIX.choose_weighted(&mut random, |sort| sort.weight) else { return };
        if !asking.load(Relaxed) {
            return;
        }
        let prompt_tokens = sort.prompt_tokens * random.random_range(50..150) / 100;
        // Four bytes are a token to the simulated server. The beginning is one that no cache of its knows.
        let prompt = format!("{number:03}.{turn:08} {}", "why ".repeat(prompt_tokens));
        // The proxy reports failed requests.
        drop(ask(proxy, sort, &prompt).await);
    }
}

/// Sends one request over its own connection, and discards the reply.
async fn ask(proxy: SocketAddr, sort: &TrafficClass, prompt: &str) -> io::Result<()> {
    let mut socket = TcpStream::connect(proxy).await?;
    socket.write_all(sort.request(proxy, prompt).as_bytes()).await?;
    let mut buffer = [0; 4_096];
    let reply = async {
        while socket.read(&mut buffer).await? > 0 {}
        Ok(())
    };
    if sort.aborts { Clock::Monotonic.timeout(ABORT_DELAY, reply).await.unwrap_or(Ok(())) } else { reply.await }
}

impl TrafficClass {
    /// The bytes of a request.
    fn request(&self, host: SocketAddr, prompt: &str) -> String {
        let mut body = json!({"model": self.model, "stream": self.stream, "max_tokens": self.max_tokens});
        // Completions do not request usage, so that there are estimated counts too.
        let path = if self.model == CODE {
            body["prompt"] = json!(prompt);
            "/v1/completions"
        } else {
            body["messages"] = json!([{"role": "user", "content": prompt}]);
            if self.stream {
                body["stream_options"] = json!({"include_usage": true});
            }
            "/v1/chat/completions"
        };
        let body = body.to_string();
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nx-sim-fault: {}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            self.fault,
            body.len(),
        )
    }
}
