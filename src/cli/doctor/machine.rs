//! Checks of this machine: limits, scheduling, memory pages, CPU.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};

use super::finding::DoctorFinding;
use crate::proxy::USUAL_RESERVED_DESCRIPTORS;

/// Bit of `CAP_SYS_NICE` in `CapEff`.
const CAP_SYS_NICE: u64 = 1 << 23;

/// All checks of the machine. `max_streams` is the configured limit, if the configuration is valid.
pub(super) fn findings(max_streams: Option<usize>) -> Vec<DoctorFinding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let limits = |resource| getrlimit(resource).map_or(0, |(_, hard)| hard);
    let pages = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    vec![
        descriptors(limits(Resource::RLIMIT_NOFILE), max_streams),
        cpu_limit(&quotas()),
        huge_pages(&pages, &status),
        real_time(limits(Resource::RLIMIT_RTPRIO), &status),
    ]
}

/// A stream takes two descriptors. The program raises the soft limit to the hard one.
fn descriptors(hard: u64, max_streams: Option<usize>) -> DoctorFinding {
    const CHECK: &str = "descriptors";
    let reserved = USUAL_RESERVED_DESCRIPTORS as u64;
    let streams = hard.saturating_sub(reserved) / 2;
    let evidence = format!("the limit on open files is {hard}, enough for {streams} streams");
    match max_streams.map(|streams| streams as u64).filter(|max| *max > streams) {
        None => DoctorFinding::ok(CHECK, evidence),
        Some(max) => {
            let needed = max.saturating_mul(2).saturating_add(reserved);
            let remedy = format!(
                "raise the limit to {needed} (LimitNOFILE of a unit, `ulimit -Hn`, --ulimit nofile of a container), or \
                 lower max_streams"
            );
            DoctorFinding::warning(CHECK, format!("{evidence}; max_streams is {max}"), remedy)
        }
    }
}

/// A CPU quota with the cores that it allows, and how often it has throttled.
#[derive(Debug, PartialEq)]
struct CpuQuota {
    cores: f64,
    throttled: u64,
}

impl CpuQuota {
    /// Reads `cpu.max` and `cpu.stat` of a control group (version 2).
    fn parse(max: &str, stat: &str) -> Option<Self> {
        let (quota, period) = max.trim().split_once(' ')?;
        let cores = quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|period| *period > 0.0)?;
        let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.trim().parse().ok());
        Some(Self { cores, throttled: throttled.unwrap_or(0) })
    }
}

/// The quotas of this process's control group and of those above it.
fn quotas() -> Vec<CpuQuota> {
    let root = Path::new("/sys/fs/cgroup");
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let own = read(PathBuf::from("/proc/self/cgroup"));
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let groups = Path::new(own).ancestors().map(|group| root.join(group));
    let version_2 =
        groups.filter_map(|group| CpuQuota::parse(&read(group.join("cpu.max")), &read(group.join("cpu.stat"))));
    let version_1 = root.join("cpu");
    let [quota, period] = ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|name| read(version_1.join(name)));
    // Without a limit the quota is -1.
    let version_1 = (!quota.starts_with('-'))
        .then(|| CpuQuota::parse(&format!("{} {}", quota.trim(), period.trim()), &read(version_1.join("cpu.stat"))));
    version_2.chain(version_1.flatten()).collect()
}

fn cpu_limit(quotas: &[CpuQuota]) -> DoctorFinding {
    const CHECK: &str = "cpu limit";
    match quotas.iter().min_by(|one, other| one.cores.total_cmp(&other.cores)) {
        None => DoctorFinding::ok(CHECK, "no control group limits the CPU"),
        Some(CpuQuota { cores, throttled }) => DoctorFinding::warning(
            CHECK,
            format!("a control group allows {cores:.2} cores, and has throttled {throttled} times"),
            "remove the CPU limit (Kubernetes: resources.limits.cpu; systemd: CPUQuota) and keep the request: throttling \
             delays every token",
        ),
    }
}

/// Huge pages make each stream's memory some megabytes, unless the allocator turns them off for the process.
fn huge_pages(enabled: &str, status: &str) -> DoctorFinding {
    const CHECK: &str = "huge pages";
    let mode = enabled.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let is_on = status.lines().find_map(|line| line.strip_prefix("THP_enabled:")).map(str::trim) != Some("0");
    match mode {
        Some("always") if is_on => DoctorFinding::warning(
            CHECK,
            "transparent huge pages are `always`, also for this process",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        Some("always") => DoctorFinding::ok(CHECK, "transparent huge pages are `always`, and off for this process"),
        Some(mode) => DoctorFinding::ok(CHECK, format!("transparent huge pages are `{mode}`")),
        None => DoctorFinding::skipped(CHECK, "this kernel has no transparent huge pages"),
    }
}

/// A run sends at exact times only if its writer preempts other threads. A proxy does not need it.
fn real_time(rtprio: u64, status: &str) -> DoctorFinding {
    const CHECK: &str = "rtprio";
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    if rtprio > 0 {
        DoctorFinding::ok(CHECK, format!("real-time priority up to {rtprio}: `replay` and `load` send at exact times"))
    } else if capabilities & CAP_SYS_NICE != 0 {
        DoctorFinding::ok(CHECK, "CAP_SYS_NICE: `replay` and `load` send at exact times")
    } else {
        DoctorFinding::warning(
            CHECK,
            "no real-time priority: `replay` and `load` may send late on a busy machine; a proxy does not need it",
            "add `USER - rtprio 1` to /etc/security/limits.d/streamgauge.conf (LimitRTPRIO of a unit, CAP_SYS_NICE of a \
             container)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingStatus::{Ok as Fine, Skipped, Warning};
    use super::*;

    #[test]
    fn too_few_descriptors_for_the_streams_name_the_number_that_is_needed() {
        assert_eq!(descriptors(65_536, Some(10_000)).status, Fine);
        assert_eq!(descriptors(1_024, None).status, Fine);
        let few = descriptors(4_096, Some(10_000));
        assert_eq!(few.evidence, "the limit on open files is 4096, enough for 1992 streams; max_streams is 10000");
        assert!(few.status == Warning && few.remedy.unwrap().starts_with("raise the limit to 20112 "));
    }

    #[test]
    fn the_smallest_quota_counts_and_none_is_fine() {
        let stat = "usage_usec 5\nnr_periods 9\nnr_throttled 7\n";
        let half = CpuQuota::parse("50000 100000\n", stat).unwrap();
        assert_eq!((CpuQuota::parse("max 100000\n", stat), CpuQuota::parse("", "")), (None, None));
        assert_eq!((cpu_limit(&[]).status, half == CpuQuota { cores: 0.5, throttled: 7 }), (Fine, true));
        let found = cpu_limit(&[CpuQuota { cores: 2.0, throttled: 0 }, half]);
        assert_eq!(found.evidence, "a control group allows 0.50 cores, and has throttled 7 times");
        assert_eq!(found.status, Warning);
    }

    #[test]
    fn huge_pages_matter_only_where_the_process_has_them() {
        assert_eq!(huge_pages("[always] madvise never\n", "THP_enabled:\t1\n").status, Warning);
        assert_eq!(huge_pages("[always] madvise never\n", "THP_enabled:\t0\n").status, Fine);
        assert_eq!(huge_pages("always [madvise] never\n", "THP_enabled:\t1\n").status, Fine);
        assert_eq!(huge_pages("", "").status, Skipped);
    }

    #[test]
    fn real_time_comes_from_the_limit_or_the_capability() {
        assert_eq!(real_time(1, "").status, Fine);
        assert_eq!(real_time(0, "CapEff:\t0000000000800000\n").status, Fine);
        assert_eq!(real_time(0, "CapEff:\t0000000000000400\n").status, Warning);
        assert_eq!(real_time(0, "CapEff:\trubbish\n").status, Warning);
    }
}
