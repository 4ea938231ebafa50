//! The effective configuration in words, for `proxy --check` and `/config`.

use std::sync::Arc;

use crate::config::LoadedConfig;
use crate::export::registry::aggregate::AggregateSettings;
use crate::export::registry::catalog::Convention;
use crate::export::registry::scrape_bound::{SUPPOSED_MODEL_BYTES, scrape_bound};
use crate::measure::request_class::RequestClasses;

/// The effective configuration as a configuration file that would give it again.
pub(super) fn explain(loaded: &LoadedConfig, digest: &str) -> String {
    let (config, version) = (&loaded.config, env!("CARGO_PKG_VERSION"));
    let head = format!("# Streamgauge {version}, configuration {digest}\n");
    let otlp: String = loaded.otlp.explain().lines().map(|line| format!("# {line}\n")).collect();
    head + &config.explain(&loaded.settings) + &otlp + &explain_scrape(loaded)
}

/// Explains the maximum cost of the configuration to the Prometheus server.
fn explain_scrape(LoadedConfig { config, otlp, .. }: &LoadedConfig) -> String {
    let settings = AggregateSettings {
        slos: Arc::clone(&config.slos),
        max_models: config.max_models,
        max_class_values: config.max_class_values,
        gen_ai_client: config.gen_ai_client,
        convention: if otlp.latest_gen_ai { Convention::Latest } else { Convention::Frozen },
        ..AggregateSettings::default()
    };
    let is_one_server = config.upstream.server().is_some();
    let bound = scrape_bound(&settings, &config.classes, is_one_server);
    let without = scrape_bound(&settings, &RequestClasses::default(), is_one_server);
    let mut text = format!(
        "# scrape: at most {} series and {} bytes of text, if every model of max_models has every route, status and ending \
         (names of {SUPPOSED_MODEL_BYTES} bytes)\n",
        bound.series, bound.bytes
    );
    if !config.classes.is_empty() {
        let (more, sets) = (bound.series - without.series, bound.class_sets);
        text += &format!(
            "# classes: divide each series with a model into at most {sets}, and make {more} of these series\n"
        );
    }
    text
}
