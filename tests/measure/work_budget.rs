//! The cost of observing a body is bounded by its bytes and reads; ordinary traffic uses at most half of that. Cost is
//! counted in units of the budget, so a busy machine changes no result.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use streamgauge::measure::dialect;
use streamgauge::measure::observer::StreamObserver;
use streamgauge::measure::record::{Ending, RequestRecord, StampSource, UnreadReason};
use streamgauge::measure::reply_body::ResponseHead;
use streamgauge::measure::shape::RequestShape;
use streamgauge::measure::time::Stamp;
use streamgauge::measure::work_budget::{
    FORWARDING_RESERVE, MAX_SAVED_WORK, WORK_PER_BYTE, WORK_PER_READ, WORK_PER_SLICE, WorkReserve,
};

use crate::support::proxy::TestProxy;
use crate::support::upstream::{Upstream, reports};

/// Bytes as one read brings them.
const READ: usize = 64 << 10;
const CHAT: &str = "openai.chat";
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const GRPC: &str = "application/grpc";

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 3).unwrap()
}

/// A compressed gRPC message.
fn message(compressed: &[u8]) -> Vec<u8> {
    [&[1][..], &(compressed.len() as u32).to_be_bytes(), compressed].concat()
}

fn repeat(piece: &[u8], size: usize) -> Vec<u8> {
    piece.repeat(size.div_ceil(piece.len()))
}

/// Blocks of deflate that hold nothing, ten bits each, behind a header of gzip.
fn empty_blocks(size: usize) -> Vec<u8> {
    // A block with fixed codes and the end of it: bits 010 0000000, four of which are five bytes.
    [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &repeat(&[0x02, 0x08, 0x20, 0x80, 0x00], size)].concat()
}

/// One body, and its head's fields.
struct Sent {
    name: &'static str,
    dialect: &'static str,
    content_type: &'static str,
    encoding: &'static str,
    body: Vec<u8>,
}

fn sent(
    name: &'static str,
    dialect: &'static str,
    content_type: &'static str,
    encoding: &'static str,
    body: Vec<u8>,
) -> Sent {
    Sent { name, dialect, content_type, encoding, body }
}

/// Bodies of which each byte, or each read, is made to cost as much as it can.
fn attacks() -> Vec<Sent> {
    const SIZE: usize = 512 << 10;
    let choices = |piece: &str| format!("data: {{\"choices\":[{{}}{}]}}\n\n", piece.repeat(100_000));
    let best = |plain: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    };
    vec![
        sent("members of gzip", CHAT, EVENTS, "gzip", repeat(&gzip(b""), SIZE)),
        sent("frames of zstd", CHAT, EVENTS, "zstd", repeat(&zstd(b""), SIZE)),
        sent("frames of zstd to be skipped", CHAT, EVENTS, "zstd", repeat(b"\x50\x2a\x4d\x18\0\0\0\0", SIZE)),
        sent("blocks of deflate", CHAT, EVENTS, "gzip", empty_blocks(SIZE)),
        sent("messages of gzip", "triton.grpc", GRPC, "gzip", repeat(&message(&gzip(b"")), SIZE)),
        sent("messages of zstd", "triton.grpc", GRPC, "zstd", repeat(&message(&zstd(b"")), SIZE)),
        sent("messages of brotli", "triton.grpc", GRPC, "br", repeat(&message(&[0x3b]), SIZE)),
        sent("plain messages", "triton.grpc", GRPC, "", repeat(&[0; 5], SIZE)),
        sent("metadata of brotli", CHAT, EVENTS, "br", [&b"\x0c"[..], &vec![6; SIZE]].concat()),
        sent("a bomb", CHAT, EVENTS, "gzip", best(&vec![b'x'; 8 << 20])),
        sent("a bomb of events", CHAT, EVENTS, "gzip", best(&repeat(b"data:{}\n\n", 8 << 20))),
        sent("a bomb of numbers", CHAT, JSON, "gzip", best(&[b"[", &repeat(b"1,", 8 << 20)[..]].concat())),
        sent("bombs of events of zstd", CHAT, EVENTS, "zstd", zstd(&repeat(b"data:{}\n\n", 8 << 20))),
        sent("empty lines", CHAT, EVENTS, "", repeat(b"\n", SIZE)),
        sent("events of nothing", CHAT, EVENTS, "", repeat(b"data\n\n", SIZE)),
        sent("lines of one byte", "ollama.chat", LINES, "", repeat(b"1\n", SIZE)),
        sent("data without end", CHAT, EVENTS, "", repeat(b"data:\n", SIZE)),
        sent("100,000 choices", CHAT, EVENTS, "", repeat(choices(",{}").as_bytes(), SIZE)),
        sent("nested arrays", CHAT, JSON, "", repeat(b"[", SIZE)),
        sent("nested events", CHAT, EVENTS, "", repeat(format!("data: {}\n\n", "[".repeat(900_000)).as_bytes(), SIZE)),
        sent("numbers", CHAT, JSON, "", [b"[", &repeat(b"1,", SIZE)[..]].concat()),
    ]
}

/// Bodies of real servers and clients.
fn ordinary() -> Vec<Sent> {
    let words: Vec<String> = (0..40_000u32).map(|n| format!("{:x}", n.wrapping_mul(2_654_435_761) >> 12)).collect();
    let text = words.join(" ");
    let tool = |n: usize| {
        format!(
            "{{\"type\":\"function\",\"function\":{{\"name\":\"{}_{n}\",\"description\":\"{}\",\"parameters\":{{\"type\":\
             \"object\",\"properties\":{{\"place\":{{\"type\":\"string\"}},\"unit\":{{\"enum\":[\"c\",\"f\"]}}}}}}}}}}",
            words[n * 7],
            words[n * 5..][..12].join(" ")
        )
    };
    let tools = (0..3_600).map(tool).collect::<Vec<_>>().join(",");
    let prompt = |inside: &str| format!("{{\"model\":\"m\",\"messages\":[{inside}],\"stream\":true}}").into_bytes();
    let image: String = (0..10 << 20u32)
        .map(|n: u32| char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"[(n.wrapping_mul(n) >> 7) as usize & 31]))
        .collect();
    let numbers: Vec<String> = (0..400_000u32).map(|n| format!("-0.0{}", n.wrapping_mul(2_654_435_761) >> 4)).collect();
    let embeddings = format!("{{\"data\":[{{\"embedding\":[{}]}}],\"model\":\"m\"}}", numbers.join(","));
    let top = |n: usize| format!("{{\"token\":\"{}\",\"logprob\":-{n}.25,\"bytes\":[97,98]}}", words[n]);
    let tops = (0..20).map(top).collect::<Vec<_>>().join(",");
    let choice = |index| {
        format!(
            "{{\"index\":{index},\"delta\":{{\"content\":\"a\"}},\"logprobs\":{{\"content\":[{{\"token\":\"a\",\
             \"logprob\":-0.1,\"top_logprobs\":[{tops}]}}]}}}}"
        )
    };
    let choices = (0..20).map(choice).collect::<Vec<_>>().join(",");
    let token = |n: usize| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1750000000,\"model\":\"m\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" {}\"}},\"finish_reason\":null}}],\"n\":{n}}}\n\n",
            words[n]
        )
    };
    let tokens: Vec<String> = (0..10_000).map(token).collect();
    let mut flushed = GzEncoder::new(Vec::new(), Compression::default());
    for token in &tokens[..3_000] {
        flushed.write_all(token.as_bytes()).unwrap();
        flushed.flush().unwrap();
    }
    vec![
        sent("a prompt with an image of 10 MB", CHAT, JSON, "", prompt(&format!("{{\"image\":\"{image}\"}}"))),
        sent("a list of tools of 1 MB", CHAT, JSON, "", prompt(&tools)),
        sent("a list of tools of 1 MB in gzip", CHAT, JSON, "gzip", gzip(&prompt(&tools))),
        sent("a list of tools of 1 MB in zstd", CHAT, JSON, "zstd", zstd(&prompt(&tools))),
        sent("a prompt of 200 KB in gzip", CHAT, JSON, "gzip", gzip(&prompt(&format!("\"{}\"", &text[..200_000])))),
        sent("embeddings of 5 MB", "openai.embeddings", JSON, "", embeddings.clone().into_bytes()),
        sent("embeddings of 5 MB in gzip", "openai.embeddings", JSON, "gzip", gzip(embeddings.as_bytes())),
        sent(
            "log probabilities of 20 choices",
            CHAT,
            EVENTS,
            "",
            repeat(format!("data: {{\"choices\":[{choices}]}}\n\n").as_bytes(), 4 << 20),
        ),
        sent("10,000 tokens", CHAT, EVENTS, "", tokens.concat().into_bytes()),
        sent("1,000 tokens in gzip", CHAT, EVENTS, "gzip", gzip(tokens[..1_000].concat().as_bytes())),
        sent("3,000 tokens in gzip, each flushed, all in one read", CHAT, EVENTS, "gzip", flushed.finish().unwrap()),
    ]
}

/// An observer of this body, with the reserve of a thread or alone.
fn observer(sent: &Sent, is_request: bool, reserve: Option<&WorkReserve>) -> Box<StreamObserver> {
    let shape =
        RequestShape { dialect: dialect::named(sent.dialect), method: "POST".into(), ..RequestShape::default() };
    let encoding = if is_request { sent.encoding } else { "" };
    let mut observer = StreamObserver::begin(shape, encoding.as_bytes(), None, Stamp::default());
    if let Some(reserve) = reserve {
        observer = observer.with_reserve(reserve);
    }
    if !is_request {
        let (content_type, content_encoding) = (sent.content_type.as_bytes(), sent.encoding.as_bytes());
        observer.head(
            Stamp::default(),
            ResponseHead { status: 200, content_type, content_encoding },
            StampSource::Read,
        );
    }
    observer
}

/// Ends the observation of a body.
fn end(mut observer: Box<StreamObserver>, is_request: bool) -> RequestRecord {
    if is_request {
        observer.head(Stamp::default(), ResponseHead { status: 204, ..ResponseHead::default() }, StampSource::Read);
    }
    observer.end(Stamp::default(), Ending::Complete)
}

/// The largest share of its budget that a read took, the work of all, and the record.
fn observed(sent: &Sent, is_request: bool, read: usize) -> (u64, u64, RequestRecord) {
    observed_from(None, sent, is_request, read)
}

fn observed_from(
    reserve: Option<&WorkReserve>,
    sent: &Sent,
    is_request: bool,
    read: usize,
) -> (u64, u64, RequestRecord) {
    let mut observer = observer(sent, is_request, reserve);
    let (mut before, mut most) = (observer.work(), 0);
    for chunk in sent.body.chunks(read) {
        if is_request {
            observer.request(chunk)
        } else {
            observer.bytes(Stamp::default(), chunk)
        }
        most = most.max(observer.work() - before);
        before = observer.work();
    }
    (most, before, end(observer, is_request))
}

/// The most that the last piece of work before the end of a budget may take beyond it: one event.
const MAX_OVERDRAFT: u64 = 4 << 20;

#[test]
fn no_body_costs_more_than_its_bytes_and_reads_are_granted() {
    for attack in attacks() {
        for (is_request, read) in [(false, READ), (true, READ), (false, 1_000)] {
            {
                let (most, all, record) = observed(&attack, is_request, read);
                let (bytes, reads) = (attack.body.len() as u64, attack.body.len().div_ceil(read) as u64);
                let name = format!("{} in reads of {read}, of a request: {is_request}", attack.name);
                let granted = MAX_SAVED_WORK + bytes * WORK_PER_BYTE + reads * WORK_PER_READ;
                assert!(all <= granted + MAX_OVERDRAFT, "{name}: {all} of {granted}");
                let of_read = MAX_SAVED_WORK + read as u64 * WORK_PER_BYTE + WORK_PER_READ;
                assert!(most <= of_read + MAX_OVERDRAFT, "{name}: {most} of {of_read} in one read");
                let (counted, other) = if is_request {
                    (record.request_bytes, record.response_bytes)
                } else {
                    (record.response_bytes, record.request_bytes)
                };
                assert_eq!((counted, other), (bytes, 0), "{name}: bytes are counted on");
            }
        }
    }
}

#[test]
fn however_many_bodies_a_thread_observes_they_share_one_reserve() {
    let bomb = |name: &'static str, is_request: bool, plain: &[u8]| {
        let content_type = if is_request { JSON } else { EVENTS };
        (sent(name, CHAT, content_type, "gzip", gzip(plain)), is_request)
    };
    for (bomb, is_request) in [
        bomb("numbers", true, &[b"[", &repeat(b"1,", 4 << 20)[..]].concat()),
        bomb("events", false, &repeat(b"data:{}\n\n", 4 << 20)),
    ] {
        let (reserve, mut all) = (WorkReserve::new(FORWARDING_RESERVE), 0);
        const BODIES: u64 = 100;
        for _ in 0..BODIES {
            let (_, work, record) = observed_from(Some(&reserve), &bomb, is_request, READ);
            let unread = if is_request { record.quality.request_unread } else { record.quality.unread };
            assert_eq!(unread, Some(UnreadReason::Budget));
            all += work;
        }
        // The piece of each body that does not fit any more counts, too.
        let of_body = bomb.body.len() as u64 * WORK_PER_BYTE + WORK_PER_READ + MAX_PIECE_WORK;
        let granted = FORWARDING_RESERVE.max_work + BODIES * of_body;
        assert!(all <= granted, "{}: {all} of {granted}", bomb.name);
    }
}

#[test]
fn ordinary_traffic_is_read_from_the_reserve_of_a_thread_too() {
    for sent in ordinary() {
        let reserve = WorkReserve::new(FORWARDING_RESERVE);
        let is_request = sent.content_type == JSON;
        let (_, _, record) = observed_from(Some(&reserve), &sent, is_request, READ);
        assert_eq!((record.quality.request_unread, record.quality.unread), (None, None), "{}", sent.name);
    }
}

/// Maximum work of a slice's last piece: 4 KiB of lines of one byte.
const MAX_PIECE_WORK: u64 = 400_000;

#[test]
fn a_read_is_observed_in_slices_after_each_of_which_others_may_run() {
    // A message or an event of these is parsed as a whole.
    let is_sliced = |name: &str| !["100,000 choices", "nested events"].contains(&name);
    for attack in attacks().into_iter().filter(|attack| is_sliced(attack.name)) {
        for is_request in [false, true] {
            let (mut observer, mut most, mut slices) = (observer(&attack, is_request, None), 0, 0);
            for chunk in attack.body.chunks(READ) {
                if is_request {
                    observer.begin_request_read(chunk.len());
                } else {
                    observer.begin_read(Stamp::default(), chunk.len());
                }
                let mut rest = chunk;
                loop {
                    let before = observer.work();
                    let used = match is_request {
                        true => observer.request_slice(rest),
                        false => observer.slice(Stamp::default(), rest),
                    };
                    (most, slices) = (most.max(observer.work() - before), slices + 1);
                    let Some(used) = used else { break };
                    rest = &rest[used..];
                }
            }
            let name = format!("{}, of a request: {is_request}, {slices} slices", attack.name);
            assert!(most <= WORK_PER_SLICE + MAX_PIECE_WORK, "{name}: {most} in one");
            let (_, all, whole) = observed(&attack, is_request, READ);
            let record = end(observer, is_request);
            assert_eq!((record.events, record.quality), (whole.events, whole.quality), "{name}: {all}");
        }
    }
}

#[test]
fn a_body_over_budget_is_no_longer_observed_and_the_record_says_so() {
    let stopped = |is_request: bool| {
        let attacks = attacks();
        let stopped = attacks.iter().filter(|attack| {
            let (_, _, record) = observed(attack, is_request, READ);
            let unread = if is_request { record.quality.request_unread } else { record.quality.unread };
            unread == Some(UnreadReason::Budget)
        });
        stopped.map(|attack| attack.name).collect::<Vec<_>>()
    };
    let of_replies = stopped(false);
    for name in
        ["messages of brotli", "a bomb of events", "a bomb of numbers", "bombs of events of zstd", "lines of one byte"]
    {
        assert!(of_replies.contains(&name), "{name} is not in {of_replies:?}");
    }
    let of_requests = stopped(true);
    for name in ["messages of brotli", "a bomb of numbers"] {
        assert!(of_requests.contains(&name), "{name} is not in {of_requests:?}");
    }
}

#[test]
fn ordinary_traffic_takes_no_more_than_half_of_what_it_may() {
    for sent in ordinary() {
        for is_request in [false, true] {
            if is_request && sent.content_type != JSON {
                continue;
            }
            for read in [READ, 4_000] {
                let (most, all, record) = observed(&sent, is_request, read);
                let (bytes, reads) = (sent.body.len() as u64, sent.body.len().div_ceil(read) as u64);
                let granted = MAX_SAVED_WORK + bytes * WORK_PER_BYTE + reads * WORK_PER_READ;
                let name = sent.name;
                assert!(all * 2 <= granted, "{name} in reads of {read}: {all} of {granted}, at most {most} in one");
                assert_eq!(record.quality.request_unread, None, "{name}");
                let is_read = record.quality.unread != Some(UnreadReason::Budget);
                assert!(is_read, "{name} in reads of {read}");
            }
        }
    }
}

#[test]
fn a_body_that_is_no_longer_observed_is_forwarded_as_it_is() {
    let request = gzip(&[b"[", &repeat(b"1,", 8 << 20)[..]].concat());
    // The decoder and the search for lines are fast even without optimization and on a busy machine, where the reserve
    // refills while events are read.
    let reply = zstd(&repeat(&[b":", &[b'x'; 16 << 10][..], b"\n"].concat(), 64 << 20));
    let (report, received) = reports();
    let sent = reply.clone();
    let upstream = Upstream::start(move |mut conn| {
        while let Some(request) = conn.request() {
            report(request.body);
            let length = sent.len();
            conn.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {EVENTS}\r\nContent-Encoding: zstd\r\nContent-Length: {length}\r\n\r\n"
            ));
            conn.send(&sent);
        }
    });
    let proxy = TestProxy::with(upstream.addr, &[("workers", "1")]);
    let mut client = proxy.client();
    let length = request.len();
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: {length}\r\n\r\n"
    ));
    client.send(&request);
    let response = client.response();
    assert_eq!((response.status(), response.body == reply, received() == request), (200, true, true));
    let last = proxy.last_request();
    // Not of the request: a build without optimization observes it so slowly that its reserve refills meanwhile.
    assert_eq!((&last["unread"], &last["outcome"]), (&"budget".into(), &"success".into()), "{last}");
}
