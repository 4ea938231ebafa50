//! Cost of processes: CPU time and memory of a process tree, and the machine's other load meanwhile.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// `root` and all its descendants.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything; behind it come the state and the parent.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let mut tree = vec![root];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        tree.extend(children.get(pid).into_iter().flatten());
        at += 1;
    }
    tree
}

/// CPU time of a process tree in nanoseconds, all threads, those that have ended too.
pub(crate) fn cpu_of_tree(root: u32) -> u64 {
    let clocks = tree(root).into_iter().filter_map(|pid| clock_getcpuclockid(Pid::from_raw(pid as i32)).ok());
    clocks.map(read).sum()
}

/// CPU time of this process in nanoseconds.
pub(crate) fn own_cpu() -> u64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

fn read(clock: ClockId) -> u64 {
    // A process that has ended meanwhile has no clock any more.
    clock_gettime(clock).map_or(0, |time| u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX))
}

/// Memory of a process tree in KiB: resident, and proportional (pages shared by workers counted once).
pub(crate) fn memory_of_tree(root: u32) -> (u64, u64) {
    let mut sums = (0, 0);
    for pid in tree(root) {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let field = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        sums = (sums.0 + field("Rss:"), sums.1 + field("Pss:"));
    }
    sums
}

/// CPU time that all processes of the machine together have used, in nanoseconds.
pub(crate) fn machine_cpu() -> u64 {
    /// The kernel reports `/proc/stat` in hundredths of a second on every architecture.
    const TICK: u64 = 10_000_000;
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields: Vec<u64> =
        stat.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; steal is time that another machine took from ours.
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|at| fields.get(*at)).sum::<u64>();
    busy * TICK
}

/// Facts about the machine for the reader of the table, one per line.
pub(crate) fn machine() -> Vec<(String, String)> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    vec![
        ("cores".into(), cores().to_string()),
        ("cpu".into(), model.map_or("unknown", |(_, name)| name.trim()).to_owned()),
        ("kernel".into(), read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("load".into(), format!("{:.2}", load())),
    ]
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The load average of the last minute.
pub(crate) fn load() -> f64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0.0)
}
