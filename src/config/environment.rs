//! The layer of the environment, and what in it only looks like ours.

use super::error::nearest;
use super::layer::{Given, Place, Settings, Text};
use super::typed::{PREFIX, SETTINGS};

/// The variable that names the configuration file.
pub(super) const CONFIG_FILE: &str = "STREAMGAUGE_CONFIG";

/// The variable that names the folder of the parts that `tests/real` is run with.
const PARTS: &str = "STREAMGAUGE_PARTS";

/// What the environment says. A variable that is set to nothing is not set.
pub(super) fn read(variables: &[(String, String)]) -> Settings {
    let mut settings = Settings::default();
    for setting in SETTINGS.iter() {
        let set = variables.iter().find(|(name, text)| *name == setting.variable && !text.is_empty());
        if let Some((_, text)) = set {
            // SLOs hold commas and spaces, so that several are parted by `;` or line ends.
            let parts = text.split(|c| setting.list && (c == ';' || c == '\n')).filter(|part| !part.trim().is_empty());
            let texts = parts.map(|part| Text { text: part.to_owned(), place: Place::Variable });
            settings.set(setting, Given { texts: texts.collect(), place: Place::Variable });
        }
    }
    settings
}

/// Warns of variables that look like ours and are not.
pub(super) fn warnings(variables: &[(String, String)]) -> Vec<String> {
    let known = || SETTINGS.iter().map(|setting| &*setting.variable).chain([CONFIG_FILE]);
    let unknown = variables.iter().filter(|(name, value)| {
        name.starts_with(PREFIX)
            && !known().any(|known| known == name)
            && name != PARTS
            && !is_of_kubernetes(name, value)
    });
    let warn = |(name, _): &(String, String)| {
        let bare = name.trim_start_matches(PREFIX);
        match nearest(bare, known().map(|known| known.trim_start_matches(PREFIX))) {
            Some(nearest) => format!("{name} is not a setting and is ignored; did you mean {PREFIX}{nearest}?"),
            None => format!("{name} is not a setting and is ignored; `streamgauge proxy --help` lists the settings"),
        }
    };
    unknown.map(warn).collect()
}

/// Whether Kubernetes injects such a variable into pods, for a Service named `streamgauge` or `streamgauge-…`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let of_service = name.ends_with("_SERVICE_HOST") || name.ends_with("_SERVICE_PORT");
    let of_port = name.rsplit_once("_PORT_").is_some_and(|(_, port)| {
        let (number, rest) = port.split_once('_').unwrap_or((port, ""));
        let (protocol, part) = rest.split_once('_').unwrap_or((rest, ""));
        !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && matches!(protocol, "TCP" | "UDP" | "SCTP")
            && matches!(part, "" | "PROTO" | "PORT" | "ADDR")
    });
    of_service || of_port || name.contains("_SERVICE_PORT_") || (name.ends_with("_PORT") && is_url)
}
