//! `trace reuse`: where prefix-cache hits are lost, by worked values.

use std::io::{Read as _, Write as _};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Exit code, stdout and stderr.
fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A request at this second to a pod: the blocks of its prompt, and the tokens that its engine reports as cached.
struct Request(u64, &'static str, &'static str, &'static [u64], u64);

/// Writes a capture in blocks of 16 tokens.
fn capture(folder: &TempDir, name: &str, requests: &[Request]) -> String {
    let blocks =
        json!({"size": 16, "unit": "tokens", "last": "dropped", "ids": "chained", "scope": "trace", "key": "k"});
    let header = json!({"streamgauge_trace": 1, "source": "streamgauge 1", "started_unix_ns": 1_795_504_655_000_000_000_u64, "blocks": blocks});
    let row = |Request(at, pod, session, blocks, cached): &Request| {
        let prompt = json!({"tokens": 16 * blocks.len(), "source": "usage", "cached": cached, "blocks": blocks});
        json!({"at": at * 1_000_000_000, "model": "m", "prompt": prompt, "session": session, "status": 200, "upstream": pod,
            "class": {"tier": session}})
    };
    let path = folder.path().join(name);
    let lines = [header].into_iter().chain(requests.iter().map(row)).map(|line| format!("{line}\n"));
    std::fs::write(&path, lines.collect::<String>()).unwrap();
    path.display().to_string()
}

fn report(args: &[&str]) -> Value {
    let (code, stdout, stderr) = run(&[&["trace", "reuse", "--json"], args].concat());
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Offered, lost by routing, to capacity and otherwise, and cached.
fn chain(sums: &Value) -> [Option<i64>; 5] {
    ["offered_tokens", "lost_by_routing_tokens", "lost_to_capacity_tokens", "lost_otherwise_tokens", "cached_tokens"]
        .map(|key| sums.get(key).map(|value| value.as_i64().unwrap()))
}

const REQUESTS: [Request; 5] = [
    Request(1, "a:1", "s", &[1, 2], 0),
    // The other pod has the prefix.
    Request(2, "b:1", "s", &[1, 2], 0),
    Request(3, "a:1", "t", &[3, 4], 0),
    // Two blocks fit, and these were used before.
    Request(4, "a:1", "s", &[1, 2], 0),
    // Both blocks are in the pod's cache; its engine reports one.
    Request(5, "b:1", "s", &[1, 2], 16),
];

#[test]
fn each_loss_is_counted_where_it_happens() {
    let folder = TempDir::new().unwrap();
    let capture = capture(&folder, "all.jsonl", &REQUESTS);
    let found = report(&[&capture, "--cache-blocks", "2"]);
    assert_eq!((&found["pods"], &found["all"]["prompt_tokens"]), (&json!(2), &json!(160)));
    assert_eq!(chain(&found["all"]), [96, 32, 32, 16, 16].map(Some));
    assert_eq!(chain(&found["by"]["pod"]["a:1"]), [32, 0, 32, 0, 0].map(Some));
    assert_eq!(chain(&found["by"]["pod"]["b:1"]), [64, 32, 0, 16, 16].map(Some));
    assert_eq!(chain(&found["by"]["class"]["tier=t"]), [Some(0); 5]);
    assert_eq!(found["by"]["hour"].as_object().unwrap().keys().collect::<Vec<_>>(), ["2026-11-24T07Z"]);
    let moves = json!({"repeated": 1, "moved": 1, "later_requests": 3, "moved_requests": 3});
    assert_eq!(found["all"]["sessions"], moves);
    // Requests 2 and 5 came to pod b, and request 4 to pod a.
    let moves = json!({"repeated": 1, "moved": 1, "later_requests": 2, "moved_requests": 2});
    assert_eq!(found["by"]["pod"]["b:1"]["sessions"], moves);
    let moves = json!({"repeated": 0, "moved": 0, "later_requests": 1, "moved_requests": 1});
    assert_eq!(found["by"]["pod"]["a:1"]["sessions"], moves);
    assert_eq!(found["by"]["class"]["tier=t"]["sessions"]["later_requests"], 0);
}

#[test]
fn without_a_cache_size_only_the_loss_by_routing_is_known() {
    let folder = TempDir::new().unwrap();
    let capture = capture(&folder, "all.jsonl", &REQUESTS);
    assert_eq!(chain(&report(&[&capture])["all"]), [Some(96), Some(32), None, None, None]);
    let (_, _, stderr) = run(&["trace", "reuse", &capture]);
    assert!(stderr.contains("remedy: --cache-blocks or --cache-tokens"), "{stderr}");
}

#[test]
fn each_pod_has_the_cache_that_its_engines_page_states() {
    let folder = TempDir::new().unwrap();
    let capture = capture(&folder, "all.jsonl", &REQUESTS);
    let page = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let two = page("two", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"2\"} 1\n");
    let four = page("four", "sglang:cache_config_info{page_size=\"64\",num_pages=\"1\"} 1\n");
    let alike = report(&[&capture, "--server-metrics", &two]);
    assert_eq!(alike, report(&[&capture, "--cache-blocks", "2"]));
    assert_eq!((&alike["cache_blocks"], &alike["pod_cache_blocks"]), (&json!(2), &json!({"a:1": 2, "b:1": 2})));
    // Pod a holds both prompts, so nothing is lost to its capacity.
    let own = report(&[&capture, "--server-metrics", &two, "--server-metrics", &format!("a:1={four}")]);
    assert_eq!((&own["cache_blocks"], &own["pod_cache_blocks"]), (&Value::Null, &json!({"a:1": 4, "b:1": 2})));
    assert_eq!(chain(&own["all"]), [96, 32, 0, 48, 16].map(Some));
    let (_, text, _) =
        run(&["trace", "reuse", &capture, "--server-metrics", &two, "--server-metrics", &format!("a:1={four}")]);
    assert!(text.starts_with("pods      2, with caches of 2 to 4 blocks of 16 tokens\n"), "{text}");

    let engine = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", engine.local_addr().unwrap());
    let request = std::thread::spawn(move || {
        let (mut client, mut head) = (engine.accept().unwrap().0, Vec::new());
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        let page = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"2\"} 1.0\n";
        write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len()).unwrap();
        String::from_utf8(head).unwrap()
    });
    assert_eq!(report(&[&capture, "--server-metrics", &url]), alike, "an engine that runs is asked for its page");
    assert!(request.join().unwrap().starts_with("GET /metrics HTTP/1.1\r\n"));
}

#[test]
fn the_page_draws_the_parts_of_each_group_up_to_what_is_offered() {
    let folder = TempDir::new().unwrap();
    let capture = capture(&folder, "all.jsonl", &REQUESTS);
    let (code, page, _) = run(&["trace", "reuse", "--html", &capture, "--cache-blocks", "2"]);
    assert_eq!((code, page.matches("data-kind=\"stack\"").count()), (Some(0), 5), "all, model, class, hour, pod");
    assert!(page.contains(">All requests</h3>") && page.contains(">By hour</h3>"), "{page}");
    let names = ["cached", "lost otherwise", "lost to capacity", "lost by routing"];
    assert!(page.contains(&format!("from the bottom: {}.", names.join(", "))), "{page}");
    // 16, 16, 32 and 32 of 160 tokens; of pod a 32 of 96 are lost to capacity.
    assert!(page.contains("class=\"data\">[[10],[10],[20],[20]]</script>"), "{page}");
    assert!(page.contains("class=\"data\">[[0,25],[0,25],[33.33333,0],[0,50]]</script>"), "{page}");
    assert!(page.contains("<th scope=\"row\">2026-11-24T07Z</th>") && page.contains("<th scope=\"row\">b:1</th>"));
    let (_, unknown, _) = run(&["trace", "reuse", "--html", &capture]);
    assert!(unknown.contains("from the bottom: survives routing, lost by routing."), "{unknown}");
}

#[test]
fn a_page_that_gives_no_pod_its_size_is_an_error_with_the_remedy() {
    let folder = TempDir::new().unwrap();
    let capture = capture(&folder, "all.jsonl", &REQUESTS);
    let page = folder.path().join("page");
    std::fs::write(&page, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"2\"} 1\n").unwrap();
    let page = page.to_str().unwrap();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/server_metrics/tgi.txt");
    let (of_a, of_c) = (format!("a:1={page}"), format!("c={page}"));
    for (pages, problem) in [
        (&[&*of_a][..], "the size of the cache of pod `b:1` is unknown"),
        (&[page, &of_c], "no pod is named `c`, whose metrics page was given"),
        (&[page, page], "two pages are for all pods; remedy: POD=PAGE for each pod"),
        (&[data], "the page states no cache size"),
        (&["http://user:canary7f3a@127.0.0.1:9"], "expected a URL without credentials"),
        (&["absent.txt"], "cannot read absent.txt"),
    ] {
        let pages = pages.iter().flat_map(|page| ["--server-metrics", page]);
        let (code, _, stderr) = run(&["trace", "reuse", &capture].into_iter().chain(pages).collect::<Vec<_>>());
        assert!(code == Some(1) && stderr.contains(problem) && !stderr.contains("canary7f3a"), "{code:?} {stderr}");
    }
}

#[test]
fn sticky_routing_wins_back_what_its_pods_hold() {
    let folder = TempDir::new().unwrap();
    let capture = capture(&folder, "all.jsonl", &REQUESTS);
    let found = report(&[&capture, "--cache-tokens", "64"]);
    // Of four blocks both prompts fit into pod a, so that requests 2, 4 and 5 hit there; as routed, 4 and 5 hit.
    assert_eq!(found["all"]["sticky_session_gain_tokens"], 32);
    assert_eq!(found["all"]["sticky_prefix_gain_tokens"], 32);
    let small = report(&[&capture, "--cache-blocks", "2"]);
    // By session, request 3 evicts the prefix from pod a: 2 and 5 hit. By prefix it goes to pod b: 2, 4 and 5 hit.
    assert_eq!(small["all"]["sticky_session_gain_tokens"], 32);
    assert_eq!(small["all"]["sticky_prefix_gain_tokens"], 64);
}

#[test]
fn the_order_of_rows_and_the_split_into_captures_change_nothing() {
    let folder = TempDir::new().unwrap();
    let [a, b, c, d, e] = REQUESTS;
    let whole = capture(&folder, "all.jsonl", &[e, c, a, d, b]);
    let [a, b, c, d, e] = REQUESTS;
    // Every sidecar calls its own server by one name.
    let own = |request: Request| Request(request.0, "127.0.0.1:8000", request.2, request.3, request.4);
    let first = capture(&folder, "a.jsonl", &[a, c, d].map(own));
    let second = capture(&folder, "b.jsonl", &[b, e].map(own));
    let args = ["--cache-blocks", "2"];
    let whole = report(&[&[&*whole], &args[..]].concat());
    let parts = report(&[&[&*first, &*second], &args[..]].concat());
    assert_eq!((&whole["all"], &whole["pods"]), (&parts["all"], &parts["pods"]));
    assert_eq!(chain(&whole["all"]), [96, 32, 32, 16, 16].map(Some));
}

/// Writes a segment of an instance as a bucket has it.
fn segment(lake: &TempDir, day: &str, instance: &str, number: u32, requests: &[Request]) {
    let folder = format!("dt={day}/hour=07/instance={instance}");
    std::fs::create_dir_all(lake.path().join(&folder)).unwrap();
    capture(lake, &format!("{folder}/{}T071735Z-{number:08}-0123456789abcdef.jsonl", day.replace('-', "")), requests);
}

#[test]
fn an_instance_in_a_bucket_is_one_pod_in_all_its_segments_and_days() {
    let own = |request: Request| Request(request.0, "127.0.0.1:8000", request.2, request.3, request.4);
    let (one_day, two_days) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [a, b, c, d, e] = REQUESTS.map(own);
    segment(&one_day, "2026-11-24", "pod-1", 1, &[a, c, d]);
    segment(&one_day, "2026-11-24", "pod-2", 1, &[b, e]);
    let [a, b, c, d, e] = REQUESTS.map(own);
    for (day, instance, requests) in [
        ("2026-11-24", "pod-1", &[a, c][..]),
        ("2026-11-24", "pod-2", &[b]),
        ("2026-11-25", "pod-1", &[d]),
        ("2026-11-25", "pod-2", &[e]),
    ] {
        segment(&two_days, day, instance, 1, requests);
    }
    let url = |lake: &TempDir, below: &str| format!("file://{}{below}", lake.path().display());
    for captures in [
        vec![url(&one_day, "")],
        vec![url(&one_day, "/dt=*/")],
        vec![url(&one_day, "/dt=*/*/instance=pod-1/"), url(&one_day, "/dt=*/*/instance=pod-2/")],
        vec![url(&two_days, "")],
        vec![url(&two_days, "/dt=2026-11-24/"), url(&two_days, "/dt=2026-11-25/")],
    ] {
        let args: Vec<&str> = captures.iter().map(|capture| &**capture).chain(["--cache-blocks", "2"]).collect();
        let found = report(&args);
        assert_eq!((&found["pods"], chain(&found["all"])), (&json!(2), [96, 32, 32, 16, 16].map(Some)), "{captures:?}");
        let by_pod = &found["by"]["pod"];
        assert_eq!(chain(&by_pod["pod-1 127.0.0.1:8000"]), [32, 0, 32, 0, 0].map(Some), "{captures:?}");
        assert_eq!(chain(&by_pod["pod-2 127.0.0.1:8000"]), [64, 32, 0, 16, 16].map(Some), "{captures:?}");
        assert_eq!(found["all"]["sessions"]["moved_requests"], 3, "{captures:?}");
    }
}

#[test]
fn figures_have_a_bound_where_the_engines_blocks_are_not_those_of_the_capture() {
    let folder = TempDir::new().unwrap();
    let exact = report(&[&capture(&folder, "exact.jsonl", &REQUESTS), "--cache-blocks", "2"]);
    assert_eq!(exact["all"].get("error_bound_tokens"), None);
    // The engine reports half a block.
    let [a, b, c, d, e] = REQUESTS;
    let finer = capture(&folder, "finer.jsonl", &[a, b, c, d, Request(e.0, e.1, e.2, e.3, 8)]);
    let found = report(&[&finer, "--cache-blocks", "2"]);
    assert_eq!((&found["blocks_are_tokens"], &found["all"]["error_bound_tokens"]), (&json!(true), &json!(5 * 16)));
    assert_eq!(found["by"]["pod"]["b:1"]["error_bound_tokens"], 2 * 16);
    let (_, text, _) = run(&["trace", "reuse", &finer]);
    let bound = "off by up to one block (about 16 tokens) per request: ±50.0 % in all";
    assert!(text.contains(&format!("The engines' blocks are not those of the capture, so each figure may be {bound}")));
}

#[test]
fn models_share_no_blocks_and_requests_that_failed_count_nowhere() {
    let folder = TempDir::new().unwrap();
    let path = capture(&folder, "all.jsonl", &REQUESTS);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[5]["model"] = json!("other");
    lines[4]["status"] = json!(503);
    std::fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let found = report(&[&path, "--cache-blocks", "2"]);
    assert_eq!((&found["all"]["requests"], chain(&found["all"])[0]), (&json!(4), Some(32)));
    assert_eq!(chain(&found["by"]["model"]["other"])[0], Some(0));
}

#[test]
fn a_trace_without_block_ids_is_refused_with_the_remedy() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("plain.jsonl");
    std::fs::write(&path, "{\"streamgauge_trace\":1,\"source\":\"x\"}\n{\"at\":0}\n").unwrap();
    let (code, _, stderr) = run(&["trace", "reuse", path.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no block ids") && stderr.contains("--capture"), "{stderr}");
}

#[test]
fn the_engines_of_two_pods_report_the_hits_that_are_predicted() {
    let pods = ["a", "b"].map(|pod| format!("{}/tests/data/captures/pod-{pod}", env!("CARGO_MANIFEST_DIR")));
    let found = report(&[&pods[0], &pods[1], "--cache-blocks", "400"]);
    let prompt = found["all"]["prompt_tokens"].as_f64().unwrap();
    let [offered, routing, capacity, otherwise, cached] =
        chain(&found["all"]).map(|tokens| tokens.unwrap() as f64 / prompt);
    assert!(otherwise.abs() < 0.01, "the simulated engines are LRU caches of this size: {otherwise}");
    assert!(offered > 0.6 && capacity > 0.15 && cached > 0.4, "{offered} {capacity} {cached}");
    // Sessions stay on their pods; only the common start of all prompts is missed once more.
    assert!((0.0..0.01).contains(&routing), "{routing}");
}
