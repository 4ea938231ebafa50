//! One run: starts servers, proxies and clients, disturbs them, and checks what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use streamgauge::trace_file::reader::TraceReader;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::client::{Clients, Group, Target};
use crate::clock::WallClock;
use crate::collector::Collector;
use crate::disturbance::{Action, STEADY, World, schedule};
use crate::oracle::Oracle;
use crate::proxy::{Proxy, Setting, can_mount};
use crate::server::{Planted, Server};
use crate::support::http2::{Pki, client_config, runtime, server_config};
use crate::usage::Series;
use crate::{Options, report, server, support};

/// The kinds of clients, each with a quarter of the streams.
const KINDS: [&str; 4] =
    ["HTTP/1 → HTTP/1", "HTTP/2 → HTTP/1", "HTTP/1 over TLS → HTTP/2 over TLS", "HTTP/2 over TLS → HTTP/2 over TLS"];
/// The longest stream of a long run. A process that takes over is steady after it.
const MAX_STREAM_DURATION: Duration = Duration::from_secs(40);
/// The longest wait for everything to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Memory that the history of the live page, the capture and the allocator may take while they fill.
const FILLING_KIB: f64 = 48.0 * 1024.0;
/// Share of the requests whose kept connection may have closed when the client, which may be late, used it.
const MAX_SENT_AGAIN: f64 = 0.005;
/// Descriptors that a proxy may have more than at its start once all clients have left: idle connections.
const IDLE_DESCRIPTORS: f64 = 16.0;

/// Runs, prints the report, and returns whether everything held.
pub(crate) fn soak(options: &Options) -> bool {
    // Both ends of each connection are here.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let longest = MAX_STREAM_DURATION.min(options.length / 4);
    let (pki, oracle, collector) = (Pki::new(), Arc::<Oracle>::default(), Arc::<Collector>::default());
    pki.issue("proxy", &["127.0.0.1"]);
    let server =
        Arc::new(Server { oracle: Arc::clone(&oracle), longest, planted: options.planted, open: AtomicU64::new(0) });
    let [plain, secure, otlp] = start_servers(&server, &collector, &pki, options.seed);
    let (clock, has_disk) = (WallClock::new().ok(), can_mount());
    let setting = Setting { collector: otlp, clock: clock.as_ref(), has_disk };
    let (cert, key, ca) = (pki.text("proxy.pem"), pki.text("proxy.key"), pki.text("ca.pem"));
    let tls = [format!("--tls-cert={cert}"), format!("--tls-key={key}"), format!("--upstream-ca={ca}")];
    let proxies = [
        Proxy::start("proxy in clear", &format!("http://{plain}"), &setting, &[]),
        Proxy::start("proxy with TLS", &format!("https://{secure}"), &setting, &tls),
    ];
    let baseline = proxies.each_ref().map(|proxy| proxy.usage().map_or(0.0, |(_, descriptors)| descriptors));
    let clients = Arc::new(Clients {
        oracle: Arc::clone(&oracle),
        stop: AtomicBool::new(false),
        seed: options.seed << 32,
        used: AtomicU64::new(0),
        longest,
        ramp: longest / 4,
    });
    let groups = groups(&proxies, &pki, options.streams);
    let mut world = World::new(proxies, &collector, &oracle.listening, clock, has_disk, &pki);
    if support::forbids_skips() {
        let skipped = world.skipped().into_iter().map(|[what, reason]| format!("{what}: skipped: {reason}"));
        world.failures.extend(skipped);
    }
    let (done, slots) = start_clients(Arc::clone(&clients), groups);
    let series = observe(options, &mut world, &oracle);

    clients.stop.store(true, Ordering::SeqCst);
    let ended = done.recv_timeout(longest + PATIENCE);
    if ended.is_ok() {
        slots.join().unwrap();
    }
    let panicked = ended.map_err(|_| format!("{} streams hang", oracle.open()));
    world.check_recovery();
    leave(&mut world, &server, baseline);
    let from = options.length.mul_f64(STEADY.0) + longest;
    let slopes: Vec<_> =
        series.into_iter().map(|series| (series.slope(from, options.length.mul_f64(STEADY.1)), series)).collect();
    let slopes: Vec<_> = slopes.into_iter().map(|(slope, series)| (series, slope)).collect();
    let counts = oracle.counts();

    println!(
        "soak of {}, {} streams, seed {}\n",
        humantime::format_duration(options.length),
        options.streams,
        options.seed
    );
    report::print(&report::streams(&counts, &KINDS));
    report::print(&report::faults(&counts));
    report::print(&report::events(&world));
    report::print(&report::slopes(&slopes));
    let rising = slopes.iter().filter(|(_, slope)| slope.as_ref().is_some_and(|slope| !slope.is_zero)).count();
    let total: u64 = counts.outcomes.values().sum();
    let closed = oracle.closed.load(Ordering::SeqCst);
    let hanging = match &panicked {
        Ok(0) => "none".to_owned(),
        Ok(number) => format!("{number} clients stopped at what they read"),
        Err(reason) => reason.clone(),
    };
    let checks = [
        ("wrong bytes", format!("{} of {}", counts.wrong_bytes, counts.bytes), counts.wrong_bytes == 0),
        ("broken by no fault", format!("{} of {total}", counts.broken), counts.broken == 0),
        (
            "sent again on a new connection",
            format!("{closed} of {total}"),
            closed as f64 <= MAX_SENT_AGAIN * total as f64,
        ),
        ("clients that hang", hanging, panicked == Ok(0)),
        ("slopes above 0", format!("{rising} of {}", slopes.len()), rising == 0),
        ("disturbances and recovery", format!("{} failures", world.failures.len()), world.failures.is_empty()),
    ];
    report::print(&report::verdicts(&checks));
    counts.reasons.iter().chain(&world.failures).for_each(|reason| eprintln!("soak: {reason}"));
    let sent_again = oracle.sent_again.load(Ordering::SeqCst);
    eprintln!("soak: clients sent {sent_again} requests again after a GOAWAY that had not processed them");
    checks.iter().all(|(_, _, holds)| *holds)
}

/// The servers and the collector, on a thread of their own.
fn start_servers(server: &Arc<Server>, collector: &Arc<Collector>, pki: &Pki, seed: u64) -> [std::net::SocketAddr; 3] {
    let (sender, receiver) = mpsc::channel();
    let acceptor = TlsAcceptor::from(Arc::new(server_config(pki, None)));
    let (server, collector) = (Arc::clone(server), Arc::clone(collector));
    thread::spawn(move || {
        runtime().block_on(async {
            let plain = server::listen(Arc::clone(&server), None, seed).await;
            let secure = server::listen(server, Some(acceptor), seed).await;
            sender.send([plain, secure, collector.listen().await]).unwrap();
            std::future::pending::<()>().await;
        });
    });
    receiver.recv().unwrap()
}

fn groups(proxies: &[Proxy; 2], pki: &Pki, streams: usize) -> Vec<Group> {
    let tls = |alpn| Some(TlsConnector::from(Arc::new(client_config(pki, &[alpn]))));
    let group = |index: usize, is_http2, proxy: &Proxy, tls| {
        let target = Target { address: proxy.running.listen, tls };
        Group { kind: KINDS[index], is_http2, target, slots: streams / KINDS.len() }
    };
    vec![
        group(0, false, &proxies[0], None),
        group(1, true, &proxies[0], None),
        group(2, false, &proxies[1], tls("http/1.1")),
        group(3, true, &proxies[1], tls("h2")),
    ]
}

/// Starts the clients on a thread of their own, which sends the number of panics once all have ended.
fn start_clients(clients: Arc<Clients>, groups: Vec<Group>) -> (mpsc::Receiver<usize>, JoinHandle<()>) {
    let (sender, receiver) = mpsc::channel();
    let slots = thread::spawn(move || {
        let panicked = runtime().block_on(crate::client::run(clients, groups));
        // The receiver may have timed out.
        let _waiting = sender.send(panicked).is_ok();
    });
    (receiver, slots)
}

/// Samples once a second, and follows the schedule.
fn observe(options: &Options, world: &mut World<'_>, oracle: &Oracle) -> Vec<Series> {
    let memory = |proxy: &Proxy| Series::new(format!("{}, memory in KiB", proxy.name), FILLING_KIB);
    let descriptors = |proxy: &Proxy| Series::new(format!("{}, descriptors", proxy.name), options.streams as f64 / 2.0);
    let mut series: Vec<Series> = world.proxies.iter().flat_map(|proxy| [memory(proxy), descriptors(proxy)]).collect();
    let mut actions = schedule(options.seed, options.length).into_iter().peekable();
    let (began, mut second) = (Instant::now(), 0_u32);
    while began.elapsed() < options.length {
        second += 1;
        thread::sleep((began + Duration::from_secs(1) * second).saturating_duration_since(Instant::now()));
        let at = began.elapsed();
        for (index, proxy) in world.proxies.iter().enumerate() {
            let Some((resident, descriptors)) = proxy.usage() else {
                world.failures.push(format!("{}: process {} has ended", proxy.name, proxy.process));
                return series;
            };
            let planted = if options.planted == Some(Planted::MemoryRise) { at.as_secs_f64() * 4e6 } else { 0.0 };
            series[2 * index].add(at, (resident + planted) / 1024.0);
            series[2 * index + 1].add(at, descriptors);
        }
        while let Some((_, action)) = actions.next_if(|(due, _)| *due <= at) {
            eprintln!("soak: {:>5.0} s: {action:?}, {} streams open", at.as_secs_f64(), oracle.open());
            if let Action::TakeOver(proxy) = action {
                let judged = options.length.mul_f64(STEADY.1);
                series[2 * proxy..2 * proxy + 2].iter_mut().for_each(|series| series.restarted(at, judged));
            }
            world.perform(action);
        }
    }
    series
}

/// Checks that nothing is left once all clients have ended, and ends the proxies.
fn leave(world: &mut World<'_>, server: &Server, baseline: [f64; 2]) {
    let began = Instant::now();
    let mut left = Vec::new();
    while began.elapsed() < PATIENCE {
        left.clear();
        let open = server.open.load(Ordering::SeqCst);
        if open > 0 {
            left.push(format!("the server still answers {open} requests after all clients have ended"));
        }
        for (proxy, baseline) in world.proxies.iter().zip(baseline) {
            let active = proxy.metric("http_server_active_requests", "");
            let descriptors = proxy.usage().map_or(0.0, |(_, descriptors)| descriptors);
            if active != 0.0 || descriptors > baseline + IDLE_DESCRIPTORS {
                let name = proxy.name;
                left.push(format!(
                    "{name}: {active} requests and {descriptors} descriptors are left; {baseline} at first"
                ));
            }
        }
        if left.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(500));
    }
    world.failures.append(&mut left);
    for proxy in &world.proxies {
        match TraceReader::open(&proxy.capture()) {
            Err(error) => world.failures.push(format!("{}: the capture cannot be read: {error}", proxy.name)),
            Ok(mut rows) => {
                if let Some(error) = rows.by_ref().find_map(Result::err) {
                    world.failures.push(format!("{}: a row of the capture cannot be read: {error}", proxy.name));
                }
            }
        }
        if let Err(reason) = proxy.stop(PATIENCE) {
            world.failures.push(reason);
        }
        let log = proxy.running.log();
        if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
            world.failures.push(format!("{}: {line}", proxy.name));
        }
    }
}
