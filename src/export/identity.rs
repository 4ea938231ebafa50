//! Resource of this service instance, by the resource conventions.
//!
//! Each instance needs its own `service.instance.id`, or a backend merges two instances into one series that jumps
//! between values. It is a random UUID unless configured, as
//! <https://opentelemetry.io/docs/specs/semconv/registry/attributes/service/> recommends. A restart is a new instance.
//!
//! `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` override what is detected. Pods pass their Kubernetes attributes
//! there. The command line is never an attribute, because a URL in it may hold a token.

use std::collections::BTreeMap;
use std::env::consts;
use std::{fs, process};

use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::ResourceDetector;
use rand::Rng;

/// Returns the detected attributes, overridden by the configured ones.
pub(super) fn resource(configured: &[(String, String)]) -> Resource {
    let configured = configured.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty()
        .with_detectors(&[Box::new(ServiceDetector), Box::new(HostDetector), Box::new(ProcessDetector)])
        .with_attributes(configured)
        .build()
}

/// Attributes that the live page shows.
const INSTANCE_ATTRIBUTES: [&str; 6] =
    ["service.name", "service.instance.id", "host.name", "k8s.namespace.name", "k8s.pod.name", "k8s.node.name"];

/// Longest name of an instance; a key in object storage has at most 1,024 bytes.
const MAX_INSTANCE_CHARS: usize = 128;

struct ServiceDetector;

impl ResourceDetector for ServiceDetector {
    fn detect(&self) -> Resource {
        let version = env!("CARGO_PKG_VERSION");
        let attributes = [
            KeyValue::new("service.instance.id", random_uuid(&mut rand::rng())),
            KeyValue::new("service.version", version),
            KeyValue::new("telemetry.sdk.name", "streamgauge"),
            KeyValue::new("telemetry.sdk.language", "rust"),
            KeyValue::new("telemetry.sdk.version", version),
        ];
        Resource::builder_empty().with_attributes(attributes).build()
    }
}

struct HostDetector;

impl ResourceDetector for HostDetector {
    fn detect(&self) -> Resource {
        // The conventions have their own names for some of Rust's.
        let arch = match consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let known = [KeyValue::new("host.arch", arch), KeyValue::new("os.type", consts::OS)];
        let name = host_name().map(|name| KeyValue::new("host.name", name));
        Resource::builder_empty().with_attributes(known.into_iter().chain(name)).build()
    }
}

struct ProcessDetector;

impl ResourceDetector for ProcessDetector {
    fn detect(&self) -> Resource {
        let pid = KeyValue::new("process.pid", i64::from(process::id()));
        let executable = std::env::current_exe().ok();
        let name = executable.as_deref().and_then(|path| path.file_name()?.to_str());
        let name = name.map(|name| KeyValue::new("process.executable.name", name.to_owned()));
        Resource::builder_empty().with_attributes([pid].into_iter().chain(name)).build()
    }
}

/// Returns the kernel's host name: in a pod, the pod's name.
fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "(none)")
}

/// Returns a name for this instance that a restart keeps: the configured `service.instance.id`, else the host's name.
/// Only letters, digits, `.`, `-` and `_` stay, because the name becomes part of a key in object storage.
pub fn instance_name(configured: &[(String, String)]) -> String {
    let given = configured.iter().find(|(key, _)| key == "service.instance.id").map(|(_, value)| value.clone());
    let name = given.or_else(host_name).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '.' };
    let name: String = name.chars().take(MAX_INSTANCE_CHARS).map(plain).collect();
    if name.trim_matches('.').is_empty() { "unnamed".to_owned() } else { name }
}

/// Returns the attributes of a resource by which a person identifies this instance.
pub(super) fn instance(resource: &Resource) -> BTreeMap<&'static str, String> {
    let known = |name| Some((name, resource.get(&Key::new(name))?.to_string()));
    INSTANCE_ATTRIBUTES.into_iter().filter_map(known).collect()
}

/// Generates a version 4 UUID (RFC 9562, section 5.4).
fn random_uuid(random: &mut impl Rng) -> String {
    let mut bytes = [0; 16];
    random.fill_bytes(&mut bytes);
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let digits = format!("{bits:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use opentelemetry::Value;

    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    fn text(resource: &Resource, key: &'static str) -> String {
        resource.get(&Key::new(key)).unwrap().to_string()
    }

    #[test]
    fn two_instances_of_one_configuration_differ_and_know_their_host_and_process() {
        let configured = [pair("service.name", "gauge")];
        let [one, other] = [(); 2].map(|()| resource(&configured));
        assert_eq!(text(&one, "service.name"), "gauge");
        for key in ["host.name", "host.arch", "os.type", "process.pid", "process.executable.name", "service.version"] {
            assert_eq!(text(&one, key), text(&other, key), "{key}");
        }
        assert_eq!(one.get(&Key::new("process.pid")), Some(Value::I64(process::id().into())));
        assert!(one.iter().all(|(key, _)| !key.as_str().starts_with("process.command")), "it may hold a token");
        let id = text(&one, "service.instance.id");
        assert_ne!(id, text(&other, "service.instance.id"));
        let groups: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!(id.as_bytes()[14], b'4', "{id}");
        assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
    }

    #[test]
    fn what_the_configuration_gives_stays() {
        let configured = ["service.name", "service.instance.id", "host.name", "process.pid", "k8s.pod.name"];
        let resource = resource(&configured.map(|key| pair(key, "given")));
        for key in configured {
            assert_eq!(text(&resource, key), "given", "{key}");
        }
        let shown = instance(&resource);
        let names = ["host.name", "k8s.pod.name", "service.instance.id", "service.name"];
        assert_eq!(shown.into_iter().collect::<Vec<_>>(), names.map(|name| (name, "given".to_owned())));
    }
}
