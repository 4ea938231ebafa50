//! The size of an engine's KV cache, from the configuration on its metrics page. Pure.

use super::exposition::{Sample, samples};

/// Configuration of the cache of one engine. A server with several engines (data parallelism) has one of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheConfig {
    /// Tokens of a block, or of a page as SGLang calls it.
    pub block_size: Option<u64>,
    /// Blocks.
    pub blocks: Option<u64>,
    /// Tokens that the cache holds, if the engine states them: with layers of several kinds they are fewer than the
    /// blocks could hold.
    tokens: Option<u64>,
    /// Whether prefixes are cached.
    pub prefix_caching: Option<bool>,
}

impl CacheConfig {
    /// Reads the configurations on a page in the Prometheus text format, in its order.
    pub fn read(page: &str) -> Vec<Self> {
        samples(page).filter_map(|sample| Self::of(&sample)).filter(|config| *config != Self::default()).collect()
    }

    fn of(sample: &Sample<'_>) -> Option<Self> {
        let number = |label| sample.label(label)?.parse().ok().filter(|number| *number >= 1);
        match sample.name {
            "vllm:cache_config_info" => Some(Self {
                block_size: number("block_size"),
                blocks: number("num_gpu_blocks"),
                tokens: number("kv_cache_size_tokens"),
                prefix_caching: match sample.label("enable_prefix_caching") {
                    Some("True" | "true") => Some(true),
                    Some("False" | "false") => Some(false),
                    _ => None,
                },
            }),
            "sglang:cache_config_info" => {
                Some(Self { block_size: number("page_size"), blocks: number("num_pages"), ..Self::default() })
            }
            _ => None,
        }
    }

    /// Tokens that the cache holds.
    pub fn capacity_tokens(&self) -> Option<u64> {
        self.tokens.or_else(|| self.blocks?.checked_mul(self.block_size?))
    }
}

/// Tokens that the caches of all engines on a page hold together; `None` if one of them does not state its size.
pub fn capacity_tokens(page: &str) -> Option<u64> {
    let configs = CacheConfig::read(page);
    let sum = configs.iter().try_fold(0_u64, |sum, config| sum.checked_add(config.capacity_tokens()?));
    sum.filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of `tests/data/server_metrics`.
    fn page(name: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/server_metrics");
        std::fs::read_to_string(format!("{folder}/{name}.txt")).unwrap()
    }

    #[test]
    fn each_page_states_the_size_of_its_cache_or_none() {
        for (name, tokens) in [
            ("vllm", Some(262_144)),
            ("vllm-first-v1", None),
            ("vllm-v0", None),
            ("sglang", Some(73_728)),
            ("sglang-0.4", None),
            ("tgi", None),
            ("llama-server", None),
            ("llama-server-older", None),
            ("tensorrt-llm", None),
            ("tensorrt-llm-older", None),
            ("triton", None),
            ("triton-older", None),
        ] {
            assert_eq!(capacity_tokens(&page(name)), tokens, "{name}");
        }
    }

    #[test]
    fn the_stated_tokens_win_over_the_product_and_engines_add_up() {
        let vllm = |labels: &str| format!("vllm:cache_config_info{{{labels}}} 1.0\n");
        let blocks = vllm("block_size=\"16\",num_gpu_blocks=\"100\"");
        assert_eq!(capacity_tokens(&blocks), Some(1_600));
        assert_eq!(
            capacity_tokens(&vllm("block_size=\"16\",num_gpu_blocks=\"100\",kv_cache_size_tokens=\"800\"")),
            Some(800)
        );
        assert_eq!(capacity_tokens(&(blocks.clone() + &blocks)), Some(3_200));
        assert_eq!(capacity_tokens(&(blocks + &vllm("block_size=\"16\""))), None, "the second one is unknown");
    }

    #[test]
    fn what_is_no_size_is_not_read() {
        for page in [
            "",
            "up 1",
            "vllm:cache_config_info{num_gpu_blocks=\"None\"} 1",
            "vllm:cache_config_info{num_gpu_blocks=\"0\",block_size=\"16\"} 1",
            "vllm:cache_config_info{num_gpu_blocks=\"18446744073709551615\",block_size=\"16\"} 1",
            "vllm:cache_config_info{num_gpu_blocks=\"-5\",block_size=\"1e3\"} 1",
        ] {
            assert_eq!(capacity_tokens(page), None, "{page}");
        }
    }
}
