//! Health-check paths of engines and frontends, requested by kubelets and load balancers.

/// Paths for GET and HEAD, by server. Matches are exact, so a path with a model name never matches. `/` and
/// `/api/version` are excluded, because Ollama users request them for other reasons.
const PATHS: [&str; 16] = [
    // vLLM, SGLang, TGI, TEI, llama.cpp, LMDeploy, TensorRT-LLM, Dynamo.
    "/health",
    // SGLang and TensorRT-LLM. Generates one token.
    "/health_generate",
    // llama.cpp.
    "/v1/health",
    // vLLM and TGI on SageMaker, TorchServe.
    "/ping",
    // Dynamo.
    "/live",
    // NIM.
    "/v1/health/live",
    "/v1/health/ready",
    // Triton, KServe.
    "/v2/health/live",
    "/v2/health/ready",
    // LiteLLM.
    "/health/liveliness",
    "/health/liveness",
    "/health/readiness",
    // LocalAI, and servers that follow the Kubernetes components.
    "/healthz",
    "/readyz",
    "/livez",
    // Ray Serve.
    "/-/healthz",
];

/// gRPC health methods, called with POST.
const CALLS: [&str; 5] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelReady",
];

/// Returns the health-check path if this request is one.
pub fn probe(method: &str, path: &str) -> Option<&'static str> {
    let known: &[&str] = match method {
        "GET" | "HEAD" => &PATHS,
        "POST" => &CALLS,
        _ => return None,
    };
    known.iter().copied().find(|known| *known == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_a_known_path_with_its_own_method() {
        assert_eq!(probe("GET", "/health"), Some("/health"));
        assert_eq!(probe("HEAD", "/v2/health/ready"), Some("/v2/health/ready"));
        assert_eq!(probe("POST", "/grpc.health.v1.Health/Check"), Some("/grpc.health.v1.Health/Check"));
        for (method, path) in
            [("POST", "/health"), ("GET", "/health/"), ("GET", "/"), ("GET", "/v1/models"), ("GET", "/HEALTH")]
        {
            assert_eq!(probe(method, path), None, "{method} {path}");
        }
    }
}
