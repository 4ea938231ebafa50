//! The AIPerf configuration that would send a run's load.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::request_view::RequestView;
use super::super::source::ReportSource;
use super::phase::AiperfPhase;

/// The configuration as far as the requests show it.
#[derive(Debug, Default)]
pub(super) struct RequestConfig {
    models: BTreeSet<String>,
    dialect: Option<String>,
    streamed: bool,
}

impl RequestConfig {
    pub(super) fn add(&mut self, request: &RequestView) {
        self.models.extend(request.model.clone());
        self.dialect = self.dialect.take().or_else(|| request.dialect.clone());
        self.streamed |= request.streamed;
    }

    /// Returns `None` if AIPerf cannot express the run. `phase` holds the requests that count.
    pub(super) fn render(&self, sources: &[ReportSource], phase: &AiperfPhase) -> Option<Value> {
        let of = endpoint(self.dialect.as_deref()?)?;
        let requests = phase.requests();
        let models: Vec<_> = self.models.iter().map(|model| json!({"name": model})).collect();
        let urls: BTreeSet<&String> = sources.iter().flat_map(|source| &source.targets).collect();
        let prompts = [("isl", "input_sequence_length"), ("osl", "output_sequence_length")];
        let prompts: Map<_, _> =
            prompts.into_iter().filter_map(|(key, tag)| Some((key.to_owned(), json!(phase.mean(tag)?)))).collect();
        let phase = match sources.iter().find(|source| source.closed_loop) {
            Some(closed) => json!({
                "name": "profiling", "type": "concurrency", "concurrency": closed.slots.unwrap_or(1),
                "requests": requests,
            }),
            None => json!({"name": "profiling", "type": "fixed_schedule"}),
        };
        (!models.is_empty() && !urls.is_empty()).then(|| {
            json!({
                "models": {"items": models},
                "endpoint": {"urls": urls, "type": of, "streaming": self.streamed},
                "datasets": [{"name": "main", "type": "synthetic", "entries": requests, "prompts": prompts}],
                "phases": [phase],
            })
        })
    }
}

/// Returns AIPerf's endpoint type for a dialect, if it has one.
fn endpoint(dialect: &str) -> Option<&'static str> {
    match dialect {
        "openai.chat" => Some("chat"),
        "openai.completions" => Some("completions"),
        "openai.responses" => Some("responses"),
        "openai.embeddings" => Some("embeddings"),
        "anthropic.messages" => Some("messages"),
        "tgi.stream" => Some("huggingface_generate"),
        _ => None,
    }
}
