//! The environment that Kubernetes gives a container of a manifest.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The variables of the container `name` of the pod of the first document, with the Services of all `documents` in its
/// namespace (Kubernetes' `pkg/kubelet/envvars`).
pub(crate) fn environment(documents: &[Value], name: &str) -> BTreeMap<String, String> {
    let pod = &documents[0]["spec"]["template"]["spec"];
    let containers = ["initContainers", "containers"].into_iter().flat_map(|kind| pod[kind].as_array().unwrap());
    let container = containers.into_iter().find(|container| container["name"] == name).unwrap();
    let mut variables = links("kubernetes", &json!({"name": "https", "port": 443}));
    if pod["enableServiceLinks"] != false {
        variables.extend(of_services(documents));
    }
    for variable in container["env"].as_array().into_iter().flatten() {
        let value = variable["value"].as_str().unwrap_or("set-by-kubernetes");
        variables.insert(variable["name"].as_str().unwrap().to_owned(), value.to_owned());
    }
    variables
}

/// The variables that the Services among `documents` give every pod that starts after them, where a pod lets them.
pub(crate) fn of_services(documents: &[Value]) -> BTreeMap<String, String> {
    let services = documents.iter().filter(|document| document["kind"] == "Service");
    let name = |service: &Value| service["metadata"]["name"].as_str().unwrap().to_owned();
    services.flat_map(|service| links(&name(service), &service["spec"]["ports"][0])).collect()
}

fn links(service: &str, port: &Value) -> BTreeMap<String, String> {
    let upper = |text: &str| text.to_uppercase().replace('-', "_");
    let (name, number, host) = (upper(service), port["port"].as_u64().unwrap(), "10.96.0.7");
    let (url, label) = (format!("tcp://{host}:{number}"), upper(port["name"].as_str().unwrap()));
    BTreeMap::from([
        (format!("{name}_SERVICE_HOST"), host.to_owned()),
        (format!("{name}_SERVICE_PORT"), number.to_string()),
        (format!("{name}_SERVICE_PORT_{label}"), number.to_string()),
        (format!("{name}_PORT"), url.clone()),
        (format!("{name}_PORT_{number}_TCP"), url),
        (format!("{name}_PORT_{number}_TCP_PROTO"), "tcp".to_owned()),
        (format!("{name}_PORT_{number}_TCP_PORT"), number.to_string()),
        (format!("{name}_PORT_{number}_TCP_ADDR"), host.to_owned()),
    ])
}
