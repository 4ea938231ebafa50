//! Synthetic traces: arrivals and lengths by law, as rows like any other. Pure.

use std::str::FromStr;

use rand_distr::{Distribution as _, Exp, Gamma, LogNormal, Normal};
use rand_pcg::Pcg64Mcg;

use super::schedule::random;
use crate::capture::format::{BlockIds, BlockUnit, Blocks, Entry, Header, LastBlock, Prompt, Scope};
use crate::measure::time::Gap;

/// Where such a trace says that it comes from.
pub const SYNTHETIC: &str = "synthetic";
/// The longest length that is drawn, in tokens.
const MOST_TOKENS: f64 = 16_777_216.0;

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// One every so many seconds, exactly.
    Constant(f64),
    /// So many a second on average, independently of each other.
    Poisson(f64),
    /// So many a second on average, with gaps of a gamma distribution of this shape: below 1 they come in bursts, 1 is
    /// Poisson, above they are more even.
    Gamma(f64, f64),
    /// All at once: slots decide.
    Closed,
}

/// How long prompts or replies are, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// All alike.
    Fixed(u64),
    /// Normal, with mean and standard deviation; what is below 1 is 1.
    Normal(f64, f64),
    /// Log-normal, with its own mean and standard deviation.
    LogNormal(f64, f64),
}

/// A trace to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// When.
    pub arrivals: Arrivals,
    /// How many; `None` without end.
    pub requests: Option<u64>,
    /// Prompts.
    pub input: Length,
    /// Replies.
    pub output: Length,
    /// Tokens at the beginning of each prompt that its group shares; 0 without.
    pub shared_prefix: u32,
    /// Groups that share a prefix.
    pub prefix_groups: u64,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether streams are asked for.
    pub stream: bool,
    /// Decides what is drawn.
    pub seed: u64,
}

impl FromStr for Length {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "expected a number of tokens, normal:MEAN:SD or lognormal:MEAN:SD";
        if let Ok(tokens) = text.parse() {
            return if tokens > 0 { Ok(Self::Fixed(tokens)) } else { Err("expected at least one token") };
        }
        let mut parts = text.split(':');
        let law = parts.next();
        let mut number = || parts.next()?.parse().ok().filter(|number: &f64| (0.0..=MOST_TOKENS).contains(number));
        let (mean, deviation) = (number().filter(|mean| *mean >= 1.0).ok_or(SHAPE)?, number().ok_or(SHAPE)?);
        match (law, parts.next()) {
            (Some("normal"), None) => Ok(Self::Normal(mean, deviation)),
            (Some("lognormal"), None) => Ok(Self::LogNormal(mean, deviation)),
            _ => Err(SHAPE),
        }
    }
}

impl Length {
    fn draw(self, random: &mut Pcg64Mcg) -> u64 {
        let drawn = match self {
            Self::Fixed(tokens) => return tokens,
            Self::Normal(mean, deviation) => Normal::new(mean, deviation).map(|law| law.sample(random)),
            Self::LogNormal(mean, deviation) => {
                // Of the logarithm, such that the lengths themselves have the mean and the deviation that were asked for.
                let variance = (1.0 + (deviation / mean).powi(2)).ln();
                LogNormal::new(mean.ln() - variance / 2.0, variance.sqrt())
                    .map(|law| law.sample(random))
                    .map_err(|_| rand_distr::NormalError::BadVariance)
            }
        };
        drawn.unwrap_or(1.0).round().clamp(1.0, MOST_TOKENS) as u64
    }
}

impl Synthetic {
    /// The header of the trace.
    pub fn header(&self) -> Header {
        let blocks = (self.shared_prefix > 0).then_some(Blocks {
            size: self.shared_prefix,
            unit: BlockUnit::Tokens,
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: Scope::Trace,
            key: None,
        });
        Header { blocks, ..Header::new(SYNTHETIC) }
    }

    /// Its rows: the same for the same seed.
    pub fn rows(&self) -> impl Iterator<Item = Entry> + Send + use<> {
        let this = self.clone();
        let (mut gaps, mut lengths) = (random(this.seed), random(!this.seed));
        let mut at = 0.0;
        (0..this.requests.unwrap_or(u64::MAX)).map(move |number| {
            let now = match this.arrivals {
                // From the number and not from a sum, so that no error adds up.
                Arrivals::Constant(rate) => number as f64 / rate,
                Arrivals::Closed => 0.0,
                _ => at,
            };
            at += match this.arrivals {
                Arrivals::Poisson(rate) => Exp::new(rate).map_or(0.0, |law| law.sample(&mut gaps)),
                Arrivals::Gamma(rate, shape) => {
                    Gamma::new(shape, 1.0 / (rate * shape)).map_or(0.0, |law| law.sample(&mut gaps))
                }
                Arrivals::Constant(_) | Arrivals::Closed => 0.0,
            };
            let blocks = match this.shared_prefix {
                0 => Vec::new(),
                _ => vec![number % this.prefix_groups.max(1)],
            };
            Entry {
                at: Gap::from_nanos((now * 1e9).round() as u64).as_nanos(),
                model: this.model.clone(),
                stream: Some(this.stream),
                prompt: Prompt { tokens: Some(this.input.draw(&mut lengths)), blocks, ..Prompt::default() },
                output_tokens: Some(this.output.draw(&mut lengths)),
                ..Entry::default()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synthetic(arrivals: Arrivals) -> Synthetic {
        Synthetic {
            arrivals,
            requests: Some(20_000),
            input: Length::Fixed(100),
            output: Length::Normal(50.0, 10.0),
            shared_prefix: 0,
            prefix_groups: 1,
            model: None,
            stream: true,
            seed: 1,
        }
    }

    /// Mean and coefficient of variation of the gaps.
    fn gaps(arrivals: Arrivals) -> (f64, f64) {
        let times: Vec<f64> = synthetic(arrivals).rows().map(|row| row.at as f64 / 1e9).collect();
        moments(&times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>())
    }

    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    fn near(found: (f64, f64), wanted: (f64, f64)) {
        assert!((found.0 / wanted.0 - 1.0).abs() < 0.03 && (found.1 - wanted.1).abs() < 0.03, "{found:?} {wanted:?}");
    }

    #[test]
    fn arrivals_follow_their_law() {
        let times: Vec<u64> = synthetic(Arrivals::Constant(3.0)).rows().take(4).map(|row| row.at).collect();
        assert_eq!(times, [0, 333_333_333, 666_666_667, 1_000_000_000], "constant is constant");
        near(gaps(Arrivals::Poisson(20.0)), (0.05, 1.0));
        near(gaps(Arrivals::Gamma(20.0, 4.0)), (0.05, 0.5));
        near(gaps(Arrivals::Gamma(20.0, 1.0)), (0.05, 1.0));
    }

    #[test]
    fn lengths_follow_their_law() {
        let mut random = random(7);
        let mut draw =
            |length: Length| moments(&(0..20_000).map(|_| length.draw(&mut random) as f64).collect::<Vec<_>>());
        near(draw(Length::Fixed(9)), (9.0, 0.0));
        near(draw(Length::Normal(1_000.0, 200.0)), (1_000.0, 0.2));
        near(draw(Length::LogNormal(1_000.0, 500.0)), (1_000.0, 0.5));
    }

    #[test]
    fn the_same_seed_makes_the_same_trace() {
        let rows = |seed| Synthetic { seed, ..synthetic(Arrivals::Poisson(1.0)) }.rows().take(9).collect::<Vec<_>>();
        assert_eq!(rows(1), rows(1));
        assert_ne!(rows(1), rows(2));
    }

    #[test]
    fn groups_take_turns_with_their_prefix() {
        let trace = Synthetic { shared_prefix: 64, prefix_groups: 3, ..synthetic(Arrivals::Closed) };
        let blocks: Vec<u64> = trace.rows().take(5).map(|row| row.prompt.blocks[0]).collect();
        assert_eq!((blocks, trace.header().blocks.unwrap().size), (vec![0, 1, 2, 0, 1], 64));
    }

    #[test]
    fn lengths_are_written_as_a_number_or_a_law() {
        let length = |text: &str| text.parse::<Length>();
        assert_eq!(length("512"), Ok(Length::Fixed(512)));
        assert_eq!(length("normal:512:64"), Ok(Length::Normal(512.0, 64.0)));
        assert_eq!(length("lognormal:512:64"), Ok(Length::LogNormal(512.0, 64.0)));
        for bad in ["", "0", "-1", "normal", "normal:5", "normal:5:1:1", "uniform:1:2", "normal:nan:1", "normal:0:1"] {
            assert!(length(bad).is_err(), "{bad}");
        }
    }
}
