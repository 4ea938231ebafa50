//! Translates OpenTelemetry names to Prometheus names by the rules that every OTLP ingest applies
//! (<https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>). Dots become underscores, the
//! unit becomes a suffix, and a counter ends in `_total`.

use crate::export::registry::catalog::{Instrument, InstrumentKind};

/// Returns a family's name without sample suffixes such as `_total` and `_bucket`.
pub fn family(instrument: &Instrument) -> String {
    if let Some(name) = instrument.prometheus {
        return name.to_owned();
    }
    let name: String = instrument.name.chars().map(sanitize_char).collect();
    match unit(instrument) {
        Some(unit) if !name.ends_with(unit) => format!("{name}_{unit}"),
        _ => name,
    }
}

/// Returns the sample name that a backend derives from an OTLP instrument.
pub fn otlp_translated_sample(instrument: &Instrument) -> String {
    sample(&Instrument { prometheus: None, ..*instrument })
}

/// Returns the sample name of a family with one sample.
pub fn sample(instrument: &Instrument) -> String {
    let family = family(instrument);
    if is_counter(instrument) { format!("{family}_total") } else { family }
}

/// Returns the unit's suffix if the family's name ends with it. Units in braces only annotate.
pub(super) fn unit(instrument: &Instrument) -> Option<&'static str> {
    match instrument.unit {
        "s" => Some("seconds"),
        "By" => Some("bytes"),
        "1" if matches!(instrument.kind, InstrumentKind::Gauge) => Some("ratio"),
        _ => None,
    }
}

pub(super) fn is_counter(instrument: &Instrument) -> bool {
    matches!(instrument.kind, InstrumentKind::Counter | InstrumentKind::ObservedCounter)
}

/// Replaces characters that Prometheus names do not allow.
pub(super) fn sanitize_char(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '_' }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::registry::catalog::Id;

    #[test]
    fn names_are_the_translated_ones_or_those_of_the_ecosystem() {
        let sample = |id: Id| sample(id.instrument());
        for (id, expected) in [
            (Id::RequestDuration, "gen_ai_server_request_duration_seconds"),
            (Id::TimeToFirstToken, "gen_ai_server_time_to_first_token_seconds"),
            (Id::TimePerOutputToken, "gen_ai_server_time_per_output_token_seconds"),
            (Id::TokenUsage, "gen_ai_client_token_usage"),
            (Id::UsageInput, "gen_ai_client_inference_usage_input_tokens_total"),
            (Id::HttpActive, "http_server_active_requests"),
            (Id::InterTokenLatency, "streamgauge_stream_inter_token_latency_seconds"),
            (Id::StreamTokens, "streamgauge_stream_output_tokens_total"),
            (Id::ActiveStreams, "streamgauge_stream_active"),
            (Id::BuildInfo, "streamgauge_build_info"),
            (Id::ProcessCpu, "process_cpu_seconds_total"),
            (Id::ProcessMemory, "process_resident_memory_bytes"),
            (Id::ProcessFiles, "process_open_fds"),
            (Id::ProcessStart, "process_start_time_seconds"),
        ] {
            assert_eq!(sample(id), expected);
        }
    }

    #[test]
    fn every_name_is_legal_and_its_own() {
        let mut names: Vec<String> = Id::all().map(|id| family(id.instrument())).collect();
        for (id, name) in Id::all().zip(&names) {
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit()));
            assert!(unit(id.instrument()).is_none_or(|unit| name.ends_with(unit)), "{name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), Id::all().count());
    }
}
