//! Identity of this service instance, by the resource conventions.
//!
//! Each instance needs its own `service.instance.id`, or a backend merges two instances into one series that jumps
//! between values. It is a random UUID unless configured, as
//! <https://opentelemetry.io/docs/specs/semconv/registry/attributes/service/> recommends. A restart is a new instance.

use std::fs;

use rand::Rng;

const INSTANCE: &str = "service.instance.id";
/// Name of the machine or the pod.
const HOST: &str = "host.name";

/// Returns the configured resource attributes plus missing instance attributes.
pub(super) fn with_instance_attributes(configured: &[(String, String)]) -> Vec<(String, String)> {
    let mut attributes = configured.to_vec();
    let is_given = |name: &str| configured.iter().any(|(key, _)| key == name);
    if !is_given(INSTANCE) {
        attributes.push((INSTANCE.to_owned(), random_uuid(&mut rand::rng())));
    }
    if !is_given(HOST)
        && let Some(name) = host_name()
    {
        attributes.push((HOST.to_owned(), name));
    }
    attributes
}

/// Returns the kernel's host name: in a pod, the pod's name.
fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "(none)")
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
    use super::*;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn two_instances_of_one_configuration_differ_and_know_their_host() {
        let configured = [pair("service.name", "gauge")];
        let [one, other] = [(); 2].map(|()| with_instance_attributes(&configured));
        assert_eq!((&one[0], one[1].0.as_str(), one[2].0.as_str()), (&configured[0], INSTANCE, HOST));
        assert_ne!(one[1], other[1]);
        assert_eq!(one[2], other[2]);
        let groups: Vec<usize> = one[1].1.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!(one[1].1.as_bytes()[14], b'4', "{}", one[1].1);
        assert!(b"89ab".contains(&one[1].1.as_bytes()[19]), "{}", one[1].1);
    }

    #[test]
    fn what_the_configuration_gives_stays() {
        let configured = [pair("service.name", "gauge"), pair(INSTANCE, "a"), pair(HOST, "b")];
        assert_eq!(with_instance_attributes(&configured), configured);
    }
}
