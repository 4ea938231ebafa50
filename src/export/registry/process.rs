//! Process metrics from the operating system.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike;

use super::catalog::Id;
use super::snapshot::{PointValue, Snapshot};

/// Adds the process metrics to a snapshot. Unreadable ones (a container without `/proc`) are omitted.
pub(in crate::export) fn observe(
    snapshot: &mut Snapshot,
    version: &str,
    started: u64,
    descriptors: Option<DescriptorUsage>,
) {
    snapshot.observe(Id::BuildInfo, [version.into()], started, PointValue::Gauge(1));
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        snapshot.observe(Id::ProcessCpu, [], started, PointValue::Number(micros as f64 / 1e6));
    }
    if let Some(bytes) = resident_bytes() {
        snapshot.observe(Id::ProcessMemory, [], started, PointValue::Gauge(bytes));
    }
    if let Some(DescriptorUsage { open, .. }) = descriptors {
        snapshot.observe(Id::ProcessFiles, [], started, PointValue::Gauge(open));
    }
    snapshot.observe(Id::ProcessStart, [], started, PointValue::Number(started as f64 / 1e9));
}

/// The open file descriptors and their limit. Counting costs a system call for each, so a snapshot counts once.
#[derive(Clone, Copy, Debug)]
pub(in crate::export) struct DescriptorUsage {
    pub(super) open: i64,
    pub(super) limit: i64,
}

impl DescriptorUsage {
    /// Counts now; `None` without `/proc`.
    pub(in crate::export) fn now() -> Option<Self> {
        // One entry is the handle of this listing itself.
        let open = fs::read_dir("/proc/self/fd").ok()?.count() as i64 - 1;
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        Some(Self { open, limit: i64::try_from(limit).unwrap_or(i64::MAX) })
    }
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    kib.split_whitespace().next()?.parse::<i64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_has_memory_time_and_files() {
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        observe(&mut snapshot, "1.2.3", 5_500_000_000, DescriptorUsage::now());
        let data = |id| format!("{:?}", snapshot.points(id)[0].data);
        assert_eq!((data(Id::BuildInfo), data(Id::ProcessStart)), ("Gauge(1)".into(), "Number(5.5)".into()));
        let PointValue::Gauge(bytes) = snapshot.points(Id::ProcessMemory)[0].data else { panic!() };
        assert!((1 << 20..1 << 34).contains(&bytes), "{bytes}");
        let PointValue::Gauge(files) = snapshot.points(Id::ProcessFiles)[0].data else { panic!() };
        assert!((3..100_000).contains(&files), "{files}");
        let PointValue::Number(cpu) = snapshot.points(Id::ProcessCpu)[0].data else { panic!() };
        assert!(cpu > 0.0);
    }
}
