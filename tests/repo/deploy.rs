//! `dashboards/` and `deploy/` fit the program: it accepts the commands that they start, and their targets exist.
//!
//! `tests/deploy/run` has what needs Prometheus, Grafana's types or Kubernetes' schemas. `tests/real/dashboard.rs` runs
//! the queries of the board.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::pod;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents of a YAML file.
fn documents(path: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document(path: &str) -> Value {
    let [document] = <[Value; 1]>::try_from(documents(path)).unwrap();
    document
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn texts(value: &Value) -> Vec<&str> {
    list(value).iter().map(|item| item.as_str().unwrap()).collect()
}

fn duration(text: &str) -> Duration {
    humantime::parse_duration(text).unwrap()
}

// ----------------------------------------------------------------------------------------------------------- the board

fn board() -> Value {
    serde_json::from_str(&read("dashboards/streamgauge.json")).unwrap()
}

/// The panels that show something.
fn panels(board: &Value) -> impl Iterator<Item = &Value> {
    list(&board["panels"]).iter().filter(|panel| panel["type"] != "row")
}

#[test]
fn the_board_fills_its_24_columns_without_overlaps_or_holes() {
    let board = board();
    let mut taken = BTreeSet::new();
    let mut height = 0;
    for panel in list(&board["panels"]) {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24 && w > 0 && h > 0, "{} leaves the grid", panel["title"]);
        height = height.max(y + h);
        for cell in (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y))) {
            assert!(taken.insert(cell), "{} lies over another panel at {cell:?}", panel["title"]);
        }
    }
    assert_eq!(taken.len() as u64, 24 * height, "a hole");
    let ids: BTreeSet<u64> = list(&board["panels"]).iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), list(&board["panels"]).len(), "each id once");
}

#[test]
fn every_panel_has_a_description_a_unit_and_a_data_source() {
    let board = board();
    for panel in panels(&board) {
        let title = panel["title"].as_str().unwrap();
        assert!(panel["description"].as_str().is_some_and(|about| about.ends_with('.')), "{title}: no description");
        let unit = match &panel["options"]["yAxis"]["unit"] {
            Value::Null => &panel["fieldConfig"]["defaults"]["unit"],
            of_heat_map => of_heat_map,
        };
        assert!(unit.is_string(), "{title}: no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in list(&panel["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    assert_eq!((board["schemaVersion"].as_u64(), board["uid"].as_str()), (Some(41), Some("streamgauge")));
    let variables: Vec<&Value> = list(&board["templating"]["list"]).iter().map(|variable| &variable["name"]).collect();
    assert_eq!(variables, ["datasource", "model", "slo"]);
}

#[test]
fn every_quantile_of_the_board_is_called_what_it_is() {
    let board = board();
    for target in panels(&board).flat_map(|panel| list(&panel["targets"])) {
        let (query, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
        let quantile = query.strip_prefix("histogram_quantile(").and_then(|rest| rest.split(',').next());
        if let (Some(quantile), Some(called)) = (quantile, legend.strip_prefix('p')) {
            let percent: f64 = quantile.parse::<f64>().unwrap() * 100.0;
            assert_eq!(called.parse(), Ok(percent), "{query}");
        }
    }
}

#[test]
fn every_rate_of_the_board_is_over_the_interval_that_grafana_knows() {
    let board = board();
    for panel in panels(&board) {
        for target in list(&panel["targets"]) {
            let query = target["expr"].as_str().unwrap();
            let ranges = query.matches('[').count();
            assert_eq!(ranges, query.matches("[$__rate_interval]").count(), "{query}");
            assert_eq!(ranges, query.matches("rate(").count(), "{query}");
            // Whatever has a model or an SLO is narrowed by the variable; what the whole proxy has is not.
            let whole = [
                "http_server",
                "streamgauge_http",
                "streamgauge_upstream",
                "streamgauge_proxy",
                "streamgauge_reload",
                "streamgauge_tls",
                "streamgauge_export",
                "streamgauge_capture",
                "streamgauge_replay",
                "streamgauge_slo_invalid_limits",
                "process_",
            ];
            if !whole.iter().any(|of_proxy| query.contains(of_proxy)) {
                assert!(query.contains("gen_ai_request_model=~\"$model\""), "{query}");
            }
            if query.contains("streamgauge_slo_") && !query.contains("streamgauge_slo_invalid_limits") {
                assert!(query.contains("slo=~\"$slo\""), "{query}");
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------------------ the alerts

/// The alerts of the rules.
fn alerts() -> Vec<Value> {
    let rules = document("deploy/prometheus/rules.yml");
    let of_groups = list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"]).to_vec());
    of_groups.filter(|rule| rule["alert"].is_string()).collect()
}

#[test]
fn every_alert_has_a_severity_and_a_section_of_the_runbook() {
    let runbook = read("deploy/prometheus/README.md");
    let repository = read("Cargo.toml").lines().find_map(|line| Some(line.strip_prefix("repository = ")?.to_owned()));
    let repository = repository.unwrap().trim_matches('"').to_owned();
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap().to_owned();
        let severity = alert["labels"]["severity"].as_str().unwrap();
        assert!(["page", "ticket"].contains(&severity), "{name}: {severity}");
        let url = format!("{repository}/blob/main/deploy/prometheus/README.md#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], url, "{name}");
        let section = runbook.split(&format!("\n## {name}\n")).nth(1).unwrap_or_else(|| panic!("no section {name}"));
        let section = section.split("\n## ").next().unwrap();
        for part in ["Symptom", "Look here", "Likely cause", "Remedy"] {
            assert!(section.contains(&format!("- **{part}**: ")), "{name}: no {part}");
        }
        let row = runbook.lines().find(|line| line.starts_with(&format!("| [{name}](#"))).unwrap();
        assert!(row.contains(severity), "{name} is a {severity}: {row}");
        names.insert(name);
    }
    let sections: BTreeSet<String> =
        runbook.lines().filter_map(|line| Some(line.strip_prefix("## ")?.to_owned())).collect();
    assert_eq!(sections, names);
}

#[test]
fn every_alert_is_tested_where_it_fires_and_where_it_must_not() {
    let tests = document("deploy/prometheus/rules_test.yml");
    let mut tested: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for case in list(&tests["tests"]).iter().flat_map(|test| list(&test["alert_rule_test"])) {
        let counts = tested.entry(case["alertname"].as_str().unwrap().to_owned()).or_default();
        counts[usize::from(list(&case["exp_alerts"]).is_empty())] += 1;
    }
    let names: BTreeSet<String> = alerts().iter().map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect();
    assert_eq!(tested.keys().cloned().collect::<BTreeSet<_>>(), names);
    for (name, [fires, silent]) in tested {
        assert!(fires > 0 && silent > 0, "{name}: fires in {fires}, is silent in {silent}");
    }
    let burning: Vec<_> =
        alerts().into_iter().filter_map(|alert| Some(alert["labels"]["burn_rate"].as_str()?.to_owned())).collect();
    assert_eq!(burning, ["14.4", "6", "3", "1"]);
}

// ------------------------------------------------------------------------------------------------------- what is started

/// What `streamgauge ARGUMENTS --check` prints.
fn checked(arguments: &[&str], folder: &Path) -> String {
    check(arguments, folder, |_| {})
}

/// The same with an environment.
fn check(arguments: &[&str], folder: &Path, prepare: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(arguments).arg("--check").env_clear().current_dir(folder);
    prepare(&mut command);
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    assert!(output.status.success(), "{arguments:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A setting of a configuration as `--check` prints it.
fn setting<'a>(configuration: &'a str, key: &str) -> &'a str {
    let line = configuration.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
    line.unwrap_or_else(|| panic!("no {key}")).split("  #").next().unwrap()
}

fn port(address: &str) -> u64 {
    address.rsplit(':').next().unwrap().parse().unwrap()
}

/// The item of a list with that name.
fn named<'a>(items: &'a Value, name: &str) -> &'a Value {
    list(items).iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

const SIDECAR: &str = "deploy/kubernetes/sidecar.yaml";

#[test]
fn the_sidecar_takes_the_port_of_vllm_and_everything_points_at_the_right_one() {
    let [deployment, service] = <[Value; 2]>::try_from(documents(SIDECAR)).unwrap();
    let monitor = document("deploy/kubernetes/podmonitor.yaml");
    let pod = &deployment["spec"]["template"]["spec"];
    let sidecar = named(&pod["initContainers"], "streamgauge");
    let vllm = named(&pod["containers"], "vllm");
    assert_eq!(sidecar["restartPolicy"], "Always", "else it is no sidecar");

    let configuration = checked(&texts(&sidecar["args"]), &root());
    let [listen, admin, upstream] = ["listen", "admin", "upstream"].map(|key| port(setting(&configuration, key)));
    assert_eq!(named(&sidecar["ports"], "http")["containerPort"], listen);
    assert_eq!(named(&sidecar["ports"], "streamgauge")["containerPort"], admin);
    assert!(texts(&vllm["args"]).contains(&&*format!("--port={upstream}")));
    assert!(texts(&vllm["args"]).contains(&"--host=127.0.0.1"), "nobody goes past the proxy");
    assert_eq!(
        service["spec"]["ports"][0]["targetPort"], listen,
        "by its number, which is known without a sidecar's name"
    );
    assert_eq!(service["spec"]["ports"][0]["port"], listen, "clients notice nothing");

    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert_eq!(sidecar[probe]["httpGet"]["port"], "streamgauge");
        assert_eq!(vllm[probe]["httpGet"]["port"], listen, "vLLM is on loopback, where no kubelet comes");
    }
    // It starts before vLLM, which /readyz waits for.
    assert_eq!(sidecar["startupProbe"]["httpGet"]["path"], "/livez");
    assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(sidecar["livenessProbe"]["httpGet"]["path"], "/livez");

    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], "streamgauge");
    let labels = deployment["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
    for selector in [&monitor["spec"]["selector"]["matchLabels"], &service["spec"]["selector"]] {
        assert!(selector.as_object().unwrap().iter().all(|(key, value)| labels.get(key) == Some(value)), "{selector}");
    }
}

#[test]
fn no_service_link_collides_with_a_variable_of_vllm() {
    let documents = documents(SIDECAR);
    let clashes = |variables: &BTreeMap<String, String>| {
        let clash = |name: &&String| ["VLLM_", "STREAMGAUGE_"].iter().any(|prefix| name.starts_with(prefix));
        variables.keys().filter(clash).cloned().collect::<Vec<_>>()
    };
    assert_eq!(clashes(&pod::of_services(&documents)), [""; 0], "where other pods have service links");
    for container in ["streamgauge", "vllm"] {
        let mut others = documents.clone();
        others[1]["metadata"]["name"] = "vllm".into();
        assert_eq!(pod::of_services(&others)["VLLM_PORT"], "tcp://10.96.0.7:8000");
        assert_eq!(clashes(&pod::environment(&others, container)), [""; 0], "{container}");
    }
    let job = read("deploy/kubernetes/load-job.yaml");
    let service = documents[1]["metadata"]["name"].as_str().unwrap();
    assert!(job.contains(&format!("--target=http://{service}:{}\n", documents[1]["spec"]["ports"][0]["port"])));
}

#[test]
fn a_pod_ends_within_its_grace_period() {
    let deployment = &documents(SIDECAR)[0];
    let pod = &deployment["spec"]["template"]["spec"];
    let configuration = checked(&texts(&named(&pod["initContainers"], "streamgauge")["args"]), &root());
    let wait = texts(&named(&pod["containers"], "vllm")["lifecycle"]["preStop"]["exec"]["command"]);
    assert_eq!(wait[0], "timeout");
    assert!(wait[4].contains(&format!("127.0.0.1:{}/metrics", port(setting(&configuration, "admin")))));
    let of_vllm = Duration::from_secs(30);
    let needed = duration(wait[1]) + of_vllm + duration(setting(&configuration, "drain"));
    let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
    assert!(needed < grace, "{needed:?} of {grace:?}");
}

#[test]
fn the_sidecar_may_do_nothing_that_it_need_not() {
    let deployment = &documents(SIDECAR)[0];
    let context = &named(&deployment["spec"]["template"]["spec"]["initContainers"], "streamgauge")["securityContext"];
    let job = &documents("deploy/kubernetes/load-job.yaml")[0]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(&job["securityContext"], context, "nor may a part of a load");
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(
        (&context["runAsNonRoot"], &context["readOnlyRootFilesystem"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    assert_eq!(context["allowPrivilegeEscalation"], false);
    let user = format!("USER {0}:{0}", context["runAsUser"]);
    assert!(read("deploy/Dockerfile").lines().any(|line| line == user), "the image's own user");
}

#[test]
fn a_job_sends_every_part_of_one_load_once() {
    let [job, claim] = <[Value; 2]>::try_from(documents("deploy/kubernetes/load-job.yaml")).unwrap();
    let (spec, pod) = (&job["spec"], &job["spec"]["template"]["spec"]);
    assert_eq!((&spec["completionMode"], &spec["backoffLimit"]), (&Value::from("Indexed"), &Value::from(0)));
    assert_eq!(pod["restartPolicy"], "Never", "nothing is sent twice");
    let container = named(&pod["containers"], "streamgauge");
    let arguments = texts(&container["args"]);
    let shard = arguments.iter().find_map(|argument| argument.strip_prefix("--shard=job/")).unwrap();
    for parts in ["completions", "parallelism"] {
        assert_eq!(spec[parts].as_u64(), shard.parse().ok(), "{parts}");
    }
    let out = arguments.iter().find_map(|argument| argument.strip_prefix("--out=")).unwrap();
    let (folder, _) = out.rsplit_once('/').unwrap();
    assert!(out.ends_with("$(JOB_COMPLETION_INDEX)"), "each part has a folder of its own");
    assert_eq!(container["volumeMounts"][0]["mountPath"], folder);
    assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"]);
    // The program takes all of it, and then finds nobody to send to.
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(arguments.iter().filter(|argument| !argument.starts_with("--target=")));
    let nobody = command.arg("--target=http://127.0.0.1:9").env_clear().env("JOB_COMPLETION_INDEX", "3").output();
    let said = String::from_utf8(nobody.unwrap().stderr).unwrap();
    assert!(said.starts_with("error: cannot reach http://127.0.0.1:9"), "{said}");
}

#[test]
fn compose_starts_what_exists_and_scrapes_what_listens() {
    let services = document("deploy/compose.yaml")["services"].clone();
    let proxy = &services["streamgauge"];
    let configuration = checked(&texts(&proxy["command"]), &root());
    let [listen, admin, upstream] = ["listen", "admin", "upstream"].map(|key| setting(&configuration, key));
    let published: Vec<u64> = texts(&proxy["ports"]).into_iter().map(port).collect();
    assert_eq!(published, [port(listen), port(admin)]);
    assert!(duration(setting(&configuration, "drain")) < duration(proxy["stop_grace_period"].as_str().unwrap()));

    let sim = texts(&services["sim"]["command"]);
    let of_sim = sim[1].strip_prefix("--listen=0.0.0.0:").unwrap();
    assert_eq!((sim[0], sim.len(), upstream), ("sim", 2, &*format!("http://sim:{of_sim}")));

    let prometheus = document("deploy/prometheus/prometheus.yml");
    let job = &prometheus["scrape_configs"][0];
    assert_eq!(texts(&job["static_configs"][0]["targets"]), [format!("streamgauge:{}", port(admin))]);
    assert!(
        read("deploy/prometheus/rules.yml")
            .contains(&format!("absent(up{{job=~\"(.+/)?{}\"}})", job["job_name"].as_str().unwrap()))
    );

    let collector = document("deploy/otel-collector.yaml");
    let endpoint = proxy["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"].as_str().unwrap();
    let http = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].as_str().unwrap();
    assert_eq!(endpoint, format!("http://otel-collector:{}", port(http)));

    // What is mounted is there, and every image is pinned.
    for (name, service) in services.as_object().unwrap() {
        let image = service["image"].as_str().unwrap_or("streamgauge:local");
        assert!(image.contains(':') && !image.ends_with(":latest"), "{name}: {image}");
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let from = volume.as_str().unwrap().split(':').next().unwrap();
            assert!(!from.starts_with('.') || root().join("deploy").join(from).exists(), "{name}: {from}");
        }
    }
    let provided = document("deploy/grafana/dashboards/streamgauge.yaml")["providers"][0]["options"]["path"].clone();
    let grafana = texts(&services["grafana"]["volumes"]);
    assert!(grafana.contains(&&*format!("../dashboards:{}:ro", provided.as_str().unwrap())), "{grafana:?}");
    let source = document("deploy/grafana/datasources/prometheus.yaml")["datasources"][0]["url"].clone();
    assert_eq!(source, format!("http://prometheus:{}", port(texts(&services["prometheus"]["ports"])[0])));
}

#[test]
fn telemetry_of_compose_goes_to_its_collector() {
    let services = document("deploy/compose.yaml")["services"].clone();
    let proxy = &services["streamgauge"];
    let told = check(&texts(&proxy["command"]), &root(), |command| {
        for (name, value) in proxy["environment"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
    });
    let metrics = told.lines().find(|line| line.starts_with("# OTLP metrics: ")).unwrap();
    assert!(metrics.contains("http://otel-collector:4318/v1/metrics") && metrics.contains("10s"), "{metrics}");
    assert!(told.contains("http://otel-collector:4318/v1/traces"), "{told}");
}

#[test]
fn the_unit_starts_what_exists_and_waits_for_the_drain() {
    let unit = read("deploy/systemd/streamgauge.service");
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).unwrap().to_owned();
    let command = value("ExecStart");
    let arguments = command.strip_prefix("/usr/local/bin/streamgauge ").unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("streamgauge.yaml"), "upstream: http://127.0.0.1:8000\n").unwrap();
    let arguments = arguments.replace("/etc/streamgauge/", "");
    let configuration = checked(&arguments.split(' ').collect::<Vec<_>>(), folder.path());
    assert!(duration(setting(&configuration, "drain")) < duration(&value("TimeoutStopSec").replace("min", "m")));
}

#[test]
fn the_unit_has_the_sockets_of_its_settings_and_a_reload_that_takes_over() {
    let (unit, socket) = (read("deploy/systemd/streamgauge.service"), read("deploy/systemd/streamgauge.socket"));
    let configuration = checked(&["proxy", "--upstream=http://127.0.0.1:8000"], &root());
    let listening: Vec<&str> = socket.lines().filter_map(|line| line.strip_prefix("ListenStream=")).collect();
    assert_eq!(listening, ["listen", "admin"].map(|key| setting(&configuration, key)));
    for line in ["Type=notify", "ExecReload=/bin/kill -USR2 $MAINPID", "Requires=streamgauge.socket"] {
        assert!(unit.lines().any(|of_unit| of_unit == line), "{line}");
    }
}

#[test]
fn the_steps_of_the_manual_make_every_file_that_the_unit_needs() {
    let chapter = read("deploy/README.md");
    let steps = chapter.split("```sh\n").find(|steps| steps.contains("enable --now streamgauge")).unwrap();
    let steps = steps.split("```").next().unwrap();
    let unit = read("deploy/systemd/streamgauge.service");
    let needed = unit.split("--config=").nth(1).unwrap().split_whitespace().next().unwrap();
    for file in [needed, "deploy/systemd/streamgauge.service", "deploy/systemd/streamgauge.socket"] {
        assert!(steps.contains(file), "{file} is missing in\n{steps}");
    }
    // What the steps write is a configuration.
    let yaml = steps.split("<<'END'\n").nth(1).unwrap().split("END\n").next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("streamgauge.yaml"), yaml).unwrap();
    assert!(
        checked(&["proxy", "--config=streamgauge.yaml"], folder.path()).contains("upstream: http://127.0.0.1:8000")
    );
}

#[test]
fn the_unit_has_one_place_for_a_capture() {
    let unit = read("deploy/systemd/streamgauge.service");
    assert!(unit.contains("\nProtectSystem=strict\n") && unit.contains("\nStateDirectory=streamgauge\n"));
}

#[test]
fn the_image_is_built_from_files_that_reach_the_builder() {
    let (dockerfile, ignored) = (read("deploy/Dockerfile"), read(".dockerignore"));
    let copied: BTreeSet<&str> = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("COPY "))
        .filter(|line| !line.starts_with("--from"))
        .flat_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words[..words.len() - 1].to_vec()
        })
        .collect();
    let let_through: BTreeSet<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    assert_eq!(copied, let_through);
    // The manifest names files of tests and benchmarks, which are made up there.
    let manifest = read("Cargo.toml");
    for path in manifest.lines().filter_map(|line| line.strip_prefix("path = \"tests/")?.strip_suffix('"')) {
        assert!(dockerfile.contains(&format!("tests/{path}")), "tests/{path}");
    }
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(dockerfile.contains(&format!("FROM rust:{rust}-")), "the version that Cargo.toml asks for");
    let admin = checked(&["proxy", "--upstream=http://127.0.0.1:8000"], &root());
    let exposed = format!("EXPOSE {} {}", port(setting(&admin, "listen")), port(setting(&admin, "admin")));
    assert!(dockerfile.lines().any(|line| line == exposed), "{exposed}");
}
