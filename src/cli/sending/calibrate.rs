//! What the server adds to every prompt, by asking it: two short requests of known length, and what it counts.

use super::prepare::Refused;
use crate::capture::format::Prompt;
use crate::measure::time::{Gap, Window};
use crate::replay::schedule::Planned;
use crate::replay::{Config, Run};

/// Lengths of the two prompts, in words.
const WORDS: [u64; 2] = [32, 160];

/// What was found.
pub(super) struct Calibrated {
    /// Tokens that prompts are made shorter by.
    pub(super) added: u64,
    /// What people should know of it.
    pub(super) said: Option<String>,
}

/// Asks by the runner itself, with requests like `first`.
pub(super) fn calibrate(
    first: Option<Planned>,
    config: impl Fn() -> Result<Config, Refused>,
) -> Result<Calibrated, Refused> {
    let none = |said: String| Calibrated { added: 0, said: Some(said) };
    let Some(first) = first else { return Ok(Calibrated { added: 0, said: None }) };
    let mut counted = Vec::new();
    for words in WORDS {
        let mut send = Planned { at: Gap::ZERO, number: words, ..first.clone() };
        send.entry.prompt = Prompt { tokens: Some(words), ..Prompt::default() };
        (send.entry.output_tokens, send.entry.session, send.entry.ending) = (Some(1), None, None);
        // A warm-up leaves out what is sent first, and that is this.
        let config = Config { measured: Window::default(), ..config()? };
        let run = Run::start(config, move || Ok([Ok(send)].into_iter()), None)?;
        let summary = run.finish().summary;
        if summary.outcomes.get("success") != Some(&1) {
            let why = summary.troubles.keys().next().map(|why| (*why).to_owned());
            let why = why.or_else(|| summary.statuses.keys().next().map(|status| format!("answered {status}")));
            return Ok(none(format!(
                "note: the first try failed ({})",
                why.unwrap_or_else(|| "no whole answer".into())
            )));
        }
        counted.extend((summary.input.compared == 1).then_some(summary.input.tokens));
    }
    let [short, long] = counted[..] else {
        return Ok(none(
            "note: the server does not count prompts; their lengths are as a tokenizer counts words".into(),
        ));
    };
    if long.saturating_sub(short) != WORDS[1] - WORDS[0] || short < WORDS[0] {
        let each = long.saturating_sub(short) as f64 / (WORDS[1] - WORDS[0]) as f64;
        return Ok(none(format!(
            "note: the server counts {each:.2} tokens for a word, so prompts will not be as long as planned; \
             --tokenizer with its tokenizer.json makes them so"
        )));
    }
    let added = short - WORDS[0];
    Ok(Calibrated {
        added,
        said: (added > 0)
            .then(|| format!("the server adds {added} tokens to every prompt; prompts are so much shorter")),
    })
}
