//! Counts tokens with local tokenizers for replies without a count from the server, before they are reported.
//!
//! Counting has its own thread. A stream's task only enqueues its collected text ([`ReplyText`]) and never blocks. If
//! too many replies are queued, the next one is reported with the count that it already has. The text is dropped as
//! soon as it is counted. The tokenizers' word caches are disabled, so that no text remains there.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use tokenizers::Tokenizer;

use crate::capture::tokenizer::PromptTokenizer;
use crate::config::TokenizerFile;
use crate::export::control::queue::{FinishedRequest, Reporter};
use crate::measure::glob::glob;
use crate::measure::record::{CountSource, TokenCount};
use crate::measure::text_collector::{ReplyText, TextBudget};

/// Maximum number of replies in the queue.
const MAX_QUEUED_REPLIES: usize = 256;
/// Maximum size of a tokenizer file, in bytes. Common ones are below 40 MiB.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// Reason why a tokenizer file is unusable.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as the tokenizer of {owner}: {reason}", file.display())]
pub struct TokenizerError {
    /// Owner of the tokenizer and its setting.
    owner: String,
    file: PathBuf,
    reason: String,
}

/// Tokenizers with the models that they count for.
struct LoadedTokenizers(Vec<(String, Tokenizer)>);

/// Queues replies for counting and reporting.
pub struct TokenCounter {
    models: Vec<String>,
    budget: TextBudget,
    queue: SyncSender<TokenCountJob>,
    waiting: Arc<AtomicUsize>,
    reporter: Reporter,
}

struct TokenCountJob {
    finished: FinishedRequest,
    text: ReplyText,
}

impl TokenCounter {
    /// Loads the tokenizers and starts the counting thread for `reporter`. Returns `None` without tokenizers.
    ///
    /// # Errors
    /// Returns an error that names the file if a tokenizer is unreadable or invalid.
    pub fn start(files: &[TokenizerFile], reporter: Reporter) -> Result<Option<Self>, TokenizerError> {
        if files.is_empty() {
            return Ok(None);
        }
        let loaded = LoadedTokenizers(files.iter().map(load).collect::<Result<_, _>>()?);
        let (queue, replies) = sync_channel(MAX_QUEUED_REPLIES);
        let waiting = Arc::<AtomicUsize>::default();
        let (counted, reports) = (Arc::clone(&waiting), reporter.clone());
        let body = move || count(&loaded, &replies, &counted, &reports);
        thread::Builder::new().name("tokenizer".to_owned()).spawn(body).map_err(|error| TokenizerError {
            owner: model_owner(&files[0].model),
            file: files[0].path.clone(),
            reason: format!("cannot start a thread: {error}"),
        })?;
        let models = files.iter().map(|file| file.model.clone()).collect();
        Ok(Some(Self { models, budget: TextBudget::default(), queue, waiting, reporter }))
    }

    /// Loads and discards the tokenizers, including that of a capture.
    ///
    /// # Errors
    /// Returns an error that names the file if a tokenizer is unreadable or invalid.
    pub fn check(files: &[TokenizerFile], of_a_capture: Option<&Path>) -> Result<(), TokenizerError> {
        files.iter().try_for_each(|file| load(file).map(drop))?;
        of_a_capture.map_or(Ok(()), |file| load_capture_tokenizer(file).map(drop))
    }

    /// Returns the text budget for a reply of this model, if it has a tokenizer.
    pub fn budget(&self, model: Option<&str>) -> Option<&TextBudget> {
        let model = model.unwrap_or_default();
        self.models.iter().any(|pattern| glob(pattern, model)).then_some(&self.budget)
    }

    /// Counts a finished request's text, then reports the request.
    pub fn finished(&self, finished: FinishedRequest, text: ReplyText) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if let Err(TrySendError::Full(reply) | TrySendError::Disconnected(reply)) =
            self.queue.try_send(TokenCountJob { finished, text })
        {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.reporter.finished(reply.finished);
        }
    }

    /// Returns `true` once all queued replies have been reported.
    pub fn is_idle(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }
}

fn model_owner(model: &str) -> String {
    format!("{model} (--tokenizer)")
}

fn load(file: &TokenizerFile) -> Result<(String, Tokenizer), TokenizerError> {
    let error = |reason| TokenizerError { owner: model_owner(&file.model), file: file.path.clone(), reason };
    let (tokenizer, _) = read(&file.path).map_err(error)?;
    Ok((file.model.clone(), tokenizer))
}

/// Loads the tokenizer for a capture's prompts.
///
/// # Errors
/// Returns an error that names the file if the tokenizer is unreadable or invalid.
pub(super) fn load_capture_tokenizer(file: &Path) -> Result<PromptTokenizer, TokenizerError> {
    let whose = "the capture (--capture-tokenizer)".to_owned();
    let error = |reason| TokenizerError { owner: whose, file: file.to_owned(), reason };
    let (tokenizer, bytes) = read(file).map_err(error)?;
    let encode = move |text: &str| Some(tokenizer.encode_fast(text, false).ok()?.get_ids().to_vec());
    Ok(PromptTokenizer::new(&bytes, Box::new(encode)))
}

/// Reads a tokenizer and also returns its file's bytes.
fn read(path: &Path) -> Result<(Tokenizer, Vec<u8>), String> {
    let mut bytes = Vec::new();
    let opened = File::open(path).map_err(|cause| cause.to_string())?;
    opened.take(MAX_TOKENIZER_BYTES + 1).read_to_end(&mut bytes).map_err(|cause| cause.to_string())?;
    if bytes.len() as u64 > MAX_TOKENIZER_BYTES {
        return Err(format!("it is larger than {MAX_TOKENIZER_BYTES} bytes"));
    }
    let expected = "expected a tokenizer.json as Hugging Face's tokenizers write it";
    let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|cause| format!("{expected}: {cause}"))?;
    // A file's truncation and padding settings are for training and would change the count.
    tokenizer.with_padding(None).with_truncation(None).map_err(|cause| cause.to_string())?;
    let mut model = tokenizer.get_model().clone();
    model.resize_cache(0);
    tokenizer.with_model(model);
    Ok((tokenizer, bytes))
}

/// Counts and reports until all senders are gone.
fn count(loaded: &LoadedTokenizers, replies: &Receiver<TokenCountJob>, waiting: &AtomicUsize, reporter: &Reporter) {
    for TokenCountJob { mut finished, text } in replies {
        let record = &mut finished.record;
        let model = record.shape.model.as_deref().unwrap_or_default();
        if let Some(tokens) = loaded.tokens(model, &text) {
            record.output_tokens = Some(TokenCount { tokens, source: CountSource::Tokenizer });
        }
        drop(text);
        reporter.finished(finished);
        waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl LoadedTokenizers {
    /// Returns the number of tokens in a text, without special tokens (start, end, roles).
    fn tokens(&self, model: &str, text: &ReplyText) -> Option<u64> {
        let (_, tokenizer) = self.0.iter().find(|(pattern, _)| glob(pattern, model))?;
        let mut tokens = 0;
        for part in text.parts() {
            tokens += tokenizer.encode_fast(part, false).ok()?.len() as u64;
        }
        Some(tokens)
    }
}
