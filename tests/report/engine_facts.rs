//! What servers report about themselves, in the context, the checklist and a comparison.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::diagnosis::{report, steady};

/// The report of a run whose server reports `engine`.
fn of_engine(engine: &Value, meta: &Value) -> Value {
    let run_file = json!({"engines": {"http://h": engine}, "meta": meta});
    report(&steady(40, |_, _| {}), &run_file, &[])
}

fn batch_row(report: &Value) -> (&str, &str) {
    let row = &report["checklist"][8];
    assert_eq!(row["item"], "batch_settings");
    (row["answer"].as_str().unwrap(), row["evidence"].as_str().unwrap())
}

#[test]
fn the_flags_are_those_that_the_server_reports_by_its_own_names() {
    let sglang = json!({
        "/v1/models": {"id": "m", "max_model_len": 32768},
        "/server_info": {
            "version": "0.5.9", "dtype": "auto", "quantization": "fp8", "tp_size": 8, "max_running_requests": 64,
            "chunked_prefill_size": 8192, "disable_radix_cache": false, "schedule_policy": "lpm",
        },
    });
    let sglang = of_engine(&sglang, &json!({}));
    let flags = "max_running_requests=64, chunked_prefill_size=8192, max_model_len=32768, schedule_policy=lpm, \
                 disable_radix_cache=false";
    assert_eq!(sglang["context"]["engine_flags"], flags);
    assert_eq!(batch_row(&sglang), ("met", flags));
    assert_eq!(sglang["context"]["precision"], "fp8 quantization", "the server chose the type itself");
    let info =
        json!({"/info": {"version": "3.3.4", "model_dtype": "float16", "max_batch_size": 4, "max_total_tokens": 2048}});
    let tgi = of_engine(&info, &json!({}));
    assert_eq!(tgi["context"]["engine_flags"], "max_batch_size=4, max_total_tokens=2048");
    assert_eq!((batch_row(&tgi).0, &tgi["context"]["precision"]), ("met", &json!("float16")));
    let props = json!({"/props": {"total_slots": 4, "n_ctx": 4096}, "/v1/models": {"id": "m", "ftype": "Q4_K_M", "n_ctx": 4096}});
    let llama = of_engine(&props, &json!({}));
    assert_eq!(llama["context"]["engine_flags"], "total_slots=4, n_ctx=4096");
    assert_eq!((batch_row(&llama).0, &llama["context"]["precision"]), ("met", &json!("Q4_K_M")));
}

#[test]
fn a_server_that_reports_its_context_alone_leaves_the_batch_unknown_until_meta_states_it() {
    let vllm = json!({"/v1/models": {"id": "m", "owned_by": "vllm", "max_model_len": 4096}});
    let unknown = of_engine(&vllm, &json!({}));
    let evidence = "the server reports max_model_len=4096 alone; --meta engine_flags=… states the batch";
    assert_eq!(batch_row(&unknown), ("unknown", evidence));
    assert_eq!(unknown["context"]["engine_flags"], "max_model_len=4096");
    let stated = of_engine(&vllm, &json!({"engine_flags": "--max-num-seqs 256"}));
    assert_eq!(batch_row(&stated), ("met", "--max-num-seqs 256, max_model_len=4096"));
}

#[test]
fn precision_is_the_type_with_its_quantization() {
    let precision = |info: &Value| {
        let report = of_engine(&json!({"/get_server_info": info}), &json!({}));
        (report["context"]["precision"].clone(), report["checklist"][7]["answer"].clone())
    };
    let both = json!({"dtype": "bfloat16", "quantization": "awq"});
    assert_eq!(precision(&both), (json!("bfloat16 with awq quantization"), json!("met")));
    assert_eq!(precision(&json!({"dtype": "bfloat16"})), (json!("bfloat16"), json!("met")));
    assert_eq!(precision(&json!({"dtype": "auto"})), (Value::Null, json!("unknown")));
}

/// The recorded run `before-1`, with these settings of its server beside what it reported.
fn recorded(folder: &Path, name: &str, info: &Value) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir(&path).unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/compare/before-1");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    let mut run: Value = serde_json::from_slice(&fs::read(path.join("run.json")).unwrap()).unwrap();
    run["engines"]["http://127.0.0.1:9101"]["/server_info"] = info.clone();
    fs::write(path.join("run.json"), run.to_string()).unwrap();
    path
}

#[test]
fn a_comparison_lists_the_settings_of_the_server_that_changed_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, info: Value| recorded(folder.path(), name, &info);
    let before = path("before", json!({"max_running_requests": 64, "page_size": 16}));
    let after = path("after", json!({"max_running_requests": 32, "page_size": 16}));
    let silent = path("silent", json!({"page_size": 16}));
    let differences = |before: &Path, after: &Path| {
        let output = Command::new(env!("CARGO_BIN_EXE_streamgauge"))
            .args(["compare", "--json"])
            .args([before, after])
            .output()
            .unwrap();
        let comparison: Value = serde_json::from_slice(&output.stdout).unwrap();
        comparison["workload"]["differences"].clone()
    };
    let changed = |after: &str| json!([{"what": "engine flags", "before": "max_running_requests=64", "after": after, "workload": false}]);
    assert_eq!(differences(&before, &after), changed("max_running_requests=32"));
    assert_eq!(differences(&before, &silent), changed("unknown"));
    assert_eq!(differences(&before, &before), json!([]));
}
