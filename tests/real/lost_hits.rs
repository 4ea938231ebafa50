//! Where prefix-cache hits of two real vLLM servers behind a round-robin were lost, beside their own counters.

use std::path::Path;

use serde_json::{Value, json};

use super::http_client::{get, post};
use super::processes;
use super::program::{ProxyProcess, json_of, sum};
use super::support::metrics_parser;
use super::tools::{self, Tool};

/// Tokens of a block: the least that vLLM has on a CPU.
const BLOCK: u32 = 32;
/// Blocks of each server: a few conversations.
const BLOCKS: u32 = 40;
const SESSIONS: u32 = 16;
const TURNS: u32 = 4;

/// A vLLM that reports cached tokens and remembers little. It lives no longer than the thread that starts it.
fn vllm() -> Tool {
    let (block, blocks) = (BLOCK.to_string(), BLOCKS.to_string());
    let size = ["--block-size", &block, "--num-gpu-blocks-override", &blocks, "--max-model-len", "512"];
    tools::vllm_with_flags(&[&size[..], &["--enable-prompt-tokens-details"]].concat())
}

/// A proxy that captures blocks of tokens as the engine has them.
fn capturing(engine: &Tool, folder: &Path, name: &str, key: &Path) -> ProxyProcess {
    ProxyProcess::with(engine.addr, |command| {
        command.arg("--capture").arg(folder.join(name)).arg("--capture-key").arg(key);
        command.arg("--capture-tokenizer").arg(tools::tokenizer());
        command.arg(format!("--capture-block={BLOCK}"));
    })
}

/// A prompt: what all conversations begin with, then this one's turns so far.
fn prompt(session: u32, turns: u32) -> String {
    let words = ["river", "deep", "stone", "light", "door", "sea", "wind", "night", "glass", "green"];
    let word =
        |at: u32| format!(" {}{}", words[(at * at + session * 7) as usize % words.len()], (at + session * 31) % 17);
    let shared = "You are a helpful engine that answers with care. ".repeat(4);
    format!("{shared}Session {session}:{}", (0..40 + 20 * turns).map(word).collect::<String>())
}

#[test]
#[ignore = "needs vLLM: tests/run --real"]
fn hits_lost_on_two_vllm_servers_behind_a_round_robin_are_those_of_their_own_counters() {
    let _turn = processes::exclusive_turn();
    let engines = [vllm(), vllm()];
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "a key of more than sixteen bytes").unwrap();
    let proxies = [0, 1].map(|pod| capturing(&engines[pod], folder.path(), &format!("pod-{pod}"), &key));

    // Half of the conversations take turns with each other; each of the others has all its turns at once.
    let in_turns = (0..TURNS).flat_map(|turn| (0..SESSIONS / 2).map(move |session| (session, turn)));
    let at_once = (SESSIONS / 2..SESSIONS).flat_map(|session| (0..TURNS).map(move |turn| (session, turn)));
    // The round-robin: the next request to the next pod. Of conversations in turns, each turn comes to another pod.
    for (number, (session, turn)) in in_turns.chain(at_once).enumerate() {
        let pod = (number + turn as usize * usize::from(session < SESSIONS / 2)) % 2;
        let body = json!({"model": "tiny", "prompt": prompt(session, turn), "max_tokens": 4, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(post(proxies[pod].addr, "/v1/completions", &body).status(), 200);
    }
    proxies.into_iter().for_each(ProxyProcess::end);

    let pods = [0, 1].map(|pod| folder.path().join(format!("pod-{pod}")).display().to_string());
    let found = json_of(&[
        "trace",
        "reuse",
        &pods[0],
        &pods[1],
        "--cache-blocks",
        &BLOCKS.to_string(),
        "--by",
        "pod",
        "--json",
    ]);
    let tokens = |of: &Value, name: &str| of[format!("{name}_tokens")].as_f64().unwrap();
    let (all, prompts) = (&found["all"], tokens(&found["all"], "prompt"));
    let share = |name| tokens(all, name) / prompts;
    let parts = ["offered", "lost_by_routing", "lost_to_capacity", "lost_otherwise", "cached"];
    eprintln!(
        "| share of {prompts} prompt tokens | {} |",
        parts.map(|name| format!("{name} {:.1} %", share(name) * 100.0)).join(" | ")
    );
    for (engine, pod) in engines.iter().zip(&pods) {
        let counters = metrics_parser::text(&get(engine.addr, "/metrics").text());
        let ours = &found["by"]["pod"][format!("{pod} {}", engine.addr)];
        assert_eq!(tokens(ours, "prompt"), sum(&counters, "vllm:prefix_cache_queries_total", &[]), "{found}");
        assert_eq!(tokens(ours, "cached"), sum(&counters, "vllm:prefix_cache_hits_total", &[]), "{found}");
    }
    // Caches of this size, filled by the captured blocks, hit as the engines did: what is lost has no other cause.
    assert!(share("lost_otherwise").abs() <= 0.01, "{found}");
    for lost in ["lost_by_routing", "lost_to_capacity"] {
        assert!(share(lost) >= 0.05, "{lost}: {found}");
    }
}
