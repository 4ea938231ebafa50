//! A receive time stamp is the arrival of the bytes, not the time of the read.

use std::future::poll_fn;
use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use streamgauge::clock::Clock;
use streamgauge::measure::record::StampSource;
use streamgauge::net::io::{self, Arrival, MaybeTlsStream};
use tokio::net::TcpStream;

/// Reads once what a sender writes when `send` is called, after `late`; returns the arrival and the clock before and
/// after.
fn read_late(late: Duration) -> (Arrival, [streamgauge::measure::time::Stamp; 3]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut sender, _) = listener.accept().unwrap();
        let mut io = MaybeTlsStream::plain(socket);
        let clock = Clock::Monotonic;
        let before = clock.now();
        sender.write_all(b"token").unwrap();
        let sent = clock.now();
        // The thread is busy with something else.
        std::thread::sleep(late);
        let read = poll_fn(|cx| io.poll_read(cx, |bytes, arrival| (bytes.to_vec(), arrival))).await;
        let (bytes, arrival) = read.unwrap().unwrap();
        assert_eq!(bytes, b"token");
        (arrival, [before, sent, clock.now()])
    })
}

#[test]
fn a_reader_that_comes_late_still_learns_when_the_bytes_arrived() {
    // The kernel switches time-stamping on a moment after it was asked for the first time.
    io::enable_rx_timestamps();
    let stamped = || read_late(Duration::from_millis(10)).0.source == StampSource::Kernel;
    assert!((0..1_000).any(|_| stamped()), "the kernel never stamps");
    for _ in 0..5 {
        let (arrival, [before, sent, read]) = read_late(Duration::from_millis(60));
        assert_eq!(arrival.source, StampSource::Kernel);
        // Over loopback a segment is received within the system call that sends it.
        let slack = streamgauge::measure::time::Gap::from_nanos(200_000);
        assert!(
            arrival.at.after(slack) >= before && arrival.at <= sent.after(slack),
            "{arrival:?} {before:?} {sent:?}"
        );
        assert!(read.since(arrival.at).as_millis() >= 55.0, "the reader came {} later", read.since(arrival.at));
    }
}

#[test]
fn an_emptied_socket_is_waited_for_and_its_next_bytes_are_found() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut sender, _) = listener.accept().unwrap();
        let mut io = MaybeTlsStream::plain(socket);
        let writer = std::thread::spawn(move || {
            for n in 0..2_000u32 {
                sender.write_all(&n.to_be_bytes()).unwrap();
                if n % 7 == 0 {
                    std::thread::sleep(Duration::from_micros(u64::from(n % 50)));
                }
            }
        });
        let (mut seen, mut last) = (Vec::new(), None);
        while let Some((bytes, arrival)) =
            poll_fn(|cx| io.poll_read(cx, |bytes, arrival| (bytes.to_vec(), arrival))).await.unwrap()
        {
            assert!(last <= Some(arrival.at), "stamps do not run backwards");
            last = Some(arrival.at);
            seen.extend_from_slice(&bytes);
        }
        writer.join().unwrap();
        let expected: Vec<u8> = (0..2_000u32).flat_map(u32::to_be_bytes).collect();
        assert_eq!(seen, expected);
    });
}
