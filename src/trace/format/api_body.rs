//! Shape of requests and replies that a file holds as JSON bodies of an API. The prompt is walked as a capture walks it,
//! so its bytes include the roles; the texts are dropped.

use super::super::TraceProblem;
use super::super::json::{NestedRow, parse, row};
use super::ConversionLosses;
use crate::measure::dialect::finish_reason;
use crate::measure::dialect::for_path;
use crate::measure::dialect::prompt::{MediaLocation, Medium, PromptSink, RequestBody, charge_walk};
use crate::measure::record::CountSource;
use crate::measure::work_budget::{ReserveLimits, WorkBudget, WorkReserve};
use crate::trace_file::row::{PromptPart, RequestParams, TraceEntry};

/// Only the number of values limits a body: reading a file delays no traffic.
const RESERVE: ReserveLimits = ReserveLimits { max_work: u64::MAX, nanos_per_unit: 1 };
/// Maximum non-text parts kept per request; real requests have fewer.
const MAX_PARTS: usize = 1_000;
/// API of bodies without a path, by the key of their prompt.
const PATHS: [(&str, &str); 3] =
    [("messages", "/v1/chat/completions"), ("prompt", "/v1/completions"), ("input", "/v1/responses")];

row!(Reply { model: String, usage: NestedRow<Usage>, choices: Vec<NestedRow<Choice>> });
row!(Choice { finish_reason: String });
row!(Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    input_tokens: u64,
    output_tokens: u64,
    prompt_tokens_details: NestedRow<CachedTokens>,
    input_tokens_details: NestedRow<CachedTokens>,
});
row!(CachedTokens { cached_tokens: u64 });

/// Sizes of a prompt.
#[derive(Default)]
struct PromptSize {
    bytes: u64,
    parts: Vec<PromptPart>,
}

impl PromptSink for PromptSize {
    fn mark(&mut self, _: &[u8]) {}

    fn text(&mut self, text: &str) {
        self.bytes += text.len() as u64;
    }

    fn word(&mut self, word: &str) {
        self.text(word);
    }

    fn part(&mut self, medium: Medium, _: MediaLocation<'_>) {
        if self.parts.len() < MAX_PARTS {
            self.parts.push(PromptPart { kind: medium.into(), bytes: None, size: None });
        }
    }

    fn message_ends(&mut self, _: bool) {}
}

/// Sets the fields that a request body determines. `path` is the API's, if the file has it.
pub(super) fn set_request(entry: &mut TraceEntry, body: &[u8], path: Option<&str>) -> Result<(), TraceProblem> {
    let mut budget = WorkBudget::with_reserve(&WorkReserve::new(RESERVE));
    if charge_walk(body, &mut budget).is_err() {
        return Err(TraceProblem::new("a request of more than a million values").with_remedy("remove the row"));
    }
    let body = RequestBody::read(body);
    let mut body = body.ok_or_else(|| TraceProblem::new("expected the JSON object of a request"))?;
    let mut size = PromptSize::default();
    let paths = path.into_iter().chain(PATHS.iter().map(|(_, path)| *path));
    let mut dialects = paths.filter_map(|path| for_path(path.split('?').next().unwrap_or_default()));
    let Some(dialect) = dialects.find(|dialect| body.prompt(dialect, &mut size)) else {
        return Err(TraceProblem::new("a request without `messages`, `prompt` or `input`")
            .with_remedy("keep the requests of one API for text"));
    };
    let count = |key: &str| body.text(key).and_then(|number| number.parse().ok());
    let extras = body.extras();
    entry.dialect = Some(dialect.name.to_owned());
    entry.model = body.text("model");
    entry.prompt.bytes = Some(size.bytes);
    entry.prompt.parts = size.parts;
    entry.params = RequestParams {
        max_tokens: ["max_completion_tokens", "max_output_tokens", "max_tokens"].into_iter().find_map(count),
        n: count("n"),
        temperature: body.text("temperature").and_then(|number| number.parse().ok()),
        min_tokens: extras.min_tokens,
        ignore_eos: extras.ignore_eos,
        logprobs: extras.logprobs,
        tools: extras.tools,
        structured: extras.structured,
    };
    Ok(())
}

/// Sets the fields that a reply determines: a JSON document, or an event stream whose last events have the usage.
/// Fields that cannot be read stay unknown.
pub(super) fn set_reply(entry: &mut TraceEntry, body: &[u8]) {
    let ignored = ConversionLosses::default();
    let events = || body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    let replies: Vec<Reply> = match parse(body, &ignored) {
        Ok(reply) => vec![reply],
        Err(_) => events().filter_map(|event| parse(event.trim_ascii(), &ignored).ok()).collect(),
    };
    for reply in replies {
        entry.model = entry.model.take().or(reply.model);
        for NestedRow(choice) in reply.choices.into_iter().flatten() {
            entry.finish = choice.finish_reason.as_deref().and_then(finish_reason).or(entry.finish);
        }
        let Some(NestedRow(usage)) = reply.usage else { continue };
        let details = usage.prompt_tokens_details.or(usage.input_tokens_details);
        entry.prompt.tokens = usage.prompt_tokens.or(usage.input_tokens);
        entry.prompt.source = entry.prompt.tokens.map(|_| CountSource::Usage);
        entry.prompt.cached = details.and_then(|NestedRow(details)| details.cached_tokens);
        entry.output_tokens = usage.completion_tokens.or(usage.output_tokens);
        entry.output_source = entry.output_tokens.map(|_| CountSource::Usage);
    }
}
