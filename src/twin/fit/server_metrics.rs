//! What a server's metrics page says of its configuration.

use std::collections::BTreeMap;

use crate::measure::server_metrics::cache_config::CacheConfig;
use crate::twin::parameter::{Parameter, ParameterEstimate};

/// Configuration of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerConfig(BTreeMap<Parameter, f64>);

impl ServerConfig {
    /// Reads a page in the Prometheus text format; `None` if it states nothing that a twin uses.
    pub fn parse(page: &str) -> Option<Self> {
        // The engines of one server are alike.
        let cache = *CacheConfig::read(page).first()?;
        let values = [
            (Parameter::KvBlocks, cache.blocks.map(|blocks| blocks as f64)),
            (Parameter::BlockSize, cache.block_size.map(|tokens| tokens as f64)),
            (Parameter::PrefixCache, cache.prefix_caching.map(|is_on| f64::from(u8::from(is_on)))),
        ];
        let config: BTreeMap<_, _> = values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
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
    fn the_cache_configuration_of_vllm_and_of_sglang_is_read() {
        let page = "# TYPE vllm:cache_config_info gauge\n\
            vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",num_gpu_blocks=\"7520\",x=\"\"} 1.0\n";
        let config = ServerConfig::parse(page).unwrap();
        let expected = [(Parameter::KvBlocks, 7_520.0), (Parameter::BlockSize, 16.0), (Parameter::PrefixCache, 1.0)];
        assert_eq!(config, ServerConfig(expected.into_iter().collect()));
        assert_eq!(ServerConfig::parse("vllm:cache_config_info{num_gpu_blocks=\"None\"} 1"), None);
        assert_eq!(ServerConfig::parse("up 1"), None);
        let sglang = ServerConfig::parse("sglang:cache_config_info{page_size=\"64\",num_pages=\"1152\"} 1.0");
        let expected = [(Parameter::KvBlocks, 1_152.0), (Parameter::BlockSize, 64.0)];
        assert_eq!(sglang, Some(ServerConfig(expected.into_iter().collect())));
    }
}
