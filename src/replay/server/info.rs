//! Queries the servers before a run: version, model, and settings that affect the figures.
//!
//! Every server is asked for every page of `PAGES`, and pages that it lacks are skipped. Only the listed fields are
//! kept, and of these only numbers, booleans and short texts. The pages also contain keys (SGLang's `api_key`) and long
//! texts (llama.cpp's chat template). A page that times out stops nothing.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::{Map, Value};

use super::http_fetch::{FetchRequest, fetch};
use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::replay::sender::target::{TargetConnector, TargetUrl};

/// Timeout of all pages of all servers together: the longest delay of a run's start.
const FETCH_TIMEOUT: Gap = Gap::from_millis(1_000);
/// Page size limit. SGLang's page lists every scheduler.
const MAX_PAGE_BYTES: usize = 1 << 20;
/// Length limit of a text field, such as a model path or a version.
const MAX_TEXT_CHARS: usize = 200;

/// Pages and the JSON pointers of the fields to keep. A field's name is the last segment of its pointer.
const PAGES: [(&str, &[&str]); 7] = [
    // vLLM
    ("/version", &["/version"]),
    // vLLM, SGLang, llama.cpp: the first model, which is usually the only one
    (
        "/v1/models",
        &[
            "/data/0/id",
            "/data/0/owned_by",
            "/data/0/root",
            "/data/0/max_model_len",
            "/data/0/meta/ftype",
            "/data/0/meta/n_ctx",
            "/data/0/meta/n_ctx_train",
            "/data/0/meta/n_params",
            "/data/0/meta/size",
        ],
    ),
    // SGLang, with the path of older versions
    ("/server_info", SGLANG_FIELDS),
    ("/get_server_info", SGLANG_FIELDS),
    // llama.cpp
    (
        "/props",
        &[
            "/build_info",
            "/model_path",
            "/model_alias",
            "/total_slots",
            "/default_generation_settings/n_ctx",
            "/default_generation_settings/speculative",
        ],
    ),
    // TGI
    (
        "/info",
        &[
            "/version",
            "/sha",
            "/docker_label",
            "/model_id",
            "/model_sha",
            "/model_dtype",
            "/model_device_type",
            "/max_concurrent_requests",
            "/max_input_tokens",
            "/max_total_tokens",
            "/max_batch_total_tokens",
            "/max_batch_size",
            "/max_waiting_tokens",
            "/waiting_served_ratio",
        ],
    ),
    // Ollama
    ("/api/version", &["/version"]),
];

const SGLANG_FIELDS: &[&str] = &[
    "/version",
    "/model_path",
    "/served_model_name",
    "/device",
    "/dtype",
    "/quantization",
    "/kv_cache_dtype",
    "/context_length",
    "/tp_size",
    "/dp_size",
    "/pp_size",
    "/ep_size",
    "/page_size",
    "/mem_fraction_static",
    "/max_running_requests",
    "/max_total_num_tokens",
    "/max_prefill_tokens",
    "/chunked_prefill_size",
    "/schedule_policy",
    "/attention_backend",
    "/disable_radix_cache",
    "/disable_cuda_graph",
    "/speculative_algorithm",
    "/speculative_num_steps",
];

/// One server's fields by page.
pub type ServerInfo = BTreeMap<&'static str, Map<String, Value>>;

/// Queries each server; returns the responses in the same order.
///
/// # Errors
/// The system cannot create a runtime.
pub fn fetch_server_info(
    targets: &[TargetUrl],
    fields: &[(String, String)],
    tls: Option<Arc<ClientConfig>>,
) -> io::Result<Vec<ServerInfo>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(async {
        let of = |target: &TargetUrl| {
            let pages = PAGES.map(|(path, pointers)| {
                let (target, fields) = (target.clone(), fields.to_vec());
                let connector = TargetConnector::new(target.clone(), tls.clone().filter(|_| target.tls), FETCH_TIMEOUT);
                tokio::task::spawn_local(async move {
                    let question = FetchRequest {
                        target: &target,
                        path: &format!("{}{path}", target.base),
                        accept: "application/json",
                        fields: &fields,
                        body: None,
                    };
                    let response = fetch(&connector, question, MAX_PAGE_BYTES);
                    let page = Clock::Monotonic.timeout(FETCH_TIMEOUT, response).await?.ok()?;
                    Some((path, select_fields(&page, pointers))).filter(|(_, picked)| !picked.is_empty())
                })
            });
            async move {
                let mut info = ServerInfo::new();
                for page in pages {
                    // A panicked task counts as no response.
                    info.extend(page.await.ok().flatten());
                }
                info
            }
        };
        let fetches: Vec<_> = targets.iter().map(of).collect();
        let mut all = Vec::new();
        for one in fetches {
            all.push(one.await);
        }
        Ok(all)
    })
}

/// Extracts the listed fields from a page.
fn select_fields(page: &[u8], pointers: &[&str]) -> Map<String, Value> {
    let Ok(page) = serde_json::from_slice::<Value>(page) else { return Map::new() };
    let short = |value: &Value| match value {
        Value::Number(_) | Value::Bool(_) => true,
        Value::String(text) => text.chars().count() <= MAX_TEXT_CHARS,
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    };
    let field = |place: &&str| {
        let value = page.pointer(place).filter(|value| short(value))?;
        Some((place.rsplit('/').next()?.to_owned(), value.clone()))
    };
    pointers.iter().filter_map(field).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selected(path: &str, page: &Value) -> Value {
        let (_, pointers) = PAGES.iter().find(|(of, _)| *of == path).unwrap();
        Value::Object(select_fields(page.to_string().as_bytes(), pointers))
    }

    #[test]
    fn of_what_a_server_says_only_settings_that_are_known_are_kept() {
        let sglang = json!({
            "version": "0.5.9", "tp_size": 8, "disable_radix_cache": false, "api_key": "very-secret",
            "admin_api_key": "very-secret", "quantization": null, "internal_states": [{"x": 1}],
        });
        let expected = json!({"version": "0.5.9", "tp_size": 8, "disable_radix_cache": false});
        assert_eq!(
            (selected("/server_info", &sglang), selected("/get_server_info", &sglang)),
            (expected.clone(), expected)
        );
        let llama = json!({
            "build_info": "b11669", "total_slots": 4, "chat_template": "very secret",
            "default_generation_settings": {"n_ctx": 4096, "prompt": "very secret"},
        });
        assert_eq!(selected("/props", &llama), json!({"build_info": "b11669", "total_slots": 4, "n_ctx": 4096}));
        let vllm = json!({"data": [{"id": "m", "max_model_len": 8192, "permission": [{"id": "x"}]}, {"id": "lora"}]});
        assert_eq!(selected("/v1/models", &vllm), json!({"id": "m", "max_model_len": 8192}));
        let long = json!({"version": "v".repeat(201)});
        assert_eq!((selected("/version", &long), select_fields(b"not found", &["/version"])), (json!({}), Map::new()));
    }
}
