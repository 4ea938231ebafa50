//! Lengths: from a distribution, from public traces, or from a file's rows.

use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rand::RngExt as _;
use rand_distr::{Distribution as _, LogNormal, Normal, StandardNormal};
use rand_pcg::Pcg64Mcg;

use crate::replay::plan::schedule::RowError;
use crate::replay::plan::trace_source;
use crate::replay::plan::trace_source::{TraceReadOptions, TraceSource};
use crate::trace::format::TraceFormat;
use crate::trace_file::header::TraceHeader;

/// Largest length drawn.
const MAX_LENGTH: f64 = 16_777_216.0;
/// Largest standard deviation of a logarithm: e¹⁰ is a factor of 22,000 already.
const MAX_SIGMA: f64 = 10.0;
/// Limit on the rows of a lengths file: 16 MB in memory.
const MAX_PAIRS: usize = 1_000_000;

/// A distribution of positive integers: tokens, turns, or milliseconds.
#[derive(Clone, PartialEq)]
pub enum LengthDistribution {
    /// One value.
    Fixed(u64),
    /// Normal, with mean and standard deviation; values below 1 become 1.
    Normal(f64, f64),
    /// Log-normal, with the mean and standard deviation of the values themselves.
    LogNormal(f64, f64),
    /// Log-normal, with the median of the values and the standard deviation of their logarithm.
    LogNormalMedian(f64, f64),
    /// Every integer from the first to the second, both included, with the same probability.
    Uniform(u64, u64),
    /// Measured: the quantiles at each [`quantile_fraction`], with logarithmic interpolation.
    Measured(&'static LengthQuantiles),
    /// Clipped: a draw outside of the range becomes its nearest end.
    Clipped(Box<Self>, RangeInclusive<u64>),
}

impl fmt::Debug for LengthDistribution {
    /// Omits the values of measured lengths: a run's result prints the load in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "Fixed({length})"),
            Self::Normal(mean, deviation) => write!(f, "Normal({mean:?}, {deviation:?})"),
            Self::LogNormal(mean, deviation) => write!(f, "LogNormal({mean:?}, {deviation:?})"),
            Self::LogNormalMedian(median, sigma) => write!(f, "LogNormalMedian({median:?}, {sigma:?})"),
            Self::Uniform(from, to) => write!(f, "Uniform({from}, {to})"),
            Self::Measured(_) => f.write_str("Measured"),
            Self::Clipped(law, range) => write!(f, "Clipped({law:?}, {range:?})"),
        }
    }
}

/// Measured lengths: the value at each [`quantile_fraction`].
pub type LengthQuantiles = [u32; 206];

/// The share of lengths at or below quantile `at`: 200 even steps, and five more in the last step, where lengths are
/// far apart.
pub const fn quantile_fraction(at: usize) -> f64 {
    const LAST_STEP: [f64; 6] = [0.996, 0.997, 0.998, 0.999, 0.999_5, 1.0];
    if at < 200 { at as f64 / 200.0 } else { LAST_STEP[if at < 206 { at - 200 } else { 5 }] }
}

/// The measured length at a share.
fn quantile_at(quantiles: &LengthQuantiles, share: f64) -> f64 {
    let even = (share * 200.0) as usize;
    let mut above = even.clamp(0, quantiles.len() - 2) + 1;
    while above + 1 < quantiles.len() && quantile_fraction(above) <= share {
        above += 1;
    }
    let part = (share - quantile_fraction(above - 1)) / (quantile_fraction(above) - quantile_fraction(above - 1));
    let [low, high] = [above - 1, above].map(|at| f64::from(quantiles[at]).ln());
    (low + (high - low) * part).exp()
}

/// The standard normal distribution function at `z`: Abramowitz and Stegun 7.1.26, error below 2e-7.
fn normal_cdf(z: f64) -> f64 {
    const C: [f64; 5] = [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let above = C.iter().rev().fold(0.0, |sum, c| (sum + c) * t) * (-x * x).exp() / 2.0;
    if z < 0.0 { above } else { 1.0 - above }
}

impl FromStr for LengthDistribution {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str = "expected a number, uniform:A:B, normal:MEAN:SD, lognormal:MEAN:SD or lognormal:median=M:sigma=S, and \
                                optionally :min=A and :max=B";
        Self::parse(text, |number| number.parse().ok(), EXPECTED)
    }
}

impl fmt::Display for LengthDistribution {
    /// As flags write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "{length}"),
            Self::Normal(mean, deviation) => write!(f, "normal:{mean}:{deviation}"),
            Self::LogNormal(mean, deviation) => write!(f, "lognormal:{mean}:{deviation}"),
            Self::LogNormalMedian(median, sigma) => write!(f, "lognormal:median={median}:sigma={sigma}"),
            Self::Uniform(from, to) => write!(f, "uniform:{from}:{to}"),
            Self::Measured(_) => f.write_str("as measured"),
            Self::Clipped(law, range) => {
                write!(f, "{law}")?;
                if *range.start() > 1 {
                    write!(f, ":min={}", range.start())?;
                }
                if *range.end() < MAX_LENGTH as u64 { write!(f, ":max={}", range.end()) } else { Ok(()) }
            }
        }
    }
}

impl LengthDistribution {
    /// Parses pauses with units, as in `5s` or `lognormal:5s:2s`, into milliseconds.
    ///
    /// # Errors
    /// The text that was expected.
    pub fn parse_durations(text: &str) -> Result<Self, &'static str> {
        const EXPECTED: &str = "expected a time from 1ms on, uniform:A:B, normal:MEAN:SD or lognormal:MEAN:SD, as in lognormal:5s:2s:max=1m";
        Self::parse(text, |time| Some(humantime::parse_duration(time).ok()?.as_secs_f64() * 1e3), EXPECTED)
    }

    fn parse(text: &str, value: impl Fn(&str) -> Option<f64>, shape: &'static str) -> Result<Self, &'static str> {
        let number = |text: &str| value(text).filter(|number| (0.0..=MAX_LENGTH).contains(number)).ok_or(shape);
        let mean = |text: &str| number(text).and_then(|mean| if mean >= 1.0 { Ok(mean) } else { Err(shape) });
        let whole = |text: &str| mean(text).and_then(|mean| if mean.fract() == 0.0 { Ok(mean) } else { Err(shape) });
        let integer = |text: &str| whole(text).map(|whole| whole as u64);
        let (mut parts, mut range) = (text.split(':').collect::<Vec<_>>(), 1..=MAX_LENGTH as u64);
        while let [_, .., last] = parts[..] {
            match last.split_once('=') {
                Some(("min", least)) => range = integer(least)?..=*range.end(),
                Some(("max", most)) => range = *range.start()..=integer(most)?,
                _ => break,
            }
            parts.pop();
        }
        let named = |text: &'_ str, name: &str| -> Result<f64, &'static str> {
            let value = text.split_once('=').filter(|(of, _)| *of == name).map(|(_, value)| value.to_owned());
            // Sigma has no unit.
            match name {
                "sigma" => value.and_then(|value| value.parse().ok()).filter(|sigma| (0.0..=MAX_SIGMA).contains(sigma)),
                _ => value.and_then(|value| mean(&value).ok()),
            }
            .ok_or(shape)
        };
        let law = match parts[..] {
            [fixed] => Self::Fixed(integer(fixed)?),
            ["uniform", from, to] => Self::Uniform(integer(from)?, integer(to)?),
            ["normal", middle, deviation] => Self::Normal(mean(middle)?, number(deviation)?),
            ["lognormal", median, sigma] if median.contains('=') => {
                Self::LogNormalMedian(named(median, "median")?, named(sigma, "sigma")?)
            }
            ["lognormal", middle, deviation] => Self::LogNormal(mean(middle)?, number(deviation)?),
            _ => return Err(shape),
        };
        let is_empty = range.is_empty() || matches!(law, Self::Uniform(from, to) if from > to);
        match law {
            _ if is_empty => Err(shape),
            law if range == (1..=MAX_LENGTH as u64) => Ok(law),
            law => Ok(Self::Clipped(Box::new(law), range)),
        }
    }

    pub(super) fn draw(&self, random: &mut Pcg64Mcg) -> u64 {
        let drawn = match self {
            Self::Fixed(length) => return *length,
            Self::Uniform(from, to) => return random.random_range(*from..=*to),
            Self::Clipped(law, range) => return law.draw(random).clamp(*range.start(), *range.end()),
            Self::Normal(mean, deviation) => Normal::new(*mean, *deviation).map_or(*mean, |law| law.sample(random)),
            Self::LogNormalMedian(median, sigma) => {
                LogNormal::new(median.ln(), *sigma).map_or(*median, |law| law.sample(random))
            }
            Self::LogNormal(mean, deviation) => {
                // Parameters of the logarithm that give the lengths the requested mean and deviation.
                let variance = (1.0 + (deviation / mean).powi(2)).ln();
                LogNormal::new(mean.ln() - variance / 2.0, variance.sqrt()).map_or(*mean, |law| law.sample(random))
            }
            Self::Measured(quantiles) => quantile_at(quantiles, random.random()),
        };
        round_length(drawn)
    }
}

/// Rounds a draw to a length that can be sent.
fn round_length(drawn: f64) -> u64 {
    drawn.round().clamp(1.0, MAX_LENGTH) as u64
}

/// A trace's detected format and its header.
pub type DetectedTrace = (&'static TraceFormat, TraceHeader);

/// Prompt and output lengths, in tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestLengths {
    /// Independent distributions: (prompt, output).
    Independent(LengthDistribution, LengthDistribution),
    /// Measured distributions with correlated ranks: a Gaussian copula whose correlation is 2 sin(π ρ / 6) for
    /// Spearman's ρ.
    Correlated {
        /// Prompt quantiles.
        input: &'static LengthQuantiles,
        /// Output quantiles.
        output: &'static LengthQuantiles,
        /// Spearman's ρ.
        rank_correlation: f64,
    },
    /// Drawn together, as (prompt, output), so that long prompts keep their outputs.
    Pairs(Arc<[(u32, u32)]>),
    /// In this order, as (prompt, output), and again from the start.
    InOrder(Arc<[(u32, u32)]>),
}

impl RequestLengths {
    /// The lengths of a file's rows: a trace in any known format, or lines `ISL,OSL`. For a trace also returns its
    /// format and header.
    ///
    /// # Errors
    /// The file cannot be read, or no row has both lengths.
    pub fn from_file(path: &Path, reading: TraceReadOptions) -> Result<(Self, Option<DetectedTrace>), RowError> {
        let shown = path.display();
        let lines = if reading.format.is_none() { read_pairs(path)? } else { None };
        let (mut pairs, trace) = match lines {
            Some(pairs) => (pairs, None),
            None => read_trace_pairs(path, reading)
                .map(|(pairs, trace)| (pairs, Some(trace)))
                .map_err(|error| format!("{error}; lengths are a trace, or lines of `ISL,OSL`"))?,
        };
        pairs.retain(|(input, output)| *input > 0 && *output > 0);
        if pairs.is_empty() {
            return Err(format!("{shown}: no row has the tokens of its prompt and of its reply").into());
        }
        Ok((Self::Pairs(pairs.into()), trace))
    }

    /// Describes the distributions of prompts and outputs.
    pub fn describe(&self) -> (String, String) {
        match self {
            Self::Independent(input, output) => (input.to_string(), output.to_string()),
            Self::Correlated { rank_correlation, .. } => {
                let text = |of| format!("as measured, rank correlation with {of} {rank_correlation}");
                (text("OSL"), text("ISL"))
            }
            Self::InOrder(pairs) => {
                let text = format!("{} prompts of a file", pairs.len());
                (text.clone(), text)
            }
            Self::Pairs(pairs) => {
                let text = format!("{} pairs of a file", pairs.len());
                (text.clone(), text)
            }
        }
    }

    /// Draws the lengths of the request with this number: (prompt, output).
    pub(super) fn draw(&self, number: u64, random: &mut Pcg64Mcg) -> (u64, u64) {
        match self {
            Self::Independent(input, output) => (input.draw(random), output.draw(random)),
            Self::Correlated { input, output, rank_correlation } => {
                let correlation = 2.0 * (std::f64::consts::PI * rank_correlation / 6.0).sin();
                let [first, second]: [f64; 2] = [(); 2].map(|()| StandardNormal.sample(random));
                let second = correlation * first + (1.0 - correlation * correlation).sqrt() * second;
                let length = |quantiles, normal| round_length(quantile_at(quantiles, normal_cdf(normal)));
                (length(input, first), length(output, second))
            }
            Self::InOrder(pairs) => {
                let (input, output) = pairs[(number % pairs.len() as u64) as usize];
                (input.into(), output.into())
            }
            Self::Pairs(pairs) => {
                let (input, output) = pairs[random.random_range(0..pairs.len())];
                (input.into(), output.into())
            }
        }
    }
}

fn read_trace_pairs(path: &Path, reading: TraceReadOptions) -> Result<(TokenLengthPairs, DetectedTrace), RowError> {
    let TraceSource { source_header: header, rows, format, .. } = trace_source::open(path, reading)?;
    let mut pairs = Vec::new();
    for row in rows.take(MAX_PAIRS) {
        let row = row?;
        let tokens = |count: Option<u64>| u32::try_from(count?).ok();
        pairs.extend(tokens(row.prompt.tokens).zip(tokens(row.output_tokens)));
    }
    Ok((pairs, (format, header)))
}

type TokenLengthPairs = Vec<(u32, u32)>;

/// Reads a file of number pairs; `None` if its first line with a number has another form.
fn read_pairs(path: &Path) -> Result<Option<TokenLengthPairs>, RowError> {
    use std::io::{BufRead as _, BufReader, Read as _};
    if !path.is_file() {
        return Ok(None);
    }
    let pair = |line: &str| {
        let (input, output) = line.trim().split_once(',')?;
        Some((input.trim().parse().ok()?, output.trim().parse().ok()?))
    };
    let mut pairs: TokenLengthPairs = Vec::new();
    // Two numbers and a comma are never longer than this; a compressed file has lines of any length.
    let mut lines = BufReader::new(fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?);
    for number in 1..=MAX_PAIRS {
        let mut line = Vec::new();
        let read = lines.by_ref().take(64).read_until(b'\n', &mut line);
        if read.map_err(|error| format!("{}: {error}", path.display()))? == 0 {
            break;
        }
        match std::str::from_utf8(&line).ok().map(|line| (line.trim(), pair(line))) {
            Some((_, Some(pair))) => pairs.push(pair),
            // A header line, and blank lines.
            Some(("", None)) => {}
            Some((_, None)) if number == 1 && line.ends_with(b"\n") => {}
            _ if pairs.is_empty() => return Ok(None),
            _ => return Err(format!("{}: line {number} is not `ISL,OSL`", path.display()).into()),
        }
    }
    Ok(Some(pairs).filter(|pairs| !pairs.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::rng::rng;

    /// Mean and coefficient of variation of 20,000 draws.
    fn moments(length: LengthDistribution) -> (f64, f64) {
        let mut random = rng(7);
        let values: Vec<f64> = (0..20_000).map(|_| length.draw(&mut random) as f64).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    fn near(found: (f64, f64), expected: (f64, f64)) {
        assert!(
            (found.0 / expected.0 - 1.0).abs() < 0.03 && (found.1 - expected.1).abs() < 0.03,
            "{found:?} {expected:?}"
        );
    }

    #[test]
    fn lengths_follow_their_law() {
        near(moments(LengthDistribution::Fixed(9)), (9.0, 0.0));
        near(moments(LengthDistribution::Normal(1_000.0, 200.0)), (1_000.0, 0.2));
        near(moments(LengthDistribution::LogNormal(1_000.0, 500.0)), (1_000.0, 0.5));
    }

    #[test]
    fn uniform_lengths_have_every_value_and_a_median_has_half_of_the_draws_below() {
        let draws = |text: &str| -> Vec<u64> {
            let (length, mut random) = (text.parse::<LengthDistribution>().unwrap(), rng(7));
            assert_eq!(length.to_string(), text);
            (0..20_000).map(|_| length.draw(&mut random)).collect()
        };
        let mut counts = [0_u32; 6];
        draws("uniform:2:5").iter().for_each(|drawn| counts[*drawn as usize] += 1);
        // 5,000 are expected of each, with a standard deviation of 61.
        assert_eq!(counts[..2], [0, 0]);
        assert!(counts[2..].iter().all(|count| count.abs_diff(5_000) < 300), "{counts:?}");
        let drawn = draws("lognormal:median=500:sigma=0.8");
        let share = |limit: f64| drawn.iter().filter(|drawn| **drawn as f64 <= limit).count() as f64 / 20_000.0;
        // One standard deviation of the logarithm above the median are 84.13 %.
        assert!((share(500.0) - 0.5).abs() < 0.015 && (share(500.0 * 0.8_f64.exp()) - 0.8413).abs() < 0.015);
        let clipped = draws("lognormal:500:400:min=100:max=1000");
        assert_eq!((clipped.iter().min(), clipped.iter().max()), (Some(&100), Some(&1_000)));
        let of = |drawn: &[u64], at: u64| drawn.iter().filter(|drawn| **drawn == at).count();
        let free = draws("lognormal:500:400");
        assert_eq!(of(&clipped, 1_000), free.iter().filter(|drawn| **drawn >= 1_000).count(), "clipped, not redrawn");
        let times = LengthDistribution::parse_durations("uniform:1s:2s:max=1500ms").unwrap();
        assert_eq!(times.to_string(), "uniform:1000:2000:max=1500");
    }

    #[test]
    fn what_was_measured_comes_out_at_its_shares() {
        static TABLE: LengthQuantiles = {
            let mut table = [0; 206];
            let mut at = 0;
            while at < table.len() {
                table[at] = 100 + 10 * at as u32;
                at += 1;
            }
            table
        };
        let mut random = rng(3);
        let mut drawn: Vec<u64> = (0..50_000).map(|_| LengthDistribution::Measured(&TABLE).draw(&mut random)).collect();
        drawn.sort_unstable();
        assert!(drawn[0] >= 100 && drawn[49_999] <= 2_150);
        for at in (10..206).step_by(5) {
            let found = drawn[((quantile_fraction(at) * 50_000.0) as usize).min(49_999)] as f64;
            assert!((found / f64::from(TABLE[at]) - 1.0).abs() < 0.06, "{at}: {found} for {}", TABLE[at]);
        }
        assert_eq!(quantile_at(&TABLE, 0.0).round(), 100.0);
        assert_eq!(quantile_at(&TABLE, 0.5).round(), 1_100.0);
        assert_eq!(quantile_at(&TABLE, 1.0).round(), 2_150.0);
        assert_eq!(quantile_at(&TABLE, 0.9995).round(), 2_140.0);
    }

    #[test]
    fn the_share_of_a_normal_distribution_is_that_of_tables() {
        for (z, share) in [(0.0, 0.5), (1.0, 0.841_344_7), (-1.96, 0.024_997_9), (3.5, 0.999_767_4), (-9.0, 0.0)] {
            assert!((normal_cdf(z) - share).abs() < 3e-7, "{z}: {}", normal_cdf(z));
        }
    }

    #[test]
    fn lengths_are_written_as_a_number_or_a_law() {
        let length = |text: &str| text.parse::<LengthDistribution>();
        assert_eq!(length("512"), Ok(LengthDistribution::Fixed(512)));
        assert_eq!(length("normal:512:64"), Ok(LengthDistribution::Normal(512.0, 64.0)));
        assert_eq!(length("lognormal:512:64"), Ok(LengthDistribution::LogNormal(512.0, 64.0)));
        for bad in [
            "",
            "0",
            "-1",
            "1.5",
            "inf",
            "normal",
            "normal:5",
            "normal:5:1:1",
            "uniform:2:1",
            "uniform:0:1",
            "lognormal:median=5:5",
            "lognormal:median=5:sigma=-1",
            "normal:5:1:min=9:max=8",
            "normal:5:1:max=0",
            "min=5",
            "5:sigma=1",
            "normal:nan:1",
            "normal:0:1",
        ] {
            assert!(length(bad).is_err(), "{bad}");
        }
        assert_eq!(LengthDistribution::parse_durations("1500ms"), Ok(LengthDistribution::Fixed(1_500)));
        assert_eq!(
            LengthDistribution::parse_durations("lognormal:5s:500ms"),
            Ok(LengthDistribution::LogNormal(5_000.0, 500.0))
        );
        assert!(
            LengthDistribution::parse_durations("5").is_err() && LengthDistribution::parse_durations("1us").is_err()
        );
    }

    #[test]
    fn lengths_of_a_file_are_drawn_together_and_as_often_as_they_stand_there() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lengths.csv");
        fs::write(&file, "isl,osl\n100,1\n200,2\n\n200,2\n300, 3\n").unwrap();
        let (lengths, trace) = RequestLengths::from_file(&file, TraceReadOptions::default()).unwrap();
        assert!(trace.is_none(), "lines of two numbers");
        let mut random = rng(1);
        let mut counts = [0; 4];
        for _ in 0..4_000 {
            let (input, output) = lengths.draw(0, &mut random);
            assert_eq!(input, output * 100);
            counts[output as usize] += 1;
        }
        assert!(counts[2] > 1_800 && counts[1] > 850 && counts[3] > 850 && counts[0] == 0, "{counts:?}");
        fs::write(&file, "100,1\n200\n").unwrap();
        let error = RequestLengths::from_file(&file, TraceReadOptions::default()).err().unwrap().to_string();
        assert!(error.ends_with("lengths.csv: line 2 is not `ISL,OSL`"), "{error}");
        fs::write(&file, "100,0\n").unwrap();
        assert!(
            RequestLengths::from_file(&file, TraceReadOptions::default())
                .err()
                .unwrap()
                .to_string()
                .contains("no row has the tokens")
        );
    }

    #[test]
    fn a_trace_is_a_file_of_lengths_too() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces");
        for (trace, rows) in [("mooncake/conversation_first60s.jsonl", 162), ("azure/conv2023_first300s.csv", 1_445)] {
            let (RequestLengths::Pairs(pairs), Some((format, _))) =
                RequestLengths::from_file(&root.join(trace), TraceReadOptions::default()).unwrap()
            else {
                panic!()
            };
            assert!(trace.starts_with(format.name));
            assert_eq!(pairs.len(), rows, "{trace}");
        }
    }
}
