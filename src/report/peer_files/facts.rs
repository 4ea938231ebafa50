//! A result file's facts about its run besides the requests.

/// Facts about a run of another tool. Facts that the file lacks are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerFacts {
    /// The tool, with its version where the file has it.
    pub tool: String,
    /// Requested model.
    pub model: Option<String>,
    /// URLs of the servers.
    pub targets: Vec<String>,
    /// Our dialect of the requests.
    pub dialect: Option<&'static str>,
    /// Wall-clock time of time zero, in nanoseconds since 1970.
    pub started_unix_ns: Option<u64>,
    /// Responses decided when requests were sent.
    pub closed_loop: bool,
    /// The tool had a warm-up, which is left out.
    pub warmed_up: bool,
    /// Process of the send times.
    pub arrivals: Option<String>,
    /// Requests per second.
    pub rate: Option<String>,
    /// Maximum open requests.
    pub concurrency: Option<u32>,
    /// Distribution of prompt lengths, in tokens.
    pub isl: Option<String>,
    /// Distribution of response lengths, in tokens.
    pub osl: Option<String>,
    /// Seed of the run.
    pub seed: Option<u64>,
    /// Requests that the file lacks.
    pub truncated: Vec<String>,
}

/// Our dialect by the name that AIPerf, vLLM and GuideLLM have for the endpoint.
pub(super) fn dialect(endpoint: &str) -> Option<&'static str> {
    match endpoint {
        "chat" | "openai-chat" | "/v1/chat/completions" => Some("openai.chat"),
        "completions" | "openai" | "vllm" | "/v1/completions" => Some("openai.completions"),
        "responses" | "openai-responses" | "/v1/responses" => Some("openai.responses"),
        "embeddings" | "openai-embeddings" | "/v1/embeddings" => Some("openai.embeddings"),
        _ => None,
    }
}
