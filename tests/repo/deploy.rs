//! `dashboards/` and `deploy/` fit the program: it accepts the commands that they start, and their targets exist.
//!
//! `boards.rs` has the boards. `tests/deploy/run` has what needs Prometheus, Grafana's types or Kubernetes' schemas.

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
    for case in list(&tests["tests"]).iter().filter_map(|test| test["alert_rule_test"].as_array()).flatten() {
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

/// Output of `streamgauge ARGUMENTS --check`.
fn checked(arguments: &[&str], folder: &Path) -> String {
    check(arguments, folder, |_| {})
}

/// Output of `--check` with an environment.
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

const OVERLAYS: &str = "deploy/kustomize/overlays";

/// The overlays with an inference server, and its container.
const SIDECARS: [(&str, &str); 4] =
    [("vllm", "vllm"), ("sglang", "sglang"), ("llama-cpp", "llama-cpp"), ("llm-d", "vllm")];

/// The Deployment and the Service of an overlay.
fn workload(overlay: &str) -> [Value; 2] {
    let file = if overlay == "gateway" { "gateway" } else { "engine" };
    [document(&format!("{OVERLAYS}/{overlay}/{file}.yaml")), document("deploy/kustomize/base/service.yaml")]
}

/// The policy of the injection by label, and the container that it adds.
fn injected() -> (Value, String) {
    let [policy, start, binding, of_start] =
        <[Value; 4]>::try_from(documents(&format!("{OVERLAYS}/injection/injection.yaml"))).unwrap();
    for (policy, binding) in [(&policy, binding), (&start, of_start)] {
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    }
    let added = policy["spec"]["mutations"][0]["jsonPatch"]["expression"].as_str().unwrap().to_owned();
    (policy, added)
}

/// The configuration of a container of an overlay, as `--check` prints it: its flags, and the file of the ConfigMap.
fn configured(overlay: &str, container: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let settings = document(&format!("{OVERLAYS}/{overlay}/settings.yaml"));
    for (name, content) in settings["data"].as_object().unwrap() {
        fs::write(folder.path().join(name), content.as_str().unwrap()).unwrap();
    }
    let place =
        format!("{}/", named(&container["volumeMounts"], "streamgauge-settings")["mountPath"].as_str().unwrap());
    let arguments: Vec<String> =
        texts(&container["args"]).iter().map(|argument| argument.replace(&place, "")).collect();
    checked(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), folder.path())
}

/// True if a selector of labels selects what has them.
fn selects(selector: &Value, labels: &Value) -> bool {
    selector.as_object().unwrap().iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[test]
fn a_sidecar_takes_the_port_of_its_server_and_everything_points_at_the_right_one() {
    let monitor = document("deploy/kustomize/base/monitors.yaml");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["port"], "streamgauge");
    for (overlay, name) in SIDECARS {
        let [deployment, service] = workload(overlay);
        let pod = &deployment["spec"]["template"]["spec"];
        let sidecar = named(&pod["initContainers"], "streamgauge");
        let engine = named(&pod["containers"], name);
        assert_eq!(sidecar["restartPolicy"], "Always", "else it is no sidecar");

        let configuration = configured(overlay, sidecar);
        let [listen, admin, upstream] = ["listen", "admin", "upstream"].map(|key| port(setting(&configuration, key)));
        assert_eq!(named(&sidecar["ports"], "http")["containerPort"], listen);
        assert_eq!(named(&sidecar["ports"], "streamgauge")["containerPort"], admin);
        assert!(texts(&engine["args"]).contains(&&*format!("--port={upstream}")), "{overlay}");
        assert!(texts(&engine["args"]).contains(&"--host=127.0.0.1"), "{overlay}: nobody goes past the proxy");
        assert_eq!(
            service["spec"]["ports"][0]["targetPort"], listen,
            "by its number, which is known without a sidecar's name"
        );

        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            assert_eq!(sidecar[probe]["httpGet"]["port"], "streamgauge");
            assert_eq!(engine[probe]["httpGet"]["port"], listen, "the server is on loopback, where no kubelet comes");
        }
        // It starts before the server, which /readyz waits for.
        assert_eq!(sidecar["startupProbe"]["httpGet"]["path"], "/livez");
        assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/readyz");
        assert_eq!(sidecar["livenessProbe"]["httpGet"]["path"], "/livez");

        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for selector in [&monitor["spec"]["selector"]["matchLabels"], &service["spec"]["selector"]] {
            assert!(selects(selector, labels), "{selector}");
        }
    }
}

#[test]
fn a_gateway_forwards_to_a_service_and_drains_before_it_is_killed() {
    let [deployment, service] = workload("gateway");
    let pod = &deployment["spec"]["template"]["spec"];
    let gateway = named(&pod["containers"], "streamgauge");
    let configuration = configured("gateway", gateway);
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port(setting(&configuration, "listen")));
    assert!(selects(&service["spec"]["selector"], &deployment["spec"]["template"]["metadata"]["labels"]));
    let wait = Duration::from_secs(gateway["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap());
    let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
    assert!(wait + duration(setting(&configuration, "drain")) < grace);
    assert!(deployment["spec"]["replicas"].as_u64().unwrap() > 1, "one pod of two may be evicted");
    assert_eq!(document("deploy/kustomize/base/poddisruptionbudget.yaml")["spec"]["maxUnavailable"], 1);
}

#[test]
fn only_those_who_may_read_metrics_reach_the_admin_port() {
    for (overlay, ..) in SIDECARS.into_iter().chain([("gateway", "")]) {
        let [deployment, service] = workload(overlay);
        let policy = document(&format!("{OVERLAYS}/{overlay}/networkpolicy.yaml"));
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        assert!(selects(&policy["spec"]["podSelector"]["matchLabels"], labels));
        let [clients, monitoring] = [0, 1].map(|rule| &policy["spec"]["ingress"][rule]);
        assert_eq!(clients["ports"][0]["port"], service["spec"]["ports"][0]["targetPort"]);
        assert_eq!(monitoring["ports"], serde_json::json!([{"port": 9464}]));
        assert!(!list(&monitoring["from"]).is_empty(), "{overlay}: everybody");
    }
    // KV events do not pass through the proxy.
    let [deployment, _] = workload("llm-d");
    let engine = named(&deployment["spec"]["template"]["spec"]["containers"], "vllm");
    let events = engine["ports"][0]["containerPort"].clone();
    assert!(texts(&engine["args"]).iter().any(|argument| argument.contains(&format!("tcp://*:{events}"))));
    let policy = document(&format!("{OVERLAYS}/llm-d/networkpolicy.yaml"));
    assert_eq!(policy["spec"]["ingress"][0]["ports"][1]["port"], events);
}

#[test]
fn the_endpoint_picker_reaches_the_pods_through_the_proxy() {
    let [deployment, service] = workload("llm-d");
    let pool = document(&format!("{OVERLAYS}/llm-d/inferencepool.yaml"));
    assert_eq!(pool["spec"]["targetPorts"][0]["number"], service["spec"]["ports"][0]["targetPort"]);
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert!(selects(&pool["spec"]["selector"]["matchLabels"], labels));
}

#[test]
fn no_service_link_collides_with_a_variable_of_vllm() {
    let documents = workload("vllm");
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
    let job = read(&format!("{OVERLAYS}/load/load.yaml"));
    let service = documents[1]["metadata"]["name"].as_str().unwrap();
    assert!(job.contains(&format!("--target=http://{service}:{}\n", documents[1]["spec"]["ports"][0]["port"])));
}

#[test]
fn a_pod_ends_within_its_grace_period() {
    for (overlay, name) in SIDECARS {
        let [deployment, _] = workload(overlay);
        let pod = &deployment["spec"]["template"]["spec"];
        let configuration = configured(overlay, named(&pod["initContainers"], "streamgauge"));
        let wait = texts(&named(&pod["containers"], name)["lifecycle"]["preStop"]["exec"]["command"]);
        assert_eq!(wait[0], "timeout");
        assert!(wait[4].contains(&format!("127.0.0.1:{}/metrics", port(setting(&configuration, "admin")))));
        let of_engine = Duration::from_secs(30);
        let needed = duration(wait[1]) + of_engine + duration(setting(&configuration, "drain"));
        let grace = Duration::from_secs(pod["terminationGracePeriodSeconds"].as_u64().unwrap());
        assert!(needed < grace, "{overlay}: {needed:?} of {grace:?}");
    }
}

#[test]
fn no_container_may_do_what_it_need_not() {
    let [deployment, _] = workload("vllm");
    let context = &named(&deployment["spec"]["template"]["spec"]["initContainers"], "streamgauge")["securityContext"];
    let [gateway, _] = workload("gateway");
    let [_, job] = <[Value; 2]>::try_from(documents(&format!("{OVERLAYS}/load/load.yaml"))).unwrap();
    for workload in [gateway, job] {
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(&named(&pod["containers"], "streamgauge")["securityContext"], context);
        assert_eq!(pod["automountServiceAccountToken"], false);
    }
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(
        (&context["runAsNonRoot"], &context["readOnlyRootFilesystem"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    assert_eq!(context["allowPrivilegeEscalation"], false);
    let user = format!("USER {0}:{0}", context["runAsUser"]);
    assert!(read("deploy/Dockerfile").lines().any(|line| line == user), "the image's own user");
    let (_, added) = injected();
    let contexts = added.split("securityContext: ").nth(1).unwrap();
    for part in ["drop: [\"ALL\"]", "readOnlyRootFilesystem: true", "runAsNonRoot: true", "type: \"RuntimeDefault\""] {
        assert!(contexts.contains(part), "{part} in {added}");
    }
}

#[test]
fn the_policy_adds_a_proxy_that_the_program_accepts() {
    let (policy, added) = injected();
    let arguments = added.split("args: ").nth(1).unwrap().split_inclusive(']').next().unwrap();
    let arguments: Vec<String> = serde_json::from_str(arguments).unwrap();
    let arguments: Vec<String> = arguments.iter().map(|each| each.replace("$(UPSTREAM_PORT)", "8000")).collect();
    let configuration = checked(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), &root());
    assert!(added.contains(&format!("containerPort: {}", port(setting(&configuration, "listen")))));
    assert!(added.contains("restartPolicy: \"Always\""));
    let annotation = "streamgauge/upstream-port";
    assert!(added.contains(&format!("metadata.annotations['{annotation}']")), "{added}");
    assert!(added.contains("value: \"8000\""), "the default of the annotation: {added}");
    // Prometheus looks for the label that the policy acts on.
    let label = &policy["spec"]["matchConstraints"]["objectSelector"]["matchLabels"];
    let monitor = document(&format!("{OVERLAYS}/injection/monitors.yaml"));
    assert_eq!(&monitor["spec"]["selector"]["matchLabels"], label);
}

#[test]
fn a_job_sends_every_part_of_one_load_once() {
    let [claim, job] = <[Value; 2]>::try_from(documents(&format!("{OVERLAYS}/load/load.yaml"))).unwrap();
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
    // The program accepts all of it, with the time that the policy sets, and then finds no server.
    let start = "--start-at=$(START_AT)";
    assert!(arguments.contains(&start) && container["env"][0]["name"] == "START_AT");
    let flags = arguments.iter().filter(|argument| !argument.starts_with("--target=") && **argument != start);
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    command.args(flags).args(["--start-at=2030-01-01T12:00:00Z", "--target=http://127.0.0.1:9"]);
    let nobody = command.env_clear().env("JOB_COMPLETION_INDEX", "3").output();
    let stderr = String::from_utf8(nobody.unwrap().stderr).unwrap();
    assert!(stderr.starts_with("error: cannot reach http://127.0.0.1:9"), "{stderr}");
}

#[test]
fn every_board_and_every_rule_is_an_object_of_the_base() {
    let boards = document("dashboards/kustomization.yaml");
    let named: BTreeSet<&str> =
        list(&boards["configMapGenerator"]).iter().flat_map(|board| texts(&board["files"])).collect();
    let folder = fs::read_dir(root().join("dashboards")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = folder.map(|name| name.into_string().unwrap()).collect();
    let files: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| name.ends_with(".json")).collect();
    assert_eq!(named, files, "remedy: deploy/kustomize/render");
    let rule = document("deploy/kustomize/base/prometheusrule.yaml");
    assert!(rule["spec"] == document("deploy/prometheus/rules.yml"), "remedy: deploy/kustomize/render");
}

#[test]
fn the_chart_knows_every_setting_that_it_does_not_set_itself() {
    let schema: Value = serde_json::from_str(&read("deploy/helm/streamgauge/values.schema.json")).unwrap();
    let known: BTreeSet<&str> = texts(&schema["properties"]["settings"]["propertyNames"]["enum"]).into_iter().collect();
    let program: Value = serde_json::from_str(&read("tests/data/config.schema.json")).unwrap();
    let own = ["admin", "drain", "listen", "transparent", "upstream"];
    let keys = program["properties"].as_object().unwrap().keys().map(String::as_str);
    assert_eq!(known, keys.filter(|key| !own.contains(key)).collect(), "in values.schema.json");
}

#[test]
fn settings_that_need_a_restart_are_flags_of_the_chart_and_the_others_are_in_its_file() {
    let program = read("src/config/dump.rs");
    let program = program.split("const NEED_RESTART").nth(1).unwrap().split("];").next().unwrap();
    let own = ["admin", "listen", "transparent", "upstream"];
    let program: BTreeSet<&str> = program.split('"').skip(1).step_by(2).filter(|key| !own.contains(key)).collect();
    let chart = read("deploy/helm/streamgauge/templates/_helpers.tpl");
    let chart = chart.split("\"streamgauge-needs-restart\" -}}").nth(1).unwrap().split("{{- end }}").next().unwrap();
    assert_eq!(chart.split_whitespace().collect::<BTreeSet<_>>(), program);
    let [deployment, _] = workload("vllm");
    let sidecar = named(&deployment["spec"]["template"]["spec"]["initContainers"], "streamgauge");
    assert!(
        !texts(&sidecar["args"]).iter().any(|argument| argument.starts_with("--slo=")),
        "it would override the file"
    );
    assert!(configured("vllm", sidecar).contains("ttft<=500ms"));
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
            .contains(&format!("absent(up{{job=~\"(.+[/-])?{}\"}})", job["job_name"].as_str().unwrap()))
    );

    let collector = document("deploy/otel-collector.yaml");
    let endpoint = proxy["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"].as_str().unwrap();
    let http = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].as_str().unwrap();
    assert_eq!(endpoint, format!("http://otel-collector:{}", port(http)));

    // Every mounted file exists, and every image is pinned.
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
    let home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str().unwrap();
    let home = home.strip_prefix(provided.as_str().unwrap()).unwrap().to_owned();
    assert_eq!(home, "/streamgauge-fleet.json", "an operator starts with the fleet");
    assert!(root().join("dashboards").join(&home[1..]).exists());
    let source = document("deploy/grafana/datasources/prometheus.yaml")["datasources"][0]["url"].clone();
    assert_eq!(source, format!("http://prometheus:{}", port(texts(&services["prometheus"]["ports"])[0])));
}

#[test]
fn telemetry_of_compose_goes_to_its_collector() {
    let services = document("deploy/compose.yaml")["services"].clone();
    let proxy = &services["streamgauge"];
    let output = check(&texts(&proxy["command"]), &root(), |command| {
        for (name, value) in proxy["environment"].as_object().unwrap() {
            command.env(name, value.as_str().unwrap());
        }
    });
    let metrics = output.lines().find(|line| line.starts_with("# OTLP metrics: ")).unwrap();
    assert!(metrics.contains("http://otel-collector:4318/v1/metrics") && metrics.contains("10s"), "{metrics}");
    assert!(output.contains("http://otel-collector:4318/v1/traces"), "{output}");
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
    // The steps write a valid configuration.
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
