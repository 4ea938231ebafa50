//! Lengths of named kinds of traffic, as measured in public traces. Prompts and replies are drawn apart: in the first
//! three their ranks hardly go together (Spearman's rho -0.02 to 0.07), in the last 0.42.

use super::length::{Length, Lengths};

/// A kind of traffic.
#[derive(Debug)]
pub struct Mix {
    /// Its name.
    pub name: &'static str,
    /// Where it was measured.
    pub source: &'static str,
    input: [u32; 11],
    output: [u32; 11],
}

impl Mix {
    /// That of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        MIXES.iter().find(|mix| mix.name == name)
    }

    /// Its lengths; a law given for one side is taken instead.
    pub fn lengths(&'static self, input: Option<Length>, output: Option<Length>) -> Lengths {
        let measured = (Length::Measured(&self.input), Length::Measured(&self.output));
        Lengths::Apart(input.unwrap_or(measured.0), output.unwrap_or(measured.1))
    }
}

/// Every mix.
#[rustfmt::skip]
pub static MIXES: &[Mix] = &[
    Mix {
        name: "chat",
        source: "Azure LLM inference trace 2023, conversation: 19,366 requests",
        input: [2, 29, 181, 207, 396, 1_020, 1_189, 2_734, 4_083, 4_142, 14_050],
        output: [7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1_000],
    },
    Mix {
        name: "code",
        source: "Azure LLM inference trace 2023, code: 8,819 requests",
        input: [3, 17, 75, 147, 578, 1_469, 2_745, 5_186, 7_302, 7_436, 7_437],
        output: [6, 6, 6, 7, 9, 13, 24, 55, 90, 252, 1_899],
    },
    Mix {
        name: "long-context",
        source: "Mooncake (FAST'25), conversation: 12,031 requests",
        input: [891, 894, 901, 964, 2_307, 6_909, 15_366, 27_367, 39_549, 85_401, 126_195],
        output: [1, 3, 10, 24, 157, 350, 472, 597, 698, 1_120, 2_000],
    },
    Mix {
        name: "summarization",
        source: "RAGPulse, answers from retrieved documents: 7,106 requests",
        input: [1_052, 1_052, 1_055, 1_110, 2_754, 3_139, 3_437, 3_958, 4_425, 5_439, 7_712],
        output: [7, 36, 66, 83, 131, 234, 385, 563, 670, 891, 2_183],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::chance::random;

    #[test]
    fn every_mix_has_the_mean_that_was_measured() {
        for (name, input, output) in [
            ("chat", 1_155.0, 211.0),
            ("code", 2_048.0, 28.0),
            ("long-context", 12_035.0, 343.0),
            ("summarization", 2_944.0, 283.0),
        ] {
            let lengths = Mix::named(name).unwrap().lengths(None, None);
            let mut random = random(11);
            let (mut inputs, mut outputs) = (0.0, 0.0);
            for _ in 0..50_000 {
                let (input, output) = lengths.draw(&mut random);
                inputs += input as f64 / 50_000.0;
                outputs += output as f64 / 50_000.0;
            }
            // Eleven shares do not say all of it.
            assert!(
                (inputs / input - 1.0).abs() < 0.1 && (outputs / output - 1.0_f64).abs() < 0.2,
                "{name}: {inputs} {outputs}"
            );
        }
        assert!(Mix::named("Chat").is_none());
    }

    #[test]
    fn measured_values_never_go_down() {
        assert!(MIXES.iter().all(|mix| mix.input.is_sorted() && mix.output.is_sorted()));
    }
}
