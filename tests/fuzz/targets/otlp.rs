//! OpenTelemetry's environment variables, one `NAME=value` on each line: whatever they hold, there are settings, and a
//! sentence for what was not understood that does not show what authenticates.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::config::otlp::Otlp;

const SECRET: &str = "canary in a header";

fuzz_target!(|text: &str| {
    let variables: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let (otlp, warnings) = Otlp::of_environment(|name| {
        let (_, text) = variables.iter().find(|(known, _)| *known == name)?;
        Some(if name.ends_with("_HEADERS") { format!("{text}{SECRET}") } else { (*text).to_owned() })
    });
    let said = format!("{}{}", otlp.explain(), warnings.concat());
    assert!(!said.contains("canary"), "{said}");
    if let Some(traces) = &otlp.traces {
        assert!(traces.max_batch_size <= traces.max_queue_size && (0.0..=1.0).contains(&traces.sampler.ratio));
    }
});
