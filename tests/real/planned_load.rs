//! A plan for the load that AIPerf sends, checked by running it. One replica holds the load that is planned for it, and
//! does not hold a load that needs more.

use tempfile::tempdir;

use super::awake_cores::timed_turn;
use super::clients::url;
use super::program::{ProxyProcess, json_of, streamgauge};
use super::tools;

const SLO: &str = "--slo=chat: ttft<=1s";
/// One replica: four sequences.
const REPLICA: [&str; 1] = ["--max-num-seqs=4"];
/// So far apart that of two levels that miss, after which a sweep stops, the second surely misses.
const RATES: &str = "--rates=2,3,4,5,6.5,8.5,11,14,18,24";
/// Each level lasts as long as each check of the plan.
const LENGTH: [&str; 3] = ["--duration=20s", "--max-lag=1h", "--no-audit"];
/// Nothing in reserve, so that the replicas are those of the arrivals.
const NO_RESERVES: [&str; 3] = ["--headroom=0%", "--fail=0", "--start-up=0s"];

#[test]
#[ignore = "needs vLLM and AIPerf: tests/run --real"]
fn a_plan_for_what_aiperf_sent_holds_when_it_is_run() {
    let _turn = timed_turn();
    let (vllm, folder) = (tools::vllm_with_flags(&REPLICA), tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (captured, sweep, target) = (path("captured"), path("sweep"), url(vllm.addr));
    let proxy = ProxyProcess::with(vllm.addr, |command| {
        command.arg("--capture").arg(&captured);
    });
    // At a rate: in a closed loop all four users ask at once after each stall of the machine.
    tools::run("aiperf", &[&url(proxy.addr), &path("aiperf"), "--", "--request-rate=3"]);
    drop(proxy);

    let levels = ["sweep", &captured, "--target", &target, RATES, SLO, "--out", &sweep, "--json"];
    let swept = streamgauge(&[&levels[..], &LENGTH].concat());
    assert!(swept.status.success(), "{}", String::from_utf8_lossy(&swept.stderr));
    let plan_of = |traffic: &str| {
        json_of(&[&["plan", "--measured", &sweep, "--traffic", traffic, "--json"], &NO_RESERVES[..]].concat())
    };
    let plan = |rate: f64| plan_of(&format!("{rate}/s"));
    let capacity = &plan(1.0)["capacity"];
    let [holds, misses] = ["rate", "high"].map(|key| capacity[key].as_f64().unwrap_or_else(|| panic!("{capacity}")));
    // A machine that changes its speed by a fifth changes neither answer.
    let (light, heavy) = (0.7 * holds, 1.1 * misses);
    let replicas = |rate| plan(rate)["fleet"]["peak_replicas"].as_u64().unwrap();
    let (one, several) = (replicas(light), replicas(heavy));
    eprintln!(
        "a replica holds {holds:.2}/s and misses {misses:.2}/s; {light:.2}/s: {one}, {heavy:.2}/s: {several} replicas"
    );
    assert_eq!((one, several > 1), (1, true));

    // The exit code is 1 where the condition holds.
    let misses_with = |more: &[&str]| {
        let out = path(&more.concat().replace(['-', '=', '.'], "_"));
        let replay = ["replay", &captured, "--target", &target, SLO, "--fail-if=goodput<95%", "--out", &out];
        let done = streamgauge(&[&replay[..], more].concat());
        let stdout = String::from_utf8_lossy(&done.stdout);
        eprintln!("{more:?}: {}", stdout.lines().find(|line| line.starts_with("goodput")).unwrap_or_default());
        match done.status.code() {
            Some(0) => false,
            Some(1) => true,
            _ => panic!("{}", String::from_utf8_lossy(&done.stderr)),
        }
    };
    let misses_at = |rate: f64| misses_with(&[&[&*format!("--rate={rate}"), "--loop"], &LENGTH[..]].concat());
    // The capture itself: one server gets the arrivals of one of its replicas.
    let replicas = plan_of(&captured)["fleet"]["peak_replicas"].as_u64().unwrap();
    let speed = format!("--speed={}", 1.0 / replicas as f64);
    eprintln!("the capture needs {replicas} replicas");
    assert!(!misses_with(&[&*speed, "--max-lag=1h", "--no-audit"]), "{replicas} replicas for the capture");
    assert!(!misses_at(light), "one replica for {light}/s");
    assert!(!misses_at(heavy / several as f64), "{several} replicas for {heavy}/s");
    assert!(misses_at(heavy), "one replica for {heavy}/s, where {several} are planned");
}
