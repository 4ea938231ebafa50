//! Disturbances around the streams: their times, and the evidence that each happened and is over.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::clock::WallClock;
use crate::collector::{Collector, Mode};
use crate::listening::Listening;
use crate::proxy::{GOOD, INVALID, Proxy};
use crate::support::http2::Pki;

/// The longest wait for a proxy's log line after a signal.
const PATIENCE: Duration = Duration::from_secs(60);
/// Shares of the run in which a proxy is one process, so that its memory can be compared with itself.
pub(crate) const STEADY: (f64, f64) = (0.2, 0.9);
const TAKEOVERS: [(f64, usize); 4] = [(0.03, 0), (0.06, 1), (0.92, 0), (0.96, 1)];
const DAY: i64 = 86_400;

/// A thing that happens at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    CollectorFails(Mode),
    CollectorWorks,
    ServersRefuse,
    ServersListen,
    DiskFills,
    DiskEmpties,
    Reload(usize),
    BreakConfiguration(usize),
    MendConfiguration(usize),
    RenewCertificate,
    ClockJump(i64),
    TakeOver(usize),
}

/// When each action happens, from the start of the run. A run below a minute has none.
pub(crate) fn schedule(seed: u64, length: Duration) -> Vec<(Duration, Action)> {
    if length < Duration::from_secs(60) {
        return Vec::new();
    }
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut actions: Vec<_> =
        TAKEOVERS.iter().map(|(share, proxy)| (length.mul_f64(*share), Action::TakeOver(*proxy))).collect();
    let steady = (length.mul_f64(STEADY.0 + 0.02), length.mul_f64(STEADY.1 - 0.02));
    let period = (length / 12).clamp(Duration::from_secs(6), Duration::from_secs(60));
    let mut at = steady.0;
    let mut kinds: Vec<usize> = Vec::new();
    while at + period < steady.1 {
        if kinds.is_empty() {
            kinds = (0..7).collect();
            kinds.shuffle(&mut random);
        }
        let (proxy, end) = (random.random_range(0..2), at + period.mul_f64(0.7));
        match kinds.pop() {
            Some(0) => {
                let modes = [Mode::Closes, Mode::Hangs, Mode::Refuses];
                actions.push((at, Action::CollectorFails(modes[random.random_range(0..modes.len())])));
                actions.push((end, Action::CollectorWorks));
            }
            Some(1) => actions.extend([(at, Action::DiskFills), (end, Action::DiskEmpties)]),
            Some(2) => actions.push((at, Action::Reload(proxy))),
            Some(3) => {
                actions.extend([(at, Action::BreakConfiguration(proxy)), (end, Action::MendConfiguration(proxy))])
            }
            Some(4) => actions.push((at, Action::RenewCertificate)),
            Some(5) => {
                actions.extend([(at, Action::ServersRefuse), (at + period.mul_f64(0.2), Action::ServersListen)]);
            }
            _ => {
                let jumps = [-8 * DAY, -3_600, -1, 1, 3_600, 8 * DAY];
                let jump = jumps[random.random_range(0..jumps.len())];
                actions.extend([(at, Action::ClockJump(jump)), (end, Action::ClockJump(-jump))]);
            }
        }
        at += period;
    }
    actions.sort_by_key(|(at, _)| *at);
    actions
}

/// The world around the streams.
pub(crate) struct World<'a> {
    pub(crate) proxies: [Proxy; 2],
    pub(crate) collector: &'a Collector,
    pub(crate) listening: &'a Listening,
    pub(crate) clock: Option<WallClock>,
    pub(crate) has_disk: bool,
    pub(crate) pki: &'a Pki,
    /// Events, their numbers, and the last evidence.
    pub(crate) events: BTreeMap<&'static str, (u64, String)>,
    pub(crate) failures: Vec<String>,
    lost: [f64; 2],
    accepted: u64,
    answered: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        proxies: [Proxy; 2],
        collector: &'a Collector,
        listening: &'a Listening,
        clock: Option<WallClock>,
        has_disk: bool,
        pki: &'a Pki,
    ) -> Self {
        let (events, failures) = (BTreeMap::new(), Vec::new());
        Self {
            proxies,
            collector,
            listening,
            clock,
            has_disk,
            pki,
            events,
            failures,
            lost: [0.0; 2],
            accepted: 0,
            answered: 0,
        }
    }

    /// Disturbances that this machine does not permit, and why.
    pub(crate) fn skipped(&self) -> Vec<[&'static str; 2]> {
        let disk = (!self.has_disk).then_some(["disk full", "this machine allows no disk of a process"]);
        let clock = self.clock.is_none().then_some(["clock jump", "no C compiler"]);
        disk.into_iter().chain(clock).collect()
    }

    /// Does it, and notes the evidence or a failure.
    pub(crate) fn perform(&mut self, action: Action) {
        match action {
            Action::CollectorFails(mode) => {
                self.collector.set(mode);
                self.accepted = self.collector.accepted();
                self.happened("collector down", Ok(format!("{mode:?}")));
            }
            Action::CollectorWorks => {
                self.collector.set(Mode::Works);
                let accepted = self.collector.accepted();
                self.evidence("collector down", accepted - self.accepted <= 2, format!("{accepted} exports before"));
                self.accepted = accepted;
            }
            Action::ServersRefuse => {
                self.answered = self.listening.answered();
                self.listening.stop();
                self.happened("servers refuse", Ok(String::new()));
            }
            Action::ServersListen => {
                self.listening.resume();
                let answered = self.listening.answered() - self.answered;
                self.evidence("servers refuse", answered > 0, format!("{answered} answers of the proxy"));
            }
            Action::DiskFills if self.has_disk => {
                self.lost = self.proxies.each_ref().map(lost_to_disk);
                self.proxies.iter().for_each(fill);
                self.happened("disk full", Ok(String::new()));
            }
            Action::DiskEmpties if self.has_disk => {
                let lost = [0, 1].map(|n| lost_to_disk(&self.proxies[n]) - self.lost[n]);
                self.proxies.iter().for_each(|proxy| _ = fs::remove_file(proxy.capture().join(BALLAST)).is_ok());
                self.evidence(
                    "disk full",
                    lost.iter().all(|lost| *lost > 0.0),
                    format!("{} rows lost", lost[0] + lost[1]),
                );
            }
            Action::DiskFills | Action::DiskEmpties => {}
            Action::Reload(proxy) => {
                let times = self.events.get("reload").map_or(0, |(times, _)| *times as usize);
                self.proxies[proxy].configure(GOOD[(times + 1) % 2]);
                let line = self.proxies[proxy].wait_for_log("the configuration was loaded again", PATIENCE);
                self.happened("reload", line.map(|_| "loaded".to_owned()));
            }
            Action::BreakConfiguration(proxy) => {
                self.proxies[proxy].configure(INVALID);
                let line = self.proxies[proxy].wait_for_log("the old configuration stays in force", PATIENCE);
                self.happened("invalid configuration", line.map(|_| "refused".to_owned()));
            }
            Action::MendConfiguration(proxy) => {
                self.proxies[proxy].configure(GOOD[0]);
                let line = self.proxies[proxy].wait_for_log("the configuration was loaded again", PATIENCE);
                self.happened("reload", line.map(|_| "loaded".to_owned()));
            }
            Action::RenewCertificate => {
                self.pki.issue("proxy", &["127.0.0.1"]);
                self.proxies[1].signal(Signal::SIGHUP);
                let line = self.proxies[1].wait_for_log("certificates and tokens were read again", PATIENCE);
                self.happened("certificate renewed", line.map(|_| "read".to_owned()));
            }
            Action::ClockJump(seconds) => {
                let Some(clock) = &mut self.clock else { return };
                clock.jump(seconds);
                self.happened("clock jump", Ok(format!("{seconds} s")));
            }
            Action::TakeOver(proxy) => {
                let taken = self.proxies[proxy].take_over(PATIENCE);
                let process = self.proxies[proxy].process;
                self.happened("restart (takeover)", taken.map(|()| format!("process {process}")));
            }
        }
    }

    fn happened(&mut self, what: &'static str, result: Result<String, String>) {
        let event = self.events.entry(what).or_default();
        event.0 += 1;
        match result {
            Ok(seen) => event.1 = seen,
            Err(reason) => self.failures.push(format!("{what}: {reason}")),
        }
    }

    fn evidence(&mut self, what: &'static str, holds: bool, seen: String) {
        if !holds {
            self.failures.push(format!("{what}: no effect was seen: {seen}"));
        }
        self.events.entry(what).or_default().1 = seen;
    }

    /// Checks that everything works again once all disturbances are over.
    pub(crate) fn check_recovery(&mut self) {
        if self.collector.accepted() == self.accepted {
            self.failures.push("collector: no export was accepted after its last failure".to_owned());
        }
        for proxy in &self.proxies {
            if self.has_disk && proxy.metric("streamgauge_capture_records_total", "\"whole\"") == 0.0 {
                self.failures.push(format!("{}: nothing was captured", proxy.name));
            }
        }
    }
}

/// The file that fills a disk.
const BALLAST: &str = "ballast";

fn lost_to_disk(proxy: &Proxy) -> f64 {
    proxy.metric("streamgauge_capture_records_total", "\"disk\"")
}

fn fill(proxy: &Proxy) {
    let Ok(mut file) = fs::File::create(proxy.capture().join(BALLAST)) else { return };
    while file.write_all(&[0; 4096]).is_ok() {}
}
