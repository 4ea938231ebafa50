//! What servers report about themselves, as facts of a report. Pure.
//!
//! `run.json` keeps the fields of each target by the endpoint that had them ([`crate::replay::server::info`]). A field's
//! name is the server's own.

use serde_json::Value;

use super::context::joined;
use super::source::ReportSource;

/// A field of what a server reports: (endpoint, name).
type Field = (&'static str, &'static str);

const MODEL_FIELDS: &[Field] =
    &[("/v1/models", "id"), ("/server_info", "served_model_name"), ("/info", "model_id"), ("/props", "model_alias")];
const VERSION_FIELDS: &[Field] = &[
    ("/version", "version"),
    ("/server_info", "version"),
    ("/get_server_info", "version"),
    ("/info", "version"),
    ("/props", "build_info"),
    ("/api/version", "version"),
];
const PRECISION_FIELDS: &[Field] =
    &[("/server_info", "dtype"), ("/get_server_info", "dtype"), ("/info", "model_dtype"), ("/v1/models", "ftype")];
const QUANTIZATION_FIELDS: &[Field] = &[("/server_info", "quantization"), ("/get_server_info", "quantization")];

/// An endpoint that only one engine has.
const ENGINE_ENDPOINTS: [Field; 5] = [
    ("/server_info", "SGLang"),
    ("/get_server_info", "SGLang"),
    ("/props", "llama.cpp"),
    ("/info", "TGI"),
    ("/api/version", "Ollama"),
];

/// The limit on prompt and output tokens of a request.
const MAX_MODEL_LEN_FIELDS: &[Field] = &[
    ("/v1/models", "max_model_len"),
    ("/server_info", "context_length"),
    ("/get_server_info", "context_length"),
    ("/info", "max_total_tokens"),
    ("/props", "n_ctx"),
    ("/v1/models", "n_ctx"),
];

/// Settings that limit or form a batch.
const BATCH_FLAGS: [&str; 10] = [
    "max_running_requests",
    "max_total_num_tokens",
    "max_prefill_tokens",
    "chunked_prefill_size",
    "max_concurrent_requests",
    "max_batch_size",
    "max_batch_total_tokens",
    "max_waiting_tokens",
    "waiting_served_ratio",
    "total_slots",
];
/// Settings beyond those of the batch.
const OTHER_FLAGS: [&str; 15] = [
    "max_model_len",
    "context_length",
    "max_input_tokens",
    "max_total_tokens",
    "n_ctx",
    "kv_cache_dtype",
    "page_size",
    "mem_fraction_static",
    "schedule_policy",
    "attention_backend",
    "disable_radix_cache",
    "disable_cuda_graph",
    "speculative",
    "speculative_algorithm",
    "speculative_num_steps",
];

/// Separates flags.
const FLAG_SEPARATOR: &str = ", ";

pub(super) fn model(engine: &Value) -> Option<String> {
    text_at(engine, MODEL_FIELDS)
}

pub(super) fn version(engine: &Value) -> Option<String> {
    text_at(engine, VERSION_FIELDS)
}

/// vLLM and others state their name as the owner of the model.
pub(super) fn name(engine: &Value) -> Option<String> {
    let endpoint = ENGINE_ENDPOINTS.iter().find(|(endpoint, _)| engine.get(endpoint).is_some());
    endpoint.map(|(_, name)| (*name).to_owned()).or_else(|| text_at(engine, &[("/v1/models", "owned_by")]))
}

/// Type of the weights, with their quantization. A type that the server chooses itself (`auto`) states nothing.
pub(super) fn precision(engine: &Value) -> Option<String> {
    let dtype = text_at(engine, PRECISION_FIELDS).filter(|dtype| dtype != "auto");
    let quantization = text_at(engine, QUANTIZATION_FIELDS).map(|quantization| format!("{quantization} quantization"));
    let parts: Vec<String> = dtype.into_iter().chain(quantization).collect();
    (!parts.is_empty()).then(|| parts.join(" with "))
}

pub(super) fn parallelism(engine: &Value) -> Option<String> {
    let info = engine.get("/server_info").or_else(|| engine.get("/get_server_info"))?;
    let sizes = ["tp", "dp", "pp", "ep"].map(|kind| (kind, info.get(format!("{kind}_size")).and_then(Value::as_u64)));
    let sizes: Vec<String> = sizes.into_iter().filter_map(|(kind, size)| Some(format!("{kind}={}", size?))).collect();
    (!sizes.is_empty()).then(|| sizes.join(" "))
}

/// The smallest limit on prompt and output tokens among the servers of a source.
pub(super) fn max_model_len(source: &ReportSource) -> Option<u64> {
    let limit = |engine: &Value| text_at(engine, MAX_MODEL_LEN_FIELDS)?.parse().ok();
    source.engines.values().filter_map(limit).min()
}

/// The flags of all servers: those of `--meta` first, then what the servers report, each different one once.
pub(super) fn flags<'a>(sources: impl Iterator<Item = &'a ReportSource> + Clone) -> Option<String> {
    let stated = sources.clone().filter_map(|source| source.meta.get(META_KEY).cloned());
    let reported = sources.flat_map(|source| source.engines.values()).flat_map(reported_flags);
    joined(stated.chain(reported), usize::MAX)
}

/// Key of `--meta` that states flags.
const META_KEY: &str = "engine_flags";

/// The flags in a list of [`flags`].
pub(super) fn split_flags(flags: &str) -> impl Iterator<Item = &str> {
    flags.split(FLAG_SEPARATOR)
}

/// Returns `true` if `--meta` states flags, or a server reports a setting of its batch.
pub(super) fn state_batch_settings(source: &ReportSource) -> bool {
    let of_server = |engine: &Value| BATCH_FLAGS.into_iter().any(|name| flag(engine, name).is_some());
    source.meta.contains_key(META_KEY) || source.engines.values().any(of_server)
}

fn reported_flags(engine: &Value) -> impl Iterator<Item = String> {
    let names = BATCH_FLAGS.into_iter().chain(OTHER_FLAGS);
    names.filter_map(|name| Some(format!("{name}={}", flag(engine, name)?)))
}

fn flag(engine: &Value, name: &str) -> Option<String> {
    engine.as_object()?.values().find_map(|page| text(page.get(name)?))
}

fn text_at(engine: &Value, fields: &[Field]) -> Option<String> {
    fields.iter().find_map(|(endpoint, name)| text(engine.get(endpoint)?.get(name)?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}
