//! The rows of the speed table: what load each is, what is read off it, and what streamgauge is to reach.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use crate::client::{Plan, Tally, Work, drive};
use crate::cpu::{cores, cpu_of_tree, machine_cpu, own_cpu};
use crate::memory;
use crate::page;
use crate::peers::{House, Peer, Running};
use crate::script::{Reply, Script, Varies, now};
use crate::table::{Measure, Table};
use crate::upstream::Upstream;

/// A row, or a family of rows, of the speed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Row {
    /// 64 streams, an event every 10 ms on each.
    Paced,
    /// 256 and 512 streams, an event every 20 ms on each.
    Many,
    /// 4 connections, replies of 256 events back to back.
    Burst,
    /// As `burst`, with a number, a running usage, or top-1 log probabilities that vary too.
    Varying,
    /// 16 connections, replies of one event.
    Short,
    /// As `short`, over HTTP/2: 4 connections with 4 requests at a time on each.
    ShortOverHttp2,
    /// As `burst`, over HTTP/2: 2 connections with 2 requests at a time on each.
    BurstOverHttp2,
    /// Memory per open stream, at 64 and 512 streams.
    Memory,
    /// From the upstream's write to the client's read, 64 streams x 10 ms.
    Latency,
    /// 2,000 requests to an upstream that hangs up after each reply.
    Reuse,
    /// Cost of an open live page.
    Page,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) seconds: u64,
    pub(crate) rounds: usize,
}

/// A figure of a load, and its computation.
type Figure = (Measure, fn(&Outcome) -> f64);

/// One load, and the figures that are read off it.
struct Load {
    row: String,
    script: Script,
    connections: usize,
    work: Work,
    /// Requests at a time on each connection, over HTTP/2; HTTP/1.1 if `None`.
    http2_streams: Option<usize>,
    figures: Vec<Figure>,
}

/// One peer under one load, once.
pub(crate) struct Outcome {
    /// CPU nanoseconds of the proxy; of the bench itself on the direct way.
    cpu: u64,
    /// The share of the machine that went to processes which have nothing to do with the bench.
    pub(crate) foreign: f64,
    pub(crate) tally: Tally,
}

/// The share of the machine in other hands above which a figure is doubtful.
pub(crate) const DISTURBED: f64 = 0.1;

const MILLISECOND: u64 = 1_000_000;

const STEADY: Script = Script { events: 1, gap: 0, hangs_up: false, varies: Varies::Text };

impl Row {
    /// Measures the row with every peer, one after the other, `rounds` times over.
    pub(crate) fn measure(self, house: &House, peers: &[Peer], effort: Effort) -> Result<Vec<Table>> {
        match self {
            Self::Memory => return memory::measure(house, peers, effort.rounds.min(3)),
            Self::Page => return page::measure(house, peers, effort.seconds, effort.rounds),
            _ => {}
        }
        let mut tables = Vec::new();
        for load in self.loads(effort.seconds) {
            tables.extend(load.measure(house, peers, effort.rounds)?);
        }
        Ok(tables)
    }

    fn loads(self, seconds: u64) -> Vec<Load> {
        let paced = |streams: usize, millis: u64| Load {
            row: format!("{streams} streams x {millis} ms"),
            script: Script { events: (seconds * 1_000 / millis) as usize, gap: millis * MILLISECOND, ..STEADY },
            connections: streams,
            work: Work::OneEach,
            http2_streams: None,
            figures: vec![(Measure::ratio("CPU µs per event", Peer::Haproxy, 1.0), per_event)],
        };
        let flat_out = |row: &str, events: usize, connections: usize| Load {
            row: row.to_owned(),
            script: Script { events, ..STEADY },
            connections,
            work: Work::For(seconds * 1_000 * MILLISECOND),
            http2_streams: None,
            figures: Vec::new(),
        };
        match self {
            Self::Paced => vec![paced(64, 10)],
            Self::Many => vec![paced(256, 20), paced(512, 20)],
            Self::Burst => vec![Load {
                figures: vec![(Measure::ratio("CPU µs per event", Peer::Nginx, 1.0), per_event)],
                ..flat_out("burst of 256 events", 256, 4)
            }],
            Self::Varying => {
                let kinds = [
                    ("burst, a number varies", Varies::Number),
                    ("burst, running usage", Varies::Usage),
                    ("burst, log probabilities", Varies::LogProbabilities),
                ];
                let load = |(row, varies): (&str, Varies)| Load {
                    figures: vec![(Measure::ratio("CPU µs per event", Peer::Nginx, 0.7), per_event)],
                    script: Script { events: 256, varies, ..STEADY },
                    ..flat_out(row, 256, 4)
                };
                kinds.map(load).into()
            }
            Self::Short => vec![Load {
                figures: vec![(Measure::ratio("CPU µs per request", Peer::Nginx, 1.0), per_request)],
                ..flat_out("1 event per request", 1, 16)
            }],
            Self::ShortOverHttp2 => vec![Load {
                http2_streams: Some(4),
                figures: vec![(Measure::ratio("CPU µs per request", Peer::Haproxy, 1.1), per_request)],
                ..flat_out("short over HTTP/2", 1, 4)
            }],
            Self::BurstOverHttp2 => vec![Load {
                http2_streams: Some(2),
                figures: vec![(Measure::ratio("CPU µs per request", Peer::Nginx, 1.0), per_request)],
                ..flat_out("burst over HTTP/2", 256, 2)
            }],
            Self::Latency => vec![Load {
                row: "delay, 64 streams x 10 ms".to_owned(),
                figures: vec![
                    (Measure { what: "p50 µs", reference: Some(Peer::Nginx), goal: None }, |o| o.delay(0.5)),
                    (Measure::ratio("p99 µs", Peer::Nginx, 1.1), |o| o.delay(0.99)),
                ],
                ..paced(64, 10)
            }],
            Self::Reuse => vec![Load {
                row: "upstream hangs up".to_owned(),
                script: Script { events: 4, gap: MILLISECOND / 2, hangs_up: true, ..STEADY },
                connections: 4,
                work: Work::Total(2_000),
                http2_streams: None,
                figures: vec![(Measure::most("requests lost of 2,000", 0.0), |o| o.tally.failed() as f64)],
            }],
            Self::Memory | Self::Page => Vec::new(),
        }
    }
}

impl Load {
    fn measure(&self, house: &House, peers: &[Peer], rounds: usize) -> Result<Vec<Table>> {
        let reply = Arc::new(Reply::new(self.script));
        let upstream = Upstream::start(Arc::clone(&reply))?;
        let http2 = self.http2_streams.is_some();
        let house = &House { http2_only: http2, ..house.clone() };
        let peers: &[Peer] = &peers.iter().copied().filter(|peer| !http2 || peer.takes_http2()).collect::<Vec<_>>();
        let running: Vec<Running> =
            peers.iter().map(|peer| house.start(*peer, upstream.address)).collect::<Result<_>>()?;
        let mut tables: Vec<Table> =
            self.figures.iter().map(|(measure, _)| Table::new(self.row.clone(), *measure, peers)).collect();
        for round in 0..rounds {
            // Everybody is first once: what a run leaves behind does not always fall on the same peer.
            for turn in 0..running.len() {
                let running = &running[(turn + round) % running.len()];
                eprintln!("side_by_side: {}, round {} of {rounds}: {}", self.row, round + 1, running.peer.name());
                let plan = Plan {
                    target: running.address,
                    connections: self.connections,
                    models: 1,
                    work: self.work,
                    http2_streams: self.http2_streams,
                    reply: Arc::clone(&reply),
                    opened: Arc::new(AtomicUsize::new(0)),
                };
                let outcome = observe_in_peace(running, &plan);
                for (table, (_, figure)) in tables.iter_mut().zip(&self.figures) {
                    table.add(running.peer, outcome.as_ref().map(figure).ok());
                }
                if let Some(first) = tables.first_mut() {
                    first.note(running.peer, outcome.as_ref());
                }
            }
        }
        Ok(tables)
    }
}

/// As [`observe`], again when others used the machine meanwhile; the least disturbed of three tries counts.
fn observe_in_peace(running: &Running, plan: &Plan) -> Result<Outcome> {
    let mut best = observe(running, plan)?;
    for _ in 0..2 {
        if best.foreign < DISTURBED {
            break;
        }
        eprintln!("side_by_side: other processes took {:.0} % of the machine: once more", best.foreign * 100.0);
        let again = observe(running, plan)?;
        if again.foreign < best.foreign {
            best = again;
        }
    }
    Ok(best)
}

/// Runs `plan` through `running`.
pub(crate) fn observe(running: &Running, plan: &Plan) -> Result<Outcome> {
    /// A proxy's work at the end of its streams, and just after, is part of their price.
    const AFTERMATH: Duration = Duration::from_millis(300);
    let peer_cpu = || running.pid().map_or(0, cpu_of_tree);
    let (began, machine, own, peer) = (now(), machine_cpu(), own_cpu(), peer_cpu());
    let mut tally = drive(plan)?;
    std::thread::sleep(AFTERMATH);
    let (own, peer) = (own_cpu() - own, peer_cpu().saturating_sub(peer));
    let elapsed = (now() - began) * cores() as u64;
    let foreign = (machine_cpu() - machine).saturating_sub(own + peer) as f64 / elapsed as f64;
    tally.delays.sort_unstable();
    let cpu = if running.peer == Peer::Direct { own } else { peer };
    Ok(Outcome { cpu, foreign, tally })
}

fn per_event(outcome: &Outcome) -> f64 {
    outcome.cpu as f64 / 1e3 / outcome.tally.events as f64
}

fn per_request(outcome: &Outcome) -> f64 {
    outcome.cpu as f64 / 1e3 / outcome.tally.requests as f64
}

impl Outcome {
    /// The `quantile` of the events' delays in microseconds.
    fn delay(&self, quantile: f64) -> f64 {
        let rank = (self.tally.delays.len() as f64 * quantile) as usize;
        self.tally.delays.get(rank).map_or(f64::NAN, |nanos| *nanos as f64 / 1e3)
    }
}
