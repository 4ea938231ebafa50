//! The life of one request: its bytes, their pace, and the faults of both sides. All follow from one number, which the
//! request carries to the server, so client and server know the same plan without any other exchange.

use std::time::Duration;

use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::reply::Reply;

/// The request header with the number of the plan.
pub(crate) const SEED_HEADER: &str = "x-soak-seed";

/// Faults of the inference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerFault {
    None,
    /// It closes at a random byte of the reply.
    Cut,
    /// It resets at a random byte of the reply.
    Reset,
    /// It closes inside the head of the reply.
    CutHead,
    /// It reads the request and closes.
    NoReply,
    /// It sends a chunk whose size is no number; over HTTP/2, less than the stated length.
    BrokenChunk,
    /// It pauses for seconds.
    Stall,
    /// It sends a part of the reply byte by byte.
    Dribble,
    /// It closes, or ends the stream, some time after the last byte.
    LateClose,
    /// It answers with a 5xx.
    ErrorStatus,
}

/// Faults of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClientFault {
    None,
    /// It closes at a random byte of the reply.
    Leave,
    /// It resets at a random byte of the reply.
    Reset,
    /// It does not read for seconds.
    Stall,
    /// It sends the request in small pieces.
    SlowUpload,
    /// It leaves in the middle of its request.
    AbandonUpload,
    /// It sends bytes that are no HTTP; over HTTP/2, it resets at once.
    Garbage,
    /// It opens a connection, sends the beginning of a request or of a TLS handshake, and leaves.
    HalfOpen,
}

const SERVER_FAULTS: [ServerFault; 9] = [
    ServerFault::Cut,
    ServerFault::Reset,
    ServerFault::CutHead,
    ServerFault::NoReply,
    ServerFault::BrokenChunk,
    ServerFault::Stall,
    ServerFault::Dribble,
    ServerFault::LateClose,
    ServerFault::ErrorStatus,
];
const CLIENT_FAULTS: [ClientFault; 7] = [
    ClientFault::Leave,
    ClientFault::Reset,
    ClientFault::Stall,
    ClientFault::SlowUpload,
    ClientFault::AbandonUpload,
    ClientFault::Garbage,
    ClientFault::HalfOpen,
];

impl ServerFault {
    /// True if the reply ends before its last byte.
    pub(crate) fn breaks(self) -> bool {
        matches!(self, Self::Cut | Self::Reset | Self::BrokenChunk)
    }

    /// True if there is no reply, so that the proxy has to answer.
    pub(crate) fn is_silent(self) -> bool {
        matches!(self, Self::CutHead | Self::NoReply)
    }
}

impl ClientFault {
    /// True if the client does not want the whole reply.
    pub(crate) fn leaves(self) -> bool {
        matches!(self, Self::Leave | Self::Reset | Self::AbandonUpload | Self::Garbage | Self::HalfOpen)
    }
}

/// How an HTTP/1 message states its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Chunked,
    Length,
    /// The end of the connection; replies only.
    Close,
}

/// The plan of one exchange, derived from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) server: ServerFault,
    pub(crate) client: ClientFault,
    /// Where the server's fault occurs, as a share of the reply.
    pub(crate) server_at: f64,
    /// Where the client's fault occurs, as a share of the reply or the request.
    pub(crate) client_at: f64,
    /// How long stalls and late closes last.
    pub(crate) pause: Duration,
    pub(crate) request: Vec<u8>,
    pub(crate) request_framing: Framing,
    pub(crate) status: u16,
    pub(crate) reply: Reply,
    /// Where each piece of the reply ends, and the pause before it.
    pub(crate) pieces: Vec<(usize, Duration)>,
    pub(crate) framing: Framing,
    /// True if the client sends its next request on the same connection.
    pub(crate) reuses: bool,
    /// How long the server keeps the idle connection after the reply.
    pub(crate) keeps: Duration,
}

impl Plan {
    /// The plan of this number. No stream lasts much longer than `longest`.
    pub(crate) fn new(seed: u64, longest: Duration) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let pick = |random: &mut Pcg64Mcg, share: f64| random.random_bool(share);
        let server =
            if pick(&mut random, 0.3) { *SERVER_FAULTS.choose(&mut random).unwrap() } else { ServerFault::None };
        let client =
            if pick(&mut random, 0.3) { *CLIENT_FAULTS.choose(&mut random).unwrap() } else { ClientFault::None };
        let framing = match random.random_range(0..10) {
            0..7 => Framing::Chunked,
            7..9 => Framing::Length,
            _ => Framing::Close,
        };
        let framing = match server {
            ServerFault::BrokenChunk => Framing::Chunked,
            // The end of its connection is the end of such a reply, so a client cannot see that it was cut.
            ServerFault::Cut if framing == Framing::Close => Framing::Length,
            _ => framing,
        };
        let request_size = if pick(&mut random, 0.03) { 200_000 } else { random.random_range(0..2_000) };
        let request = request(&mut random, request_size);
        let reply = Reply::new(&mut random, seed);
        let lifetime = longest.mul_f64(random.random_range(0.01..1.0));
        let each = lifetime / u32::try_from(reply.ends.len()).unwrap();
        let pieces = reply.ends.iter().map(|end| (*end, each.mul_f64(random.random_range(0.1..1.9)))).collect();
        Self {
            seed,
            server,
            client,
            server_at: random.random(),
            client_at: random.random(),
            pause: Duration::from_millis(random.random_range(200..3_000)).min(longest),
            request,
            request_framing: if pick(&mut random, 0.3) { Framing::Chunked } else { Framing::Length },
            status: if server == ServerFault::ErrorStatus {
                *[500, 503, 529].choose(&mut random).unwrap()
            } else {
                200
            },
            reply,
            pieces,
            framing,
            // A connection may close 5 s after its last reply, which a client that stalled takes late.
            reuses: pick(&mut random, 0.8) && client != ClientFault::Stall,
            keeps: Duration::from_millis(*[0, 1, 20, 300, 3_000].choose(&mut random).unwrap()),
        }
    }

    /// True if the request is too large to be sent again after a GOAWAY that has not processed it.
    pub(crate) fn may_be_refused(&self) -> bool {
        self.request.len() > 64 << 10
    }

    /// The place of a fault in `total` bytes, before the last one.
    pub(crate) fn place(share: f64, total: usize) -> usize {
        (share * total.saturating_sub(1) as f64) as usize
    }
}

fn request(random: &mut Pcg64Mcg, size: usize) -> Vec<u8> {
    let text: String = (0..size).map(|_| char::from(random.random_range(b'a'..=b'z'))).collect();
    let model = random.random_range(0..4);
    format!(
        "{{\"model\":\"soak-{model}\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"
    )
    .into_bytes()
}
