//! Named kinds of traffic: lengths measured in public traces, with the rank correlation of prompts and outputs. Others
//! are the fixed pairs of lengths of other benchmarks.

use super::length::{LengthDistribution, LengthQuantiles, RequestLengths};
use super::mixture_tables as tables;

/// A kind of traffic.
#[derive(Debug)]
pub struct TrafficMix {
    /// Name on the command line.
    pub name: &'static str,
    /// The trace in which it was measured, or the benchmark that uses it.
    pub source: &'static str,
    lengths: MixLengths,
}

#[derive(Debug)]
enum MixLengths {
    Measured {
        input: &'static LengthQuantiles,
        output: &'static LengthQuantiles,
        /// Spearman's rank correlation of prompt and output lengths.
        rank_correlation: f64,
    },
    /// Every request has these tokens: (prompt, output).
    Fixed(u64, u64),
}

impl TrafficMix {
    /// Finds a mix by name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TRAFFIC_MIXES.iter().find(|mix| mix.name == name)
    }

    /// The mix's lengths. A distribution given for one side replaces that side and removes the correlation.
    pub fn lengths(&self, replacement: (Option<LengthDistribution>, Option<LengthDistribution>)) -> RequestLengths {
        let own = match self.lengths {
            MixLengths::Measured { input, output, rank_correlation }
                if replacement.0.is_none() && replacement.1.is_none() =>
            {
                return RequestLengths::Correlated { input, output, rank_correlation };
            }
            MixLengths::Measured { input, output, .. } => {
                (LengthDistribution::Measured(input), LengthDistribution::Measured(output))
            }
            MixLengths::Fixed(input, output) => (LengthDistribution::Fixed(input), LengthDistribution::Fixed(output)),
        };
        RequestLengths::Independent(replacement.0.unwrap_or(own.0), replacement.1.unwrap_or(own.1))
    }
}

/// Every mix.
pub static TRAFFIC_MIXES: &[TrafficMix] = &[
    TrafficMix {
        name: "chat",
        source: "Azure LLM inference trace 2023, conversation: 19,366 requests",
        lengths: MixLengths::Measured {
            input: &tables::CHAT_INPUT,
            output: &tables::CHAT_OUTPUT,
            rank_correlation: 0.073,
        },
    },
    TrafficMix {
        name: "code",
        source: "Azure LLM inference trace 2023, code: 8,819 requests",
        lengths: MixLengths::Measured {
            input: &tables::CODE_INPUT,
            output: &tables::CODE_OUTPUT,
            rank_correlation: -0.022,
        },
    },
    TrafficMix {
        name: "long-context",
        source: "Mooncake (FAST'25), conversation: 12,031 requests",
        lengths: MixLengths::Measured {
            input: &tables::LONG_CONTEXT_INPUT,
            output: &tables::LONG_CONTEXT_OUTPUT,
            rank_correlation: 0.072,
        },
    },
    TrafficMix {
        name: "summarization",
        source: "RAGPulse, answers from retrieved documents: 7,106 requests",
        lengths: MixLengths::Measured {
            input: &tables::SUMMARIZATION_INPUT,
            output: &tables::SUMMARIZATION_OUTPUT,
            rank_correlation: 0.421,
        },
    },
    TrafficMix { name: "chat-512-256", source: TEXTBOOK, lengths: MixLengths::Fixed(512, 256) },
    TrafficMix { name: "code-1024-1024", source: TEXTBOOK, lengths: MixLengths::Fixed(1_024, 1_024) },
    TrafficMix { name: "rag-4096-512", source: TEXTBOOK, lengths: MixLengths::Fixed(4_096, 512) },
    TrafficMix { name: "document-10240-1536", source: TEXTBOOK, lengths: MixLengths::Fixed(10_240, 1_536) },
];

/// Source of the fixed pairs: <https://github.com/llm-d-incubation/llm-d-planner>, traffic profiles.
const TEXTBOOK: &str = "GuideLLM's standard configurations, which llm-d's planner uses";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::replay::plan::trace_source::TraceReadOptions;
    use crate::trace::rng::rng;

    /// Draws `number` prompts and outputs from a mix.
    fn drawn(name: &str, number: usize) -> (Vec<u64>, Vec<u64>) {
        let lengths = TrafficMix::named(name).unwrap().lengths((None, None));
        let mut random = rng(11);
        (0..number).map(|_| lengths.draw(0, &mut random)).unzip()
    }

    #[test]
    fn every_mix_has_the_means_and_the_rank_correlation_that_were_measured() {
        for (name, input, output, correlation) in [
            ("chat", 1_154.7, 211.1, 0.073),
            ("code", 2_047.8, 27.88, -0.022),
            ("long-context", 12_035.1, 342.6, 0.072),
            ("summarization", 2_943.6, 283.2, 0.421),
        ] {
            let (inputs, outputs) = drawn(name, 100_000);
            let off = |values: &[u64], mean: f64| values.iter().sum::<u64>() as f64 / values.len() as f64 / mean - 1.0;
            let (of_inputs, of_outputs) = (off(&inputs, input), off(&outputs, output));
            // The widest are outputs of code: four standard errors are 3 %.
            assert!(of_inputs.abs() < 0.02 && of_outputs.abs() < 0.035, "{name}: {of_inputs} {of_outputs}");
            let found = correlation_of_ranks(&inputs, &outputs);
            assert!((found - correlation).abs() < 0.015, "{name}: {found} instead of {correlation}");
        }
        assert!(TrafficMix::named("Chat").is_none());
    }

    fn correlation_of_ranks(a: &[u64], b: &[u64]) -> f64 {
        // Equal values share the mean of their ranks.
        let ranks = |values: &[u64]| -> Vec<f64> {
            let mut sorted = values.to_vec();
            sorted.sort_unstable();
            let rank = |value: &u64| {
                let (below, up_to) =
                    (sorted.partition_point(|other| other < value), sorted.partition_point(|other| other <= value));
                (below + up_to) as f64 / 2.0
            };
            values.iter().map(rank).collect()
        };
        let (a, b) = (ranks(a), ranks(b));
        let middle = a.len() as f64 / 2.0;
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum::<f64>();
        product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
    }

    #[test]
    fn the_distribution_of_a_mix_is_that_of_its_source() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces/mooncake/conversation_full.jsonl.zst");
        let (RequestLengths::Pairs(pairs), _) = RequestLengths::from_file(&path, TraceReadOptions::default()).unwrap()
        else {
            panic!()
        };
        let (inputs, outputs) = drawn("long-context", 200_000);
        let distance = |drawn: Vec<u64>, measured: Vec<u64>| {
            let of = |values: Vec<u64>| {
                let mut lengths = crate::stats::length_histogram::LengthHistogram::default();
                values.into_iter().for_each(|length| lengths.take(length));
                lengths
            };
            of(drawn).ks(&of(measured)).unwrap()
        };
        let [of_inputs, of_outputs] = [
            distance(inputs, pairs.iter().map(|(input, _)| u64::from(*input)).collect()),
            distance(outputs, pairs.iter().map(|(_, output)| u64::from(*output)).collect()),
        ];
        // The table itself is within 0.003, and 200,000 draws add about as much.
        assert!(of_inputs < 0.008 && of_outputs < 0.008, "{of_inputs} {of_outputs}");
    }

    #[test]
    fn measured_values_never_go_down() {
        let is_sorted = |mix: &TrafficMix| match mix.lengths {
            MixLengths::Measured { input, output, .. } => input.is_sorted() && output.is_sorted(),
            MixLengths::Fixed(..) => true,
        };
        assert!(TRAFFIC_MIXES.iter().all(is_sorted));
    }

    #[test]
    fn a_textbook_mix_has_the_two_lengths_of_its_name() {
        let mixes = ["chat-512-256", "code-1024-1024", "rag-4096-512", "document-10240-1536"];
        let (inputs, outputs): (Vec<_>, Vec<_>) = mixes.map(|name| drawn(name, 1)).into_iter().unzip();
        assert_eq!(inputs.concat(), [512, 1_024, 4_096, 10_240]);
        assert_eq!(outputs.concat(), [256, 1_024, 512, 1_536]);
        let longer = TrafficMix::named("rag-4096-512").unwrap().lengths((None, Some(LengthDistribution::Fixed(9))));
        assert_eq!(
            longer,
            RequestLengths::Independent(LengthDistribution::Fixed(4_096), LengthDistribution::Fixed(9)),
            "one side may be replaced"
        );
    }
}
