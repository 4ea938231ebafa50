//! How servers count prompts, by asking the one of each model: two requests of known words tell how many tokens a word
//! is, and what is added to every prompt. Where a word is not one token another tells what is added in spite of that, and
//! a few prompts of planned lengths tell how far off they come out.

use serde::Serialize;

use super::prepare::Refused;
use super::words::Chosen;
use crate::capture::format::Prompt;
use crate::clock::Clock;
use crate::measure::time::Gap;
use crate::replay::measured::Measured;
use crate::replay::schedule::Planned;
use crate::replay::{Config, Run};
use crate::trace::content::{Content, Counts};
use crate::trace::words::{self, Words};

/// Words of the shortest prompt: the next one has the same and a share more, so that they differ by what a share counts.
const SHORT: u64 = 32;
/// Words of an even share.
const SHARE: u64 = words::SHARE as u64;
/// Lengths of those that are tried, in tokens.
const TRIED: [u64; 4] = [96, 192, 384, 768];
/// What a word may be, in tokens: what is beyond is no count of a prompt.
const EACH: std::ops::RangeInclusive<f64> = 0.1..=16.0;

/// How long an answer is waited for in silence.
const SILENT: Gap = Gap::from_millis(3_000);
const LOOKS: Gap = Gap::from_millis(10);

/// What is known of prompts, as `run.json` tells it.
#[derive(Debug, Default, Serialize)]
pub(super) struct PromptWords {
    /// Who says which words are one token each; `None` where nobody does, and all are used.
    known_by: Option<&'static str>,
    /// How many there are to choose from.
    number: usize,
    /// How the server of the first model counts them.
    #[serde(flatten)]
    counted: Counted,
    /// How those of the other models do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_models: Vec<OfModel>,
}

/// How a server counts.
#[derive(Debug, Serialize)]
struct Counted {
    /// Tokens of a word on average.
    tokens_each: f64,
    /// Prompts that were tried, where a word is not one token.
    tried: Vec<Tried>,
    /// Of these, in tokens.
    mean_absolute_error: Option<f64>,
}

impl Default for Counted {
    fn default() -> Self {
        Self { tokens_each: 1.0, tried: Vec::new(), mean_absolute_error: None }
    }
}

/// How the server of a model counts.
#[derive(Debug, Serialize)]
struct OfModel {
    model: Option<String>,
    /// What it adds to every prompt.
    prompt_overhead: u64,
    #[serde(flatten)]
    counted: Counted,
}

/// The tokens of a prompt.
#[derive(Debug, Serialize)]
struct Tried {
    planned: u64,
    counted: u64,
}

/// What was found.
pub(super) struct Calibrated {
    /// What makes prompts that the server counts as planned.
    pub(super) content: Content,
    /// What the server of the first model adds to every prompt.
    pub(super) added: u64,
    pub(super) words: PromptWords,
    /// What people should know of it.
    pub(super) said: Vec<String>,
}

/// Words that nobody counts, for a server that is known to add so much to every prompt.
pub(super) fn without_asking(chosen: Chosen, added: u64, content: impl Fn(Words) -> Content) -> Calibrated {
    let words = PromptWords { known_by: chosen.by, number: chosen.words.number(), ..PromptWords::default() };
    let content = content(chosen.words).counted(Counts { added, ..Counts::default() });
    Calibrated { content, added, words, said: chosen.said.into_iter().collect() }
}

/// Asks by the runner itself, with requests like the first of each model.
pub(super) fn calibrate(
    models: &[Planned],
    chosen: Chosen,
    content: impl Fn(Words) -> Content,
    config: impl Fn(Content) -> Result<Config, Refused>,
) -> Result<Calibrated, Refused> {
    let (by, said) = (chosen.by, chosen.said.clone());
    let mut found = without_asking(chosen, 0, content);
    let mut of_models = Vec::new();
    for first in models {
        let (counts, counted, said) = of_model(first, by.is_some(), &found.content, &config)?;
        let model = first.entry.model.clone();
        let name = model.as_deref().filter(|_| models.len() > 1);
        found.said.extend(said.map(|said| name.map_or(said.clone(), |name| format!("{name}: {said}"))));
        of_models.push((OfModel { model, prompt_overhead: counts.map_or(0, |counts| counts.added), counted }, counts));
    }
    // What a server says of its tokens is so where it counts so.
    if !of_models.is_empty() && of_models.iter().all(|(_, counts)| counts.is_some_and(|counts| counts.each == 1.0)) {
        let told = found.said.split_off(usize::from(said.is_some()));
        found.said = by.and(said).map(|said| format!("{said}; prompts are exact")).into_iter().chain(told).collect();
    }
    let counts_of = of_models.iter().map(|(of, counts)| (of.model.clone(), counts.unwrap_or_default())).collect();
    let mut of_models = of_models.into_iter();
    if let Some((first, counts)) = of_models.next() {
        found.added = first.prompt_overhead;
        found.words.counted = first.counted;
        found.content = found.content.counted(counts.unwrap_or_default()).counted_by_model(counts_of);
    }
    found.words.other_models = of_models.map(|(of, _)| of).collect();
    Ok(found)
}

/// How the server of this row counts, if that can be known, and what people should know of it.
fn of_model(
    first: &Planned,
    words_are_known: bool,
    content: &Content,
    config: impl Fn(Content) -> Result<Config, Refused>,
) -> Result<(Option<Counts>, Counted, Option<String>), Refused> {
    let mut counted = Counted::default();
    let counts = match asked(first, content, &config)? {
        Ok(counts) => counts,
        Err(said) => return Ok((None, counted, Some(said))),
    };
    counted.tokens_each = counts.each;
    let added = counts.added;
    if counts.each == 1.0 {
        let said = format!("the server adds {added} tokens to every prompt; prompts are so much shorter");
        return Ok((Some(counts), counted, Some(said).filter(|_| added > 0)));
    }
    let mut came_out = "how far off they come out is not known: none that was tried had a count".to_owned();
    counted.tried = tried(first, &content.clone().counted(counts), &config)?;
    let tried = &counted.tried;
    if let [shortest, .., longest] = &tried[..] {
        let off: u64 = tried.iter().map(|tried| tried.counted.abs_diff(tried.planned)).sum();
        let mean = off as f64 / tried.len() as f64;
        let (number, from, to) = (tried.len(), shortest.planned, longest.planned);
        came_out = format!("{number} that were tried, of {from} to {to} tokens, came out {mean:.1} off on average");
        counted.mean_absolute_error = Some(mean);
    }
    let remedy = if words_are_known { "" } else { "; --tokenizer with its tokenizer.json makes them exact" };
    let said = format!(
        "note: the server counts {:.2} tokens for a word and adds {added} to every prompt: prompts have as many words as \
         make them as long as planned on average; {came_out}{remedy}",
        counts.each
    );
    Ok((Some(counts), counted, Some(said)))
}

/// How the server counts, or why nobody knows.
fn asked(
    first: &Planned,
    content: &Content,
    config: impl Fn(Content) -> Result<Config, Refused>,
) -> Result<Result<Counts, String>, Refused> {
    let count = |words| send(first, words, config(content.clone().even())?);
    let mut counted = Vec::new();
    for words in [SHORT, SHORT + SHARE] {
        match count(words)? {
            Ok(tokens) => counted.push(tokens),
            Err(why) => return Ok(Err(format!("note: the first try failed ({why})"))),
        }
    }
    let [Some(short), Some(long)] = counted[..] else {
        let said = "note: the server does not count prompts; their lengths are as a tokenizer counts words";
        return Ok(Err(said.to_owned()));
    };
    let each = long.saturating_sub(short) as f64 / SHARE as f64;
    if !EACH.contains(&each) {
        return Ok(Err(format!(
            "note: the server counts {short} tokens for {SHORT} words and {long} for {}, which tells nothing of how long \
             prompts will be",
            SHORT + SHARE
        )));
    }
    // Few words are not as the average of all; a share is.
    let share = if each == 1.0 { None } else { count(SHARE)?.ok().flatten() };
    let (words, tokens) = share.map_or((SHORT, short), |tokens| (SHARE, tokens));
    let added = (tokens as f64 - each * words as f64).round().max(0.0) as u64;
    Ok(Ok(Counts { added, each }))
}

/// Prompts of planned lengths as the run's will be, as far as the server counts them.
fn tried(
    first: &Planned,
    content: &Content,
    config: impl Fn(Content) -> Result<Config, Refused>,
) -> Result<Vec<Tried>, Refused> {
    let mut tried = Vec::new();
    for planned in TRIED {
        let Ok(Some(counted)) = send(first, planned, config(content.clone())?)? else { break };
        tried.push(Tried { planned, counted });
    }
    Ok(tried)
}

/// Sends one prompt of so many tokens; how many the server counts, if it does, or why it gives no answer.
fn send(first: &Planned, tokens: u64, config: Config) -> Result<Result<Option<u64>, String>, Refused> {
    // Another number is another text.
    let mut send = Planned { at: Gap::ZERO, number: tokens, ..first.clone() };
    send.entry.prompt = Prompt { tokens: Some(tokens), ..Prompt::default() };
    (send.entry.output_tokens, send.entry.session, send.entry.ending) = (Some(1), None, None);
    // A warm-up leaves out what is sent first, and that is this.
    let config = Config { measured: Measured::default(), ..config };
    let (server, patience) = (config.targets.iter().map(ToString::to_string).collect::<Vec<_>>(), config.timeout);
    let run = Run::start(config, move || Ok([Ok(send)].into_iter()), None)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        while !run.is_over() && run.age() < SILENT {
            Clock::Monotonic.sleep(LOOKS).await;
        }
    });
    if !run.is_over() {
        let server = server.join(" and ");
        crate::cli::say(&format!("waiting for the first answer of {server}, for {patience} at most (--timeout)"));
    }
    let summary = run.finish().summary;
    if summary.outcomes.get("success") == Some(&1) {
        return Ok(Ok((summary.input.compared == 1).then_some(summary.input.tokens)));
    }
    let why = summary.troubles.keys().next().map(|why| (*why).to_owned());
    let why = why.or_else(|| summary.statuses.keys().next().map(|status| format!("answered {status}")));
    Ok(Err(why.unwrap_or_else(|| "no whole answer".into())))
}
