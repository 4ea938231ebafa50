//! A server's page, valid or not: figures are finite, derive from the page, and survive a round trip. Comments and
//! nonsense between its lines change nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::measure::server_metrics::exposition::samples;
use streamgauge_fuzz::measure::server_metrics::metric_names::figures;
use streamgauge_fuzz::trace_file::server_metrics::Scrape;

fuzz_target!(|page: &str| {
    for sample in samples(page) {
        assert!(page.contains(sample.name));
        if let Some(value) = sample.label("priority") {
            assert!(page.contains(value));
        }
    }
    let found = figures(page);
    assert!(found.values().all(|value| value.is_finite()));
    let between: Vec<&str> = page.lines().flat_map(|line| ["# HELP x y", line, "{", ""]).collect();
    assert_eq!(figures(&between.join("\n")), found);
    let row = Scrape { at: -1, figures: found, ..Scrape::default() };
    let written = serde_json::to_vec(&row).expect("numbers and names");
    let again: Scrape = serde_json::from_slice(&written).expect("a row");
    assert_eq!(again.figures.len(), row.figures.len());
});
