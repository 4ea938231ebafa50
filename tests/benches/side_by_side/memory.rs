//! The memory row: what a fresh proxy weighs, and what each open stream adds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};

use crate::client::{Plan, Tally, Work, drive};
use crate::cpu::memory_of_tree;
use crate::peers::{House, Peer, Running};
use crate::script::{Reply, Script, Varies};
use crate::table::{Measure, Table};
use crate::upstream::Upstream;

const MIN_STREAMS: usize = 64;
const MAX_STREAMS: usize = 512;

/// Long enough for both measurements; an event every 20 ms, so that streams are open and at work.
const SCRIPT: Script = Script { events: 400, gap: 20_000_000, hangs_up: false, varies: Varies::Text };

/// Memory in KiB of one peer, once.
struct Weights {
    base: f64,
    few: f64,
    few_resident: f64,
    many: f64,
}

pub(crate) fn measure(house: &House, peers: &[Peer], rounds: usize) -> Result<Vec<Table>> {
    let peers: Vec<Peer> = peers.iter().copied().filter(|peer| *peer != Peer::Direct).collect();
    let row = || "memory".to_owned();
    let mut base = Table::new(row(), Measure::most("base, MiB (PSS)", 20.0), &peers);
    let mut few = Table::new(row(), Measure::plain("64 streams, MiB (PSS)"), &peers);
    let mut resident = Table::new(row(), Measure::plain("64 streams, MiB (RSS)"), &peers);
    let mut per_few = Table::new(row(), Measure::plain("KiB per stream at 64"), &peers);
    let mut per_many = Table::new(row(), Measure::most("KiB per stream at 512", 20.0), &peers);
    let reply = Arc::new(Reply::new(SCRIPT));
    let upstream = Upstream::start(Arc::clone(&reply))?;
    for round in 0..rounds {
        for peer in &peers {
            eprintln!("side_by_side: memory, round {} of {rounds}: {}", round + 1, peer.name());
            let running = house.start(*peer, upstream.address)?;
            let weights = weigh(&running, &reply);
            let read = |of: fn(&Weights) -> f64| weights.as_ref().ok().map(of);
            base.add(*peer, read(|w| w.base / 1024.0));
            few.add(*peer, read(|w| w.few / 1024.0));
            resident.add(*peer, read(|w| w.few_resident / 1024.0));
            per_few.add(*peer, read(|w| (w.few - w.base) / MIN_STREAMS as f64));
            per_many.add(*peer, read(|w| (w.many - w.base) / MAX_STREAMS as f64));
            if let Err(error) = &weights {
                base.remark(format!("{}: {error:#}", peer.name()));
            }
        }
    }
    Ok(vec![base, few, resident, per_few, per_many])
}

fn weigh(running: &Running, reply: &Arc<Reply>) -> Result<Weights> {
    let pid = running.pid().ok_or_else(|| anyhow!("{} has no process", running.peer.name()))?;
    let weight = || {
        let (resident, proportional) = memory_of_tree(pid);
        (resident as f64, proportional as f64)
    };
    let plan = |connections| Plan {
        target: running.address,
        connections,
        models: 1,
        work: Work::OneEach,
        http2_streams: None,
        reply: Arc::clone(reply),
        opened: Arc::new(AtomicUsize::new(0)),
    };
    std::thread::sleep(Duration::from_millis(500));
    let (_, base) = weight();
    std::thread::scope(|scope| {
        let first = open(scope, plan(MIN_STREAMS))?;
        let (few_resident, few) = weight();
        let second = open(scope, plan(MAX_STREAMS - MIN_STREAMS))?;
        let (_, many) = weight();
        for streams in [first, second] {
            let tally = streams.join().map_err(|_| anyhow!("the client panicked"))??;
            ensure!(tally.failed() == 0, "{} of {} streams failed", tally.failed(), tally.requests);
        }
        Ok(Weights { base, few, few_resident, many })
    })
}

/// Opens the streams of `plan` and returns when all have run for a second.
fn open<'scope>(scope: &'scope Scope<'scope, '_>, plan: Plan) -> Result<ScopedJoinHandle<'scope, Result<Tally>>> {
    let (opened, connections) = (Arc::clone(&plan.opened), plan.connections);
    let streams = scope.spawn(move || drive(&plan));
    while opened.load(Ordering::Relaxed) < connections {
        ensure!(!streams.is_finished(), "only {} of {connections} streams opened", opened.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(streams)
}
