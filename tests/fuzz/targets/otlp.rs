//! OpenTelemetry's environment variables, one `NAME=value` on each line. Any values give settings, and warnings about
//! invalid ones that show no credentials.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::config::otlp::OtlpConfig;

const SECRET: &str = "canary in a header";

fuzz_target!(|text: &str| {
    let variables: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let (otlp, warnings) = OtlpConfig::from_environment(|name| {
        let (_, text) = variables.iter().find(|(known, _)| *known == name)?;
        Some(if name.ends_with("_HEADERS") { format!("{text}{SECRET}") } else { (*text).to_owned() })
    });
    let output = format!("{}{}", otlp.explain(), warnings.concat());
    // Unless another value has it too.
    assert!(text.contains("canary") || !output.contains("canary"), "{output}");
    let (metrics, traces) = (otlp.metrics.as_ref().map(|on| &on.exporter), otlp.traces.as_ref().map(|on| &on.exporter));
    for exporter in [metrics, traces, otlp.logs.as_ref().map(|on| &on.exporter)].into_iter().flatten() {
        let target = exporter.endpoint.target.parse::<http::uri::PathAndQuery>();
        assert_eq!(target.expect("where it is sent is a path").as_str(), exporter.endpoint.target);
    }
    assert!(!otlp.explain().contains(|c: char| c.is_control() && c != '\n'));
    assert!(otlp.traces.as_ref().is_none_or(|traces| (0.0..=1.0).contains(&traces.sampler.ratio)));
    let batches = [otlp.traces.as_ref().map(|traces| &traces.batch), otlp.logs.as_ref().map(|logs| &logs.batch)];
    assert!(batches.into_iter().flatten().all(|batch| batch.max_batch_size <= batch.max_queue_size));
});
