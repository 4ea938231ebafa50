//! Flags for when a run sends, and for which requests count.

use std::time::SystemTime;

use anyhow::Context as _;

use crate::cli::values::parse_duration;
use crate::measure::time::Gap;
use crate::replay::plan::schedule::Shard;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct TimingArgs {
    /// Start sending at this UTC time, e.g. 2026-11-21T12:00:00Z, to synchronize several machines
    ///
    /// `all` starts when all shards of --shard are ready; they meet at the prefix of --upload.
    #[arg(long, value_name = "TIME|all", value_parser = start_at, help_heading = "Timing")]
    pub(in crate::cli) start_at: Option<StartAt>,

    /// Send part I of N of the load, e.g. 1/4, in whole sessions
    ///
    /// The N parts together are the load that one machine would send. `job/4` reads the part from JOB_COMPLETION_INDEX, which
    /// an Indexed Job of Kubernetes sets.
    #[arg(long, value_name = "I/N|job/N", value_parser = shard, help_heading = "Timing")]
    pub(in crate::cli) shard: Option<ShardArg>,

    /// Exclude the first requests from the figures: a time, e.g. 30s, or a number, e.g. 100req
    #[arg(long, value_name = "DURATION|Nreq", value_parser = warmup, help_heading = "Timing")]
    pub(in crate::cli) warmup: Option<WarmupArg>,

    /// Exclude requests sent in the last DURATION of the run from the figures
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Timing")]
    pub(in crate::cli) cooldown: Option<Gap>,
}

/// This process's shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum ShardArg {
    Explicit(Shard),
    /// One of N; Kubernetes sets the index.
    JobIndex(u64),
}

/// Index of a pod in a Kubernetes Indexed Job, from 0.
const JOB_INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// When to start sending.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum StartAt {
    Time(SystemTime),
    /// When all shards are ready.
    AllShards,
}

/// The warm-up, excluded from the figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum WarmupArg {
    Duration(Gap),
    Requests(u64),
}

impl TimingArgs {
    /// This process's shard.
    pub(in crate::cli) fn shard(&self) -> anyhow::Result<Shard> {
        match self.shard {
            None => Ok(Shard::default()),
            Some(ShardArg::Explicit(shard)) => Ok(shard),
            Some(ShardArg::JobIndex(of)) => {
                let index = std::env::var(JOB_INDEX_VARIABLE).ok();
                let index =
                    index.with_context(|| format!("--shard job/{of}: there is no variable {JOB_INDEX_VARIABLE}"))?;
                let index = index.parse().ok().filter(|index| *index < of);
                let index = index
                    .with_context(|| format!("--shard job/{of}: {JOB_INDEX_VARIABLE} is not from 0 to {}", of - 1))?;
                Ok(Shard { index, count: of })
            }
        }
    }
}

fn start_at(text: &str) -> Result<StartAt, &'static str> {
    if text == "all" {
        return Ok(StartAt::AllShards);
    }
    let moment = humantime::parse_rfc3339(text).map(StartAt::Time);
    moment.map_err(|_| "expected a moment in UTC, as in 2026-11-21T12:00:00Z, or all")
}

fn shard(text: &str) -> Result<ShardArg, &'static str> {
    const SHAPE: &str = "expected I/N with I from 1 to N, as in 1/4, or job/N";
    let (index, of) = text.split_once('/').ok_or(SHAPE)?;
    let of = of.parse().ok().filter(|of| *of > 0).ok_or(SHAPE)?;
    if index == "job" {
        return Ok(ShardArg::JobIndex(of));
    }
    let index = index.parse().ok().filter(|index| (1..=of).contains(index)).ok_or(SHAPE)?;
    Ok(ShardArg::Explicit(Shard { index: index - 1, count: of }))
}

fn warmup(text: &str) -> Result<WarmupArg, String> {
    match text.strip_suffix("req") {
        Some(number) => {
            number.trim().parse().map(WarmupArg::Requests).map_err(|_| "expected a number of requests".into())
        }
        None => parse_duration(text).map(WarmupArg::Duration).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_counted_from_one_or_set_by_kubernetes() {
        assert_eq!(shard("2/4"), Ok(ShardArg::Explicit(Shard { index: 1, count: 4 })));
        assert_eq!(shard("job/4"), Ok(ShardArg::JobIndex(4)));
        assert!(shard("0/4").is_err() && shard("5/4").is_err() && shard("4").is_err() && shard("job/0").is_err());
    }

    #[test]
    fn a_warmup_is_a_time_or_a_number_of_requests() {
        assert_eq!(warmup("100req"), Ok(WarmupArg::Requests(100)));
        assert_eq!(warmup("60s"), Ok(WarmupArg::Duration(Gap::from_millis(60_000))));
        assert!(warmup("req").is_err() && start_at("yesterday").is_err());
    }
}
