//! Recognizes a result file by the keys of its first object.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Bytes of a file that decide its format. All tools write the keys that identify them within these.
pub const DETECT_BYTES: u64 = 64 << 10;
/// Maximum number of keys that are looked at.
const MAX_KEYS: usize = 64;

/// Format of a result file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerFormat {
    /// `profile_export.jsonl` of AIPerf.
    AiperfRecords,
    /// `profile_export_aiperf.json` of AIPerf.
    AiperfSummary,
    /// The JSON of `vllm bench serve`.
    VllmBench,
    /// The JSON lines of `sglang.bench_serving`.
    SglangBench,
    /// `benchmarks.json` of GuideLLM.
    Guidellm,
    /// `per_request_lifecycle_metrics.json` of inference-perf.
    InferencePerfRecords,
    /// `summary_lifecycle_metrics.json` or `stage_N_lifecycle_metrics.json` of inference-perf.
    InferencePerfSummary,
}

impl PeerFormat {
    /// All formats.
    pub const ALL: [Self; 7] = [
        Self::AiperfRecords,
        Self::AiperfSummary,
        Self::VllmBench,
        Self::SglangBench,
        Self::Guidellm,
        Self::InferencePerfRecords,
        Self::InferencePerfSummary,
    ];

    /// Recognizes the format by the first bytes of a file; `None` for our own and for anything else.
    pub fn detect(start: &[u8]) -> Option<Self> {
        let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
        let list = match start.first()? {
            b'[' => true,
            b'{' => false,
            _ => return None,
        };
        let mut keys = Vec::new();
        // The start of a large document ends within a value: the keys before it decide.
        FirstKeys(&mut keys).deserialize(&mut serde_json::Deserializer::from_slice(start)).ok();
        let has = |key: &str| keys.iter().any(|found| found == key);
        match () {
            () if has("streamgauge_trace") => None,
            () if list => (has("start_time") && has("end_time") && (has("request") || has("info")))
                .then_some(Self::InferencePerfRecords),
            () if has("metadata") && has("metrics") => Some(Self::AiperfRecords),
            () if has("aiperf_version") || has("request_throughput") && has("input_config") => {
                Some(Self::AiperfSummary)
            }
            () if has("model_id") && has("num_prompts") => Some(Self::VllmBench),
            // An unlimited rate is no JSON, so the keys after it are unknown.
            () if has("backend") && has("dataset_name") && has("request_rate") => Some(Self::SglangBench),
            () if has("benchmarks") || has("metadata") && (has("config") || has("args")) => Some(Self::Guidellm),
            () if has("load_summary") && has("successes") => Some(Self::InferencePerfSummary),
            () => None,
        }
    }
}

/// Collects the keys of an object, or of the first object of a list.
struct FirstKeys<'a>(&'a mut Vec<String>);

impl<'de> DeserializeSeed<'de> for FirstKeys<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FirstKeys<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        list.next_element_seed(self)?;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while self.0.len() < MAX_KEYS
            && let Some(key) = map.next_key()?
        {
            self.0.push(key);
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_known_by_its_keys_although_the_start_is_cut() {
        for (start, format) in [
            (r#"{"metadata":{"session_num":0},"metrics":{"a":"#, Some(PeerFormat::AiperfRecords)),
            (r#"{"schema_version":"1.4","aiperf_version":"0.13.0","#, Some(PeerFormat::AiperfSummary)),
            (r#"{"date":"x","model_id":"m","num_prompts":4,"tt"#, Some(PeerFormat::VllmBench)),
            (
                r#"{"tag":null,"backend":"vllm","dataset_name":"random","request_rate":Infinity,"max"#,
                Some(PeerFormat::SglangBench),
            ),
            (r#"{"metadata":{"version":2},"config":{"#, Some(PeerFormat::Guidellm)),
            (r#"[{"start_time":1,"end_time":2,"request":"te"#, Some(PeerFormat::InferencePerfRecords)),
            (r#"{"benchmark_time_seconds":1,"load_summary":{},"successes":{}"#, Some(PeerFormat::InferencePerfSummary)),
            (r#"{"streamgauge_trace":1,"metadata":{},"metrics":{}}"#, None),
            (r#"{"timestamp":0,"input_length":1}"#, None),
            ("[[1]]", None),
            ("TIMESTAMP,a", None),
            ("", None),
        ] {
            assert_eq!(PeerFormat::detect(start.as_bytes()), format, "{start}");
        }
    }
}
