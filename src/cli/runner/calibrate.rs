//! Calibrates prompt lengths against the server of each model. Two requests with known words show the tokens per word
//! and the overhead per prompt. If a word is not one token, a third request measures the overhead at a larger length. A
//! few prompts of planned lengths then show the remaining error.

use schemars::JsonSchema;
use serde::Serialize;

use std::sync::mpsc;

use super::error::SetupError;
use super::vocabulary::VocabularyChoice;
use crate::clock::Clock;
use crate::measure::record::Outcome;
use crate::measure::time::Gap;
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::plan::schedule::ScheduledRequest;
use crate::replay::result::row::CompletedRequest;
use crate::replay::{Config, ReplayRun};
use crate::trace::prompt_text::{PromptGenerator, TokenizationModel};
use crate::trace::vocabulary::{self, Vocabulary};
use crate::trace_file::row::{PromptShape, TraceEntry};

/// The second prompt repeats these words plus one even share; the difference is the share's token count.
const SHORT_PROMPT_WORDS: u64 = 32;
/// Words in which every vocabulary word occurs equally often.
const SHARE_WORDS: u64 = vocabulary::EVEN_RUN_WORDS as u64;
/// Lengths of the probes, in tokens.
const PROBE_TOKENS: [u64; 4] = [96, 192, 384, 768];
/// Plausible tokens per word: outside of it the server's count is not of the prompt.
const TOKENS_PER_WORD: std::ops::RangeInclusive<f64> = 0.1..=16.0;

/// Silence before a notice that the server is slow.
const NOTICE_DELAY: Gap = Gap::from_millis(3_000);
const POLL_INTERVAL: Gap = Gap::from_millis(10);

/// Prompt calibration, as in `run.json`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct PromptCalibration {
    /// Source of the single-token words; `None` if none is available and all words are used.
    source: Option<&'static str>,
    /// Number of words in the vocabulary.
    number: usize,
    /// Calibration of the first model's server.
    #[serde(flatten)]
    counted: TokenCalibration,
    /// Calibrations of the other models' servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_models: Vec<ModelCalibration>,
}

/// A server's token counts.
#[derive(Debug, Serialize, JsonSchema)]
struct TokenCalibration {
    /// Mean tokens per word.
    tokens_per_word: f64,
    /// Probes sent; empty if a word is one token.
    probed: Vec<CalibrationProbe>,
    /// Mean absolute error of the probes, in tokens.
    mean_absolute_error: Option<f64>,
}

impl Default for TokenCalibration {
    fn default() -> Self {
        Self { tokens_per_word: 1.0, probed: Vec::new(), mean_absolute_error: None }
    }
}

/// A model's calibration.
#[derive(Debug, Serialize, JsonSchema)]
struct ModelCalibration {
    model: Option<String>,
    /// Tokens added to every prompt.
    prompt_overhead: u64,
    #[serde(flatten)]
    counted: TokenCalibration,
}

/// Planned and counted tokens of one prompt.
#[derive(Debug, Serialize, JsonSchema)]
struct CalibrationProbe {
    planned: u64,
    counted: u64,
}

pub(super) struct CalibrationResult {
    /// Generates prompts whose server count matches the plan.
    pub(super) content: PromptGenerator,
    /// Tokens that the first model's server adds to every prompt.
    pub(super) prompt_overhead: u64,
    pub(super) words: PromptCalibration,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

/// Skips the calibration for a server with a known overhead of `added` tokens per prompt.
pub(super) fn without_calibration(
    chosen: VocabularyChoice,
    added: u64,
    content: impl Fn(Vocabulary) -> PromptGenerator,
) -> CalibrationResult {
    let words =
        PromptCalibration { source: chosen.source, number: chosen.words.word_count(), ..PromptCalibration::default() };
    let content = content(chosen.words)
        .with_tokenization(TokenizationModel { template_tokens: added, ..TokenizationModel::default() });
    CalibrationResult { content, prompt_overhead: added, words, notes: chosen.note.into_iter().collect() }
}

/// Calibrates with the run's own sender, and with requests like each model's first.
pub(super) fn calibrate(
    models: &[ScheduledRequest],
    chosen: VocabularyChoice,
    content: impl Fn(Vocabulary) -> PromptGenerator,
    config: impl Fn(PromptGenerator) -> Result<Config, SetupError>,
) -> Result<CalibrationResult, SetupError> {
    let (by, note) = (chosen.source, chosen.note.clone());
    let mut found = without_calibration(chosen, 0, content);
    let mut of_models = Vec::new();
    for first in models {
        let (counts, counted, note) = calibrate_model(first, by.is_some(), &found.content, &config)?;
        let model = first.entry.model.clone();
        let name = model.as_deref().filter(|_| models.len() > 1);
        found.notes.extend(note.map(|note| name.map_or(note.clone(), |name| format!("{name}: {note}"))));
        of_models.push((
            ModelCalibration { model, prompt_overhead: counts.map_or(0, |counts| counts.template_tokens), counted },
            counts,
        ));
    }
    // A server's tokenization is exact only if its prompt counts agree.
    if !of_models.is_empty()
        && of_models.iter().all(|(_, counts)| counts.is_some_and(|counts| counts.tokens_per_word == 1.0))
    {
        let model_notes = found.notes.split_off(usize::from(note.is_some()));
        found.notes =
            by.and(note).map(|note| format!("{note}; prompts are exact")).into_iter().chain(model_notes).collect();
    }
    let counts_of = of_models.iter().map(|(of, counts)| (of.model.clone(), counts.unwrap_or_default())).collect();
    let mut of_models = of_models.into_iter();
    if let Some((first, counts)) = of_models.next() {
        found.prompt_overhead = first.prompt_overhead;
        found.words.counted = first.counted;
        found.content =
            found.content.with_tokenization(counts.unwrap_or_default()).with_tokenization_by_model(counts_of);
    }
    found.words.other_models = of_models.map(|(of, _)| of).collect();
    Ok(found)
}

/// Calibrates one model. Returns the result if the server counts prompts, the figures for `run.json`, and a note for
/// the user.
fn calibrate_model(
    first: &ScheduledRequest,
    words_are_known: bool,
    content: &PromptGenerator,
    config: impl Fn(PromptGenerator) -> Result<Config, SetupError>,
) -> Result<(Option<TokenizationModel>, TokenCalibration, Option<String>), SetupError> {
    let mut counted = TokenCalibration::default();
    let counts = match measure_token_counts(first, content, &config)? {
        Ok(counts) => counts,
        Err(note) => return Ok((None, counted, Some(note))),
    };
    counted.tokens_per_word = counts.tokens_per_word;
    let added = counts.template_tokens;
    if counts.tokens_per_word == 1.0 {
        let note = format!("the server adds {added} tokens to every prompt; prompts are so much shorter");
        return Ok((Some(counts), counted, Some(note).filter(|_| added > 0)));
    }
    let mut came_out = "how far off they come out is not known: none that was tried had a count".to_owned();
    counted.probed = probe_lengths(first, &content.clone().with_tokenization(counts), &config)?;
    let probed = &counted.probed;
    if let [shortest, .., longest] = &probed[..] {
        let off: u64 = probed.iter().map(|probe| probe.counted.abs_diff(probe.planned)).sum();
        let mean = off as f64 / probed.len() as f64;
        let (number, from, to) = (probed.len(), shortest.planned, longest.planned);
        came_out = format!("{number} that were tried, of {from} to {to} tokens, came out {mean:.1} off on average");
        counted.mean_absolute_error = Some(mean);
    }
    let remedy = if words_are_known { "" } else { "; --tokenizer with its tokenizer.json makes them exact" };
    let note = format!(
        "note: the server counts {:.2} tokens for a word and adds {added} to every prompt: prompts have as many words as \
         make them as long as planned on average; {came_out}{remedy}",
        counts.tokens_per_word
    );
    Ok((Some(counts), counted, Some(note)))
}

/// Measures the server's token counts, or returns why they are unknown.
fn measure_token_counts(
    first: &ScheduledRequest,
    content: &PromptGenerator,
    config: impl Fn(PromptGenerator) -> Result<Config, SetupError>,
) -> Result<Result<TokenizationModel, String>, SetupError> {
    let count = |words| send_probe(first, words, config(content.clone().with_even_words())?);
    let mut counted = Vec::new();
    for words in [SHORT_PROMPT_WORDS, SHORT_PROMPT_WORDS + SHARE_WORDS] {
        match count(words)? {
            Ok(tokens) => counted.push(tokens),
            Err(why) => return Ok(Err(format!("note: the first try failed ({why})"))),
        }
    }
    let [Some(short), Some(long)] = counted[..] else {
        let note = "note: the server does not count prompts; their lengths are as a tokenizer counts words";
        return Ok(Err(note.to_owned()));
    };
    let each = long.saturating_sub(short) as f64 / SHARE_WORDS as f64;
    if !TOKENS_PER_WORD.contains(&each) {
        return Ok(Err(format!(
            "note: the server counts {short} tokens for {SHORT_PROMPT_WORDS} words and {long} for {}, which tells nothing of how long \
             prompts will be",
            SHORT_PROMPT_WORDS + SHARE_WORDS
        )));
    }
    // A few words may differ from the average of all; an even share does not.
    let share = if each == 1.0 { None } else { count(SHARE_WORDS)?.ok().flatten() };
    let (words, tokens) = share.map_or((SHORT_PROMPT_WORDS, short), |tokens| (SHARE_WORDS, tokens));
    let added = (tokens as f64 - each * words as f64).round().max(0.0) as u64;
    Ok(Ok(TokenizationModel { template_tokens: added, tokens_per_word: each }))
}

/// Sends prompts of planned lengths and returns those that the server counted.
fn probe_lengths(
    first: &ScheduledRequest,
    content: &PromptGenerator,
    config: impl Fn(PromptGenerator) -> Result<Config, SetupError>,
) -> Result<Vec<CalibrationProbe>, SetupError> {
    let mut tried = Vec::new();
    for planned in PROBE_TOKENS {
        let Ok(Some(counted)) = send_probe(first, planned, config(content.clone())?)? else { break };
        tried.push(CalibrationProbe { planned, counted });
    }
    Ok(tried)
}

/// Sends one prompt of `tokens` tokens. Returns the server's count, if any, or the reason for a missing response.
fn send_probe(
    first: &ScheduledRequest,
    tokens: u64,
    config: Config,
) -> Result<Result<Option<u64>, String>, SetupError> {
    // Another row number generates another text.
    let mut send = ScheduledRequest { at: Gap::ZERO, number: tokens, ..first.clone() };
    send.entry.prompt = PromptShape { tokens: Some(tokens), ..PromptShape::default() };
    (send.entry.output_tokens, send.entry.session, send.entry.ending) = (Some(1), None, None);
    // The warm-up would exclude the first request, which is the only one here.
    let config = Config { measurement_window: MeasurementWindow::default(), ..config };
    let (server, patience) = (config.targets.iter().map(ToString::to_string).collect::<Vec<_>>(), config.timeout);
    let (ended, result) = mpsc::channel();
    let on_completion = Box::new(move |done: &CompletedRequest, _: &TraceEntry| {
        // The receiver lives until the run is over.
        _ = ended.send(probe_result(done)).is_ok();
    });
    let run = ReplayRun::start(config, move || Ok([Ok(send)].into_iter()), None, on_completion)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        while !run.is_over() && run.age() < NOTICE_DELAY {
            Clock::Monotonic.sleep(POLL_INTERVAL).await;
        }
    });
    if !run.is_over() {
        let server = server.join(" and ");
        crate::cli::terminal::eprint_line(&format!(
            "waiting for the first answer of {server}, for {patience} at most (--timeout)"
        ));
    }
    run.finish();
    Ok(result.try_recv().unwrap_or_else(|_| Err(NO_RESPONSE.to_owned())))
}

const NO_RESPONSE: &str = "no whole answer";

/// The server's count of the prompt's tokens, if any, or the reason for a missing response.
fn probe_result(done: &CompletedRequest) -> Result<Option<u64>, String> {
    let record = &done.record;
    if record.outcome == Outcome::Success {
        return Ok(record.usage.input.filter(|_| done.planned_values.input_tokens.is_some()));
    }
    let status = || record.status.map(|status| format!("answered {status}"));
    let reason = done.failure_reason.map(|reason| reason.name().to_owned());
    Err(reason.or_else(status).unwrap_or_else(|| NO_RESPONSE.to_owned()))
}
