//! ServeGen's clients: per client a table of time windows with a rate and a gap distribution, and a table of lengths.
//! The tables are no trace; the reader generates one day of requests from them, deterministically by seed.
//!
//! The gaps of each window are drawn from its own distribution, scaled to its rate. A gap that crosses the end of a
//! window continues at the rate of the next window. A new draw at each window start would add requests. Lengths are
//! drawn from the latest window that has them, input and output independently. Inputs of multimodal clients are text
//! plus a random number of images, audio clips and videos, each with its own length.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs;
use std::path::{Path, PathBuf};

use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp1, Gamma, Weibull};
use rand_pcg::Pcg64Mcg;

use super::super::entry_fields::EntryFields;
use super::super::{Error, Trace, TraceProblem};
use super::csv::{CsvSplitter, value};
use super::{ConversionLosses, InputSource, ReadOptions, TraceFormat};
use crate::trace_file::header::TraceHeader;
use crate::trace_file::row::{BYTES_PER_TOKEN, PartKind, PromptPart, PromptShape, TraceEntry};

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "servegen",
    aliases: &[],
    about: "ServeGen: a folder of clients, from which a day is generated",
    time_unit: "seconds",
    detected_by: "a folder of `chunk-N-trace.csv`",
    keys: &[],
    detect: |source| match source {
        InputSource::Folder(path) => client_paths(path).is_ok_and(|clients| !clients.is_empty()),
        InputSource::Stream(_) => false,
    },
    read: Some(read),
    write: None,
    unsupported_reason: "it holds no requests, only the rates and distributions from which some are drawn: what came back would be \
          others, without prefixes and sessions; write mooncake or streamgauge",
    fields: EntryFields::NONE,
    has_wall_clock: false,
    delta_fields: None,
};

const DAY_SECONDS: f64 = 86_400.0;
/// Maximum bytes of one client's tables; the largest published one has 30 MB.
const MAX_CLIENT_BYTES: u64 = 64 << 20;
/// Maximum clients of one folder; the largest published one has about 2,000.
const MAX_CLIENTS: usize = 1 << 14;
/// Mean gaps simulated before the first window, so that each client starts at a random moment between two requests; and
/// the maximum draws for that.
const WARM_UP: (f64, usize) = (256.0, 1 << 12);
const TRACE_SUFFIX: &str = "-trace.csv";
const DATASET_SUFFIX: &str = "-dataset.json";

fn client_paths(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(TRACE_SUFFIX)) {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

fn read(source: InputSource, options: &ReadOptions) -> Result<Trace, Error> {
    let folder = match source {
        InputSource::Folder(path) => path,
        InputSource::Stream(stream) => {
            let problem =
                TraceProblem::new("is a file, and servegen is a folder of chunk-N-trace.csv and -dataset.json");
            return Err(problem.with_remedy("name the folder").at_line(&stream.name, None));
        }
    };
    let name = folder.display().to_string();
    let paths: Vec<PathBuf> = client_paths(&folder)
        .map_err(|error| TraceProblem::new(format!("cannot be read: {error}")).at_line(&name, None))?;
    if paths.len() > MAX_CLIENTS {
        return Err(TraceProblem::new(format!("more than {MAX_CLIENTS} clients")).at_line(&name, None));
    }
    let losses = ConversionLosses::default();
    let mut clients: Vec<ServegenClient> = Vec::new();
    for (number, path) in paths.into_iter().enumerate() {
        clients.extend(ServegenClient::open(&path, options.seed, number as u64, &losses)?);
    }
    if clients.is_empty() {
        let problem = TraceProblem::new(format!("no client has lengths: {INPUT} or {TEXT}, and {OUTPUT}"));
        return Err(problem.with_remedy("check that this is the folder you mean").at_line(&name, None));
    }
    // One day from the first window on.
    let zero = clients.iter().map(|client| client.windows[0].start).fold(f64::INFINITY, f64::min);
    let mut coming = BinaryHeap::new();
    for (number, client) in clients.iter_mut().enumerate() {
        coming.extend(client.next_arrival(zero + DAY_SECONDS).map(|at| Reverse((nanos(at - zero), number))));
    }
    let mut header = TraceHeader::new(FORMAT.name);
    header.source = format!("{}, generated with seed {}", FORMAT.name, options.seed);
    let entries = Box::new(std::iter::from_fn(move || {
        let Reverse((at, number)) = coming.pop()?;
        let client = &mut clients[number];
        let entry = client.request(at, at as f64 / 1e9 + zero);
        coming.extend(client.next_arrival(zero + DAY_SECONDS).map(|at| Reverse((nanos(at - zero), number))));
        Some(Ok(entry))
    }));
    Ok(Trace { header, entries, losses })
}

fn nanos(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e9).round() as u64
}

struct ServegenClient {
    windows: Vec<RateWindow>,
    lengths: Vec<WindowLengths>,
    random: Pcg64Mcg,
    /// The current window, and the time reached in it in seconds.
    window: usize,
    last: f64,
    /// Rest of the gap before the next request, in mean gaps.
    gap_left: f64,
}

struct WindowLengths {
    start: f64,
    /// Tokens of the text.
    input: WeightedLengths,
    output: WeightedLengths,
    /// Number of images, audio clips or videos per request, and tokens of each.
    media: Vec<(PartKind, WeightedLengths, WeightedLengths)>,
}

struct RateWindow {
    start: f64,
    rate: f64,
    gaps: GapDistribution,
}

#[derive(Clone, Copy)]
enum GapDistribution {
    Exponential,
    Gamma(Gamma<f64>, f64),
    Weibull(Weibull<f64>, f64),
}

impl GapDistribution {
    /// The distribution with this name and shape, and its mean.
    fn from_name(name: &str, shape: f64) -> Option<Self> {
        match name {
            "" => Some(Self::Exponential),
            "Gamma" => Gamma::new(shape, 1.0).ok().map(|gaps| Self::Gamma(gaps, shape)),
            "Weibull" if shape > 0.05 => {
                // Smaller shapes have a mean too large to scale by.
                Weibull::new(1.0, shape).ok().map(|gaps| Self::Weibull(gaps, gamma(1.0 + 1.0 / shape)))
            }
            _ => None,
        }
    }

    /// Draws a gap with mean 1.
    fn draw(&self, random: &mut Pcg64Mcg) -> f64 {
        match self {
            Self::Exponential => Exp1.sample(random),
            Self::Gamma(gaps, mean) => gaps.sample(random) / mean,
            Self::Weibull(gaps, mean) => gaps.sample(random) / mean,
        }
    }
}

/// The gamma function for arguments from 1 to 22 (Lanczos, g = 7, n = 9; 15 digits).
fn gamma(x: f64) -> f64 {
    const LANCZOS_COEFFICIENTS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum = LANCZOS_COEFFICIENTS
        .iter()
        .enumerate()
        .skip(1)
        .fold(LANCZOS_COEFFICIENTS[0], |sum, (i, c)| sum + c / (x + i as f64));
    let t = x + 7.5;
    (2.0 * std::f64::consts::PI).sqrt() * t.powf(x + 0.5) * (-t).exp() * sum
}

/// Lengths with cumulative weights.
struct WeightedLengths {
    lengths: Vec<u64>,
    sums: Vec<f64>,
}

impl WeightedLengths {
    /// Parses `{81: 0.00145, 90: 0.2}`.
    fn parse(text: &str) -> Option<Self> {
        let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
        let (mut lengths, mut sums, mut sum) = (Vec::new(), Vec::new(), 0.0);
        for pair in inside.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (length, weight) = pair.split_once(':')?;
            let (length, weight): (f64, f64) = (length.trim().parse().ok()?, weight.trim().parse().ok()?);
            if !(0.0..1e9).contains(&length) || !(0.0..1e18).contains(&weight) {
                return None;
            }
            sum += weight;
            lengths.push(length as u64);
            sums.push(sum);
        }
        (sum > 0.0).then_some(Self { lengths, sums })
    }

    fn draw(&self, random: &mut Pcg64Mcg) -> u64 {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let at = random.random::<f64>() * all;
        let found = self.sums.partition_point(|sum| *sum <= at).min(self.lengths.len() - 1);
        self.lengths[found]
    }
}

impl ServegenClient {
    /// `None` if the client never sends a request.
    fn open(path: &Path, seed: u64, number: u64, losses: &ConversionLosses) -> Result<Option<Self>, Error> {
        let name = path.display().to_string();
        let windows = parse_windows(&read_text(path)?).map_err(|(line, problem)| problem.at_line(&name, Some(line)))?;
        let dataset = name.strip_suffix(TRACE_SUFFIX).map(|stem| format!("{stem}{DATASET_SUFFIX}")).unwrap_or_default();
        if windows.is_empty() {
            return Ok(None);
        }
        let lengths = parse_lengths(&read_text(Path::new(&dataset))?, losses)
            .map_err(|problem| problem.at_line(&dataset, None))?;
        if lengths.is_empty() {
            losses.count("clients without lengths, left out");
            return Ok(None);
        }
        let mut random = Pcg64Mcg::seed_from_u64(crate::stats::hash::combine(seed, number));
        let (last, mut left) = (windows[0].start, -WARM_UP.0);
        for _ in 0..WARM_UP.1 {
            if left >= 0.0 {
                break;
            }
            left += windows[0].gaps.draw(&mut random);
        }
        Ok(Some(Self { windows, lengths, random, window: 0, last, gap_left: left.max(0.0) }))
    }

    /// Next arrival in seconds; `None` after `end`.
    fn next_arrival(&mut self, end: f64) -> Option<f64> {
        loop {
            let window = self.windows.get(self.window).filter(|window| window.start < end)?;
            let until = self.windows.get(self.window + 1).map_or_else(
                // The last window is assumed to be as long as the one before it.
                || {
                    window.start
                        + self.windows.len().checked_sub(2).map_or(600.0, |at| window.start - self.windows[at].start)
                },
                |next| next.start,
            );
            self.last = self.last.max(window.start);
            if window.rate > 0.0 {
                let at = self.last + self.gap_left / window.rate;
                if at < until.min(end) {
                    (self.last, self.gap_left) = (at, window.gaps.draw(&mut self.random));
                    return Some(at);
                }
                self.gap_left -= (until - self.last) * window.rate;
            }
            self.last = until;
            self.window += 1;
        }
    }

    fn request(&mut self, at: u64, seconds: f64) -> TraceEntry {
        let table = self.lengths.partition_point(|lengths| lengths.start <= seconds).saturating_sub(1);
        let (lengths, random) = (&self.lengths[table], &mut self.random);
        let text = lengths.input.draw(random).max(1);
        let mut prompt = PromptShape { tokens: Some(text), ..PromptShape::default() };
        for (kind, count, tokens) in &lengths.media {
            for _ in 0..count.draw(random).min(MAX_MEDIA_PARTS) {
                prompt.tokens = prompt.tokens.map(|all| all.saturating_add(tokens.draw(random)));
                prompt.parts.push(PromptPart { kind: *kind, bytes: None, size: None });
            }
        }
        // In a prompt with images, the byte count defines the length of the text.
        prompt.bytes = (!prompt.parts.is_empty()).then_some(text.saturating_mul(BYTES_PER_TOKEN));
        TraceEntry { at, prompt, output_tokens: Some(lengths.output.draw(random).max(1)), ..TraceEntry::default() }
    }
}

fn read_text(path: &Path) -> Result<String, Error> {
    let name = path.display().to_string();
    let read = fs::metadata(path).and_then(|about| {
        if about.len() > MAX_CLIENT_BYTES {
            return Err(std::io::Error::other(format!("more than {} MiB", MAX_CLIENT_BYTES >> 20)));
        }
        fs::read_to_string(path)
    });
    read.map_err(|error| TraceProblem::new(format!("cannot be read: {error}")).at_line(&name, None))
}

fn parse_windows(text: &str) -> Result<Vec<RateWindow>, (u64, TraceProblem)> {
    let (mut windows, mut splitter) = (Vec::<RateWindow>::new(), CsvSplitter::new());
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        let mut window = || -> Result<RateWindow, TraceProblem> {
            let cells = splitter.cells(line.as_bytes())?;
            let start: f64 = value(&cells, 0, "window start", "seconds")?;
            let rate: f64 = value(&cells, 1, "rate", "requests per second")?;
            if !(0.0..1e9).contains(&start) || !(0.0..1e6).contains(&rate) {
                return Err(TraceProblem::in_field(
                    "rate",
                    "expected a start and a rate from zero on and within reason",
                ));
            }
            let (name, shape) = (cells.get(3).copied().unwrap_or(""), cells.get(4).copied().unwrap_or(""));
            let shape = if name.is_empty() { 1.0 } else { shape.parse().unwrap_or(f64::NAN) };
            let gaps = GapDistribution::from_name(name, shape).ok_or_else(|| {
                TraceProblem::in_field("distribution", "expected Gamma, Weibull or nothing, and a shape above 0")
            })?;
            Ok(RateWindow { start, rate, gaps })
        };
        let window = window().map_err(|problem| (number, problem))?;
        if windows.last().is_some_and(|last| last.start >= window.start) {
            return Err((
                number,
                TraceProblem::in_field("window start", "expected a later one than in the line before"),
            ));
        }
        windows.push(window);
    }
    Ok(windows)
}

/// Input and output lengths of every window that has both.
fn parse_lengths(text: &str, losses: &ConversionLosses) -> Result<Vec<WindowLengths>, TraceProblem> {
    const EXPECTED: &str = "expected an object of windows, each of texts as \"{81: 0.5}\"";
    let windows: BTreeMap<String, BTreeMap<String, serde_json::Value>> =
        serde_json::from_str(text).map_err(|error| TraceProblem::new(format!("{EXPECTED} (line {})", error.line())))?;
    let mut lengths = Vec::new();
    for (start, mut fields) in windows {
        let start: f64 = start.parse().map_err(|_| TraceProblem::in_field("window start", "expected seconds"))?;
        let mut table = |name: &str| -> Result<Option<WeightedLengths>, TraceProblem> {
            let Some(text) = fields.remove(name) else { return Ok(None) };
            let text = text.as_str().ok_or_else(|| TraceProblem::in_field(name, EXPECTED))?;
            // A window without requests has an empty table.
            if text.trim() == "{}" {
                return Ok(None);
            }
            WeightedLengths::parse(text).map(Some).ok_or_else(|| TraceProblem::in_field(name, EXPECTED))
        };
        // Multimodal clients use another key for text.
        let (input, output) = (table(INPUT)?.map_or_else(|| table(TEXT), |input| Ok(Some(input)))?, table(OUTPUT)?);
        let mut media = Vec::new();
        for (kind, count, tokens) in MEDIA {
            if let (Some(count), Some(tokens)) = (table(count)?, table(tokens)?) {
                media.push((kind, count, tokens));
            }
        }
        fields.keys().for_each(|name| losses.count(name));
        if let (Some(input), Some(output)) = (input, output) {
            lengths.push(WindowLengths { start, input, output, media });
        }
    }
    lengths.sort_by(|a, b| a.start.total_cmp(&b.start));
    Ok(lengths)
}

/// Maximum images kept per request; the limit also applies to audio clips and videos.
const MAX_MEDIA_PARTS: u64 = 1_000;
const MEDIA: [(PartKind, &str, &str); 3] = [
    (PartKind::Image, "image_count", "image_tokens"),
    (PartKind::Audio, "audio_count", "audio_tokens"),
    (PartKind::Video, "video_count", "video_tokens"),
];
const TEXT: &str = "text_tokens";
const INPUT: &str = "input_tokens";
const OUTPUT: &str = "output_tokens";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_mean_that_the_rate_asks_for() {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        for (name, shape) in [("", 0.0), ("Gamma", 0.3), ("Weibull", 0.6), ("Weibull", 2.0)] {
            let gaps = GapDistribution::from_name(name, shape).unwrap();
            let mean = (0..200_000).map(|_| gaps.draw(&mut random)).sum::<f64>() / 200_000.0;
            assert!((0.97..1.03).contains(&mean), "{name} {shape}: {mean}");
        }
        assert!(
            GapDistribution::from_name("Weibull", 0.0).is_none() && GapDistribution::from_name("Pareto", 1.0).is_none()
        );
        assert!((gamma(5.0) - 24.0).abs() < 1e-9);
    }

    #[test]
    fn a_table_is_drawn_from_by_its_weights() {
        let table = WeightedLengths::parse("{81: 0.00145, 90.0: 2e-1}").unwrap();
        assert_eq!(table.lengths, [81, 90]);
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let rare = (0..100_000).filter(|_| table.draw(&mut random) == 81).count();
        assert!((620..820).contains(&rare), "{rare}");
        assert!(
            WeightedLengths::parse("{}").is_none()
                && WeightedLengths::parse("{81: x}").is_none()
                && WeightedLengths::parse("81").is_none()
        );
    }
}
