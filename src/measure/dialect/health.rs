//! The paths on which engines and their frontends tell whether they are well: what kubelets and balancers ask for.

/// Paths that are asked with GET or HEAD, with who answers them. Exact ones: a path with a model's name in it is none,
/// and `/` and `/api/version`, which Ollama's users ask for, are asked for other reasons too.
const PATHS: [&str; 16] = [
    // vLLM, SGLang, TGI, TEI, llama.cpp, LMDeploy, TensorRT-LLM, Dynamo.
    "/health",
    // SGLang and TensorRT-LLM: generates a token.
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
    // LocalAI, and what follows Kubernetes' own components.
    "/healthz",
    "/readyz",
    "/livez",
    // Ray Serve.
    "/-/healthz",
];

/// The same of gRPC, which is asked with POST.
const CALLS: [&str; 5] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/inference.GRPCInferenceService/ServerLive",
    "/inference.GRPCInferenceService/ServerReady",
    "/inference.GRPCInferenceService/ModelReady",
];

/// The path of a health probe, if this request is one.
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
