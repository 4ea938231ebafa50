//! The configured SLOs as files of other SLO tools, one format per file.
//!
//! Each tool derives burn rates and alerts from two counts of [`Id::SloRequests`]: missed requests, and judged ones.
//! Excluded requests are in neither.

mod openslo;
mod pyrra;
mod sloth;

use serde_json::Value;

use super::prometheus::name;
use super::registry::catalog::Id;
use crate::measure::slo::{Slo, Slos};

/// Service name in the files, as in the resource of OTLP.
const SERVICE: &str = "streamgauge";

/// Window of an error budget. The burn rates of deploy/prometheus/rules.yml are for the same.
const WINDOW: &str = "30d";

/// A tool that reads SLOs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SloFileFormat {
    /// Sloth, specification `prometheus/v1`: one document.
    Sloth,
    /// Pyrra, `pyrra.dev/v1alpha1`: one document per SLO.
    Pyrra,
    /// OpenSLO, `openslo/v1`: a service, and one document per SLO.
    OpenSlo,
}

impl SloFileFormat {
    /// Renders the documents of a file.
    ///
    /// # Errors
    /// If two names are equal in the format, which allows fewer characters than an SLO.
    pub fn documents(self, slos: &Slos) -> Result<Vec<Value>, String> {
        let named: Vec<(String, &Slo)> = slos.iter().map(|slo| (self.name(slo), slo)).collect();
        for (at, (name, slo)) in named.iter().enumerate() {
            if let Some((_, other)) = named[..at].iter().find(|(earlier, _)| earlier == name) {
                let (one, other) = (other.name(), slo.name());
                return Err(format!("the SLOs `{one}` and `{other}` are both `{name}` in this format; rename one"));
            }
        }
        let of_slos = |document: fn(&str, &Slo) -> Value| named.iter().map(move |(name, slo)| document(name, slo));
        Ok(match self {
            Self::Sloth => vec![sloth::document(of_slos(sloth::slo).collect())],
            Self::Pyrra => of_slos(pyrra::document).collect(),
            Self::OpenSlo => [openslo::service()].into_iter().chain(of_slos(openslo::document)).collect(),
        })
    }

    /// Name of an SLO in the format. It begins and ends with a letter or digit. For Kubernetes (RFC 1123) it has lower
    /// case and no underscores.
    fn name(self, slo: &Slo) -> String {
        let name = match self {
            Self::Sloth => slo.name().to_owned(),
            Self::Pyrra | Self::OpenSlo => slo.name().to_ascii_lowercase().replace('_', "-"),
        };
        let name = name.trim_matches(['-', '_']);
        if name.is_empty() { "slo".to_owned() } else { name.to_owned() }
    }
}

/// Requests of an SLO with these results, as a PromQL selector.
fn selector(slo: &Slo, results: &str) -> String {
    let name = name::sample(Id::SloRequests.instrument());
    format!("{name}{{slo=\"{}\", result{results}}}", slo.name())
}

const MET: &str = "=\"met\"";
const MISSED: &str = "=\"missed\"";
const JUDGED: &str = "=~\"met|missed\"";

#[cfg(test)]
mod tests {
    use super::*;

    fn slos(texts: &[&str]) -> Slos {
        Slos::new(texts.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
    }

    #[test]
    fn every_format_has_the_target_and_counts_what_was_judged() {
        let slos = slos(&["Chat_1: ttft<=1s target=99.95%"]);
        let [sloth] = <[Value; 1]>::try_from(SloFileFormat::Sloth.documents(&slos).unwrap()).unwrap();
        assert_eq!((&sloth["version"], &sloth["slos"][0]["objective"]), (&"prometheus/v1".into(), &99.95.into()));
        let missed = r#"sum(rate(streamgauge_slo_requests_total{slo="Chat_1", result="missed"}[{{.window}}]))"#;
        assert_eq!(sloth["slos"][0]["sli"]["events"]["error_query"], missed);
        let runbook = sloth["slos"][0]["alerting"]["annotations"]["runbook_url"].as_str().unwrap();
        assert!(runbook.ends_with("/deploy/prometheus/README.md#streamgaugeerrorbudgetburns"), "{runbook}");
        let [pyrra] = <[Value; 1]>::try_from(SloFileFormat::Pyrra.documents(&slos).unwrap()).unwrap();
        assert_eq!((&pyrra["metadata"]["name"], &pyrra["spec"]["target"]), (&"chat-1".into(), &"99.95".into()));
        let judged = r#"streamgauge_slo_requests_total{slo="Chat_1", result=~"met|missed"}"#;
        assert_eq!(pyrra["spec"]["indicator"]["ratio"]["total"]["metric"], judged);
        let [service, openslo] = <[Value; 2]>::try_from(SloFileFormat::OpenSlo.documents(&slos).unwrap()).unwrap();
        assert_eq!((&service["kind"], &openslo["spec"]["service"]), (&"Service".into(), &service["metadata"]["name"]));
        assert_eq!(openslo["spec"]["objectives"][0]["target"], 0.9995);
    }

    #[test]
    fn names_that_kubernetes_cannot_tell_apart_are_an_error() {
        let slos = slos(&["a_b: ttft<=1s", "A-b: ttft<=1s"]);
        assert_eq!(SloFileFormat::Sloth.documents(&slos).unwrap().len(), 1);
        for format in [SloFileFormat::Pyrra, SloFileFormat::OpenSlo] {
            let error = format.documents(&slos).unwrap_err();
            assert_eq!(error, "the SLOs `a_b` and `A-b` are both `a-b` in this format; rename one");
        }
        let name = |format: SloFileFormat, name: &str| format.name(&format!("{name}: e2e<=1s").parse().unwrap());
        assert_eq!(
            (name(SloFileFormat::Sloth, "-X_y_"), name(SloFileFormat::Pyrra, "-X_y_")),
            ("X_y".into(), "x-y".into())
        );
        assert_eq!(name(SloFileFormat::OpenSlo, "__"), "slo");
    }
}
