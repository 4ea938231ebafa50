//! What a server's metrics page says of its configuration.

use std::collections::BTreeMap;

use crate::twin::parameter::{Parameter, ParameterEstimate};

/// The gauge whose labels hold vLLM's cache configuration.
const VLLM_CACHE: &str = "vllm:cache_config_info{";

/// Configuration of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerConfig(BTreeMap<Parameter, f64>);

impl ServerConfig {
    /// Reads a page in the Prometheus text format; `None` if it states nothing that a twin uses.
    pub fn parse(page: &str) -> Option<Self> {
        let labels = page.lines().find_map(|line| line.strip_prefix(VLLM_CACHE))?;
        let value = |name: &str| {
            let after = labels.split(&format!("{name}=\"")).nth(1)?;
            after.split('"').next()
        };
        let number = |name: &str| value(name)?.parse::<f64>().ok().filter(|number| *number >= 1.0);
        let is_on = |name: &str| match value(name)? {
            "True" | "true" => Some(1.0),
            "False" | "false" => Some(0.0),
            _ => None,
        };
        let told = [
            (Parameter::KvBlocks, number("num_gpu_blocks")),
            (Parameter::BlockSize, number("block_size")),
            (Parameter::PrefixCache, is_on("enable_prefix_caching")),
        ];
        let config: BTreeMap<_, _> = told.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        (!config.is_empty()).then_some(Self(config))
    }

    pub(super) fn write(&self, parameters: &mut BTreeMap<Parameter, ParameterEstimate>) {
        parameters.extend(self.0.iter().map(|(parameter, value)| (*parameter, ParameterEstimate::value(*value))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_cache_configuration_is_read() {
        let page = "# TYPE vllm:cache_config_info gauge\n\
            vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",num_gpu_blocks=\"7520\",x=\"\"} 1.0\n";
        let config = ServerConfig::parse(page).unwrap();
        let expected = [(Parameter::KvBlocks, 7_520.0), (Parameter::BlockSize, 16.0), (Parameter::PrefixCache, 1.0)];
        assert_eq!(config, ServerConfig(expected.into_iter().collect()));
        assert_eq!(ServerConfig::parse("vllm:cache_config_info{num_gpu_blocks=\"None\"} 1"), None);
        assert_eq!(ServerConfig::parse("up 1"), None);
    }
}
