//! The environment layer, with warnings about unknown variables.

use super::error::closest_match;
use super::layer::{SettingOrigin, SettingValue, SettingsLayer, SourcedText};
use super::raw_settings::{PREFIX, SETTINGS};

/// Names the configuration file.
pub(super) const CONFIG_FILE_VARIABLE: &str = "STREAMGAUGE_CONFIG";

/// Names the folder of the programs for `tests/real`.
const TEST_TOOLS_VARIABLE: &str = "STREAMGAUGE_PARTS";

/// Reads the settings from the environment. An empty variable is unset.
pub(super) fn read(variables: &[(String, String)]) -> SettingsLayer {
    let mut settings = SettingsLayer::default();
    for setting in SETTINGS.iter() {
        let set = variables.iter().find(|(name, text)| *name == setting.variable && !text.is_empty());
        if let Some((_, text)) = set {
            // SLOs contain commas and spaces, so `;` and line breaks separate list entries.
            let parts = text.split(|c| setting.list && (c == ';' || c == '\n')).filter(|part| !part.trim().is_empty());
            let texts = parts.map(|part| SourcedText { text: part.to_owned(), origin: SettingOrigin::Variable });
            settings.set(setting, SettingValue { texts: texts.collect(), origin: SettingOrigin::Variable });
        }
    }
    settings
}

/// Warns of variables with our prefix that are no settings.
pub(super) fn warnings(variables: &[(String, String)]) -> Vec<String> {
    let known = || SETTINGS.iter().map(|setting| &*setting.variable).chain([CONFIG_FILE_VARIABLE]);
    let unknown = variables.iter().filter(|(name, value)| {
        name.starts_with(PREFIX)
            && !known().any(|known| known == name)
            && name != TEST_TOOLS_VARIABLE
            && !is_kubernetes_variable(name, value)
    });
    let warn = |(name, _): &(String, String)| {
        let bare = name.trim_start_matches(PREFIX);
        match closest_match(bare, known().map(|known| known.trim_start_matches(PREFIX))) {
            Some(nearest) => format!("{name} is not a setting and is ignored; did you mean {PREFIX}{nearest}?"),
            None => format!("{name} is not a setting and is ignored; `streamgauge proxy --help` lists the settings"),
        }
    };
    unknown.map(warn).collect()
}

/// True if Kubernetes injects this variable into pods, for a Service named `streamgauge` or `streamgauge-…`.
fn is_kubernetes_variable(name: &str, value: &str) -> bool {
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
