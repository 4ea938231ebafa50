//! Selects the words for prompts: words of one token each, from `--tokenizer` or the servers' `/tokenize`.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use tokenizers::Tokenizer;

use super::error::SetupError;
use super::flags::RunnerArgs;
use crate::replay::plan::schedule::ScheduledRequest;
use crate::replay::request::encoder::RequestEncoder;
use crate::replay::request::tokenize;
use crate::replay::request::tokenize::TokenizeEndpoint;
use crate::replay::sender::target::TargetUrl;
use crate::trace::vocabulary::Vocabulary;

/// A vocabulary and its source.
#[derive(Default)]
pub(super) struct VocabularyChoice {
    pub(super) words: Vocabulary,
    /// The source in `run.json`; `None` if the words were not checked.
    pub(super) source: Option<&'static str>,
    /// A note for the user.
    pub(super) note: Option<String>,
}

/// Reads a `tokenizer.json`.
pub(in crate::cli) fn read_tokenizer(file: &Path) -> anyhow::Result<Tokenizer> {
    let refused = |message: String| anyhow::anyhow!("cannot use {} as a tokenizer: {message}", file.display());
    let mut tokenizer = Tokenizer::from_file(file).map_err(|error| refused(error.to_string()))?;
    tokenizer.with_padding(None).with_truncation(None).map_err(|error| refused(error.to_string()))?;
    Ok(tokenizer)
}

/// The words of one token each in a `tokenizer.json`.
pub(super) fn from_tokenizer_file(file: &Path) -> Result<VocabularyChoice, SetupError> {
    let refused = |message: String| anyhow::anyhow!("cannot use {} as a tokenizer: {message}", file.display());
    let tokenizer = read_tokenizer(file)?;
    let ids = |text: &str| {
        let tokens = tokenizer.encode_fast(text, false);
        tokens.map_or(Vec::new(), |tokens| tokens.get_ids().iter().copied().map(u64::from).collect())
    };
    let words = Vocabulary::from_tokenizer(ids).map_err(refused)?;
    Ok(VocabularyChoice { words, source: Some("tokenizer"), note: None })
}

/// The words of one token each on the servers of these rows, which are the first of each model.
pub(super) fn from_servers(
    args: &RunnerArgs,
    targets: &[TargetUrl],
    encoder: &RequestEncoder,
    models: &[ScheduledRequest],
    tls: Option<Arc<ClientConfig>>,
) -> Result<VocabularyChoice, SetupError> {
    let (fields, key) = args
        .connections
        .fields()
        .and_then(|fields| Ok((fields, args.connections.key()?)))
        .map_err(anyhow::Error::msg)?;
    let endpoint = |first: &ScheduledRequest| {
        let form = encoder.template(first).ok()?;
        let own = form.fields(key.as_deref()).map(|(name, value)| (name.to_owned(), value));
        let target = targets.get(encoder.target(first)?)?.clone();
        Some(TokenizeEndpoint {
            target,
            model: first.entry.model.clone(),
            fields: own.chain(fields.iter().cloned()).collect(),
        })
    };
    let endpoints: Vec<TokenizeEndpoint> = models.iter().filter_map(endpoint).collect();
    let all = endpoints.len();
    let answers: Vec<_> = tokenize::fetch_single_token_words(endpoints, tls, args.connections.connect_timeout)?
        .into_iter()
        .flatten()
        .collect();
    let who = match (answers.len(), all) {
        (0, _) => return Ok(VocabularyChoice::default()),
        (1, 1) => "the server's /tokenize".to_owned(),
        (some, all) if some == all => format!("the /tokenize of all {all} models"),
        (some, all) => format!("the /tokenize of {some} of {all} models"),
    };
    let shared = answers.into_iter().reduce(|all, next| all?.intersection(&next?)).transpose();
    Ok(match shared {
        Ok(words) => {
            let words = words.unwrap_or_default();
            let note = format!("{who}: {} of {} words are one token each", words.word_count(), Vocabulary::COUNT);
            VocabularyChoice { words, source: Some("tokenize"), note: Some(note) }
        }
        Err(why) => VocabularyChoice { note: Some(format!("note: {who}: {why}")), ..VocabularyChoice::default() },
    })
}
