//! Which words prompts are made of: those that are one token each, by `--tokenizer` or by the servers' `/tokenize`.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use tokenizers::Tokenizer;

use super::flags::Sending;
use super::prepare::Refused;
use crate::replay::encode::Encoder;
use crate::replay::schedule::Planned;
use crate::replay::target::Target;
use crate::replay::tokenize::{self, Asked};
use crate::trace::words::Words;

/// What is known of the words.
#[derive(Default)]
pub(super) struct Chosen {
    pub(super) words: Words,
    /// Who says that they are one token each, as `run.json` calls it.
    pub(super) by: Option<&'static str>,
    /// What people should know of it.
    pub(super) said: Option<String>,
}

/// Those that are one token each in this file.
pub(super) fn of_file(file: &Path) -> Result<Chosen, Refused> {
    let refused = |said: String| anyhow::anyhow!("cannot use {} as a tokenizer: {said}", file.display());
    let mut tokenizer = Tokenizer::from_file(file).map_err(|error| refused(error.to_string()))?;
    tokenizer.with_padding(None).with_truncation(None).map_err(|error| refused(error.to_string()))?;
    let ids = |text: &str| {
        let tokens = tokenizer.encode_fast(text, false);
        tokens.map_or(Vec::new(), |tokens| tokens.get_ids().iter().copied().map(u64::from).collect())
    };
    let words = Words::of(ids).map_err(refused)?;
    Ok(Chosen { words, by: Some("tokenizer"), said: None })
}

/// Those that are one token each at the servers of these rows, the first of each model.
pub(super) fn of_servers(
    args: &Sending,
    targets: &[Target],
    encoder: &Encoder,
    models: &[Planned],
    tls: Option<Arc<ClientConfig>>,
) -> Result<Chosen, Refused> {
    let (fields, key) = args.fields().and_then(|fields| Ok((fields, args.key()?))).map_err(anyhow::Error::msg)?;
    let asked = |first: &Planned| {
        let form = encoder.form(first).ok()?;
        let own = form.fields(key.as_deref()).map(|(name, value)| (name.to_owned(), value));
        let target = targets.get(encoder.target(first)?)?.clone();
        Some(Asked { target, model: first.entry.model.clone(), fields: own.chain(fields.iter().cloned()).collect() })
    };
    let asked: Vec<Asked> = models.iter().filter_map(asked).collect();
    let all = asked.len();
    let answers: Vec<_> = tokenize::words(asked, tls, args.connect_timeout)?.into_iter().flatten().collect();
    let who = match (answers.len(), all) {
        (0, _) => return Ok(Chosen::default()),
        (1, 1) => "the server's /tokenize".to_owned(),
        (some, all) if some == all => format!("the /tokenize of all {all} models"),
        (some, all) => format!("the /tokenize of {some} of {all} models"),
    };
    let shared = answers.into_iter().reduce(|all, next| all?.shared(&next?)).transpose();
    Ok(match shared {
        Ok(words) => {
            let words = words.unwrap_or_default();
            let said = format!("{who}: {} of {} words are one token each", words.number(), Words::ALL);
            Chosen { words, by: Some("tokenize"), said: Some(said) }
        }
        Err(why) => Chosen { said: Some(format!("note: {who}: {why}")), ..Chosen::default() },
    })
}
