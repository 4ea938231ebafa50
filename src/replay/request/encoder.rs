//! Encodes a row into the bytes of its request. Pure, and deterministic across processes.

use super::client_abort::ClientAbort;
use super::conversation::{ConversationHistory, ConversationTurn};
use super::http_request::encode_http_request;
use super::template::{DEFAULT_DIALECT, ExactOutput, OwnFields, RequestTemplate};
use crate::measure::glob::glob;
use crate::measure::record::RequestRecord;
use crate::measure::text_collector::ReplyText;
use crate::measure::time::Gap;
use crate::replay::plan::schedule::{ScheduledRequest, scale_time};
use crate::replay::sender::target::TargetUrl;
use crate::stats::hash::mix;
use crate::trace::prompt_text::PromptGenerator;
use crate::trace::rng::{name_hash, uniform};
use crate::trace_file::PROBE_HEADER;
use crate::trace_file::row::{RequestTargets, TraceEntry};

/// Longest prompt: 64 MiB of text, more than ten times the longest context that servers offer.
const MAX_PROMPT_TOKENS: u64 = 16 << 20;

/// Encodes requests for a set of targets.
#[derive(Clone)]
pub struct RequestEncoder {
    content: PromptGenerator,
    /// Each target, and whether requests ask it for an exact output length.
    targets: Vec<(TargetUrl, bool)>,
    /// Model pattern of each target; `None` accepts all models.
    patterns: Vec<Option<String>>,
    /// Overrides the dialect of every row.
    dialect: Option<&'static RequestTemplate>,
    /// For rows that name no dialect.
    default_template: &'static RequestTemplate,
    /// Additional header lines, as (name, value). They may hold credentials: never log or store them.
    fields: Vec<(String, String)>,
    /// API key: never log or store it.
    key: Option<String>,
    cancel: Option<CancelPolicy>,
    own: OwnFields,
    seed: u64,
}

/// Injects client aborts in addition to those of the trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CancelPolicy {
    /// Share of requests, from 0 to 1.
    pub rate: f64,
    /// The point of the abort.
    pub after: ClientAbort,
}

impl RequestEncoder {
    /// Creates an encoder for these targets.
    ///
    /// # Errors
    /// `dialect` has no request template.
    pub fn new(
        content: PromptGenerator,
        targets: Vec<TargetUrl>,
        dialect: Option<&str>,
        fields: Vec<(String, String)>,
        exact: ExactOutput,
        cancel: Option<CancelPolicy>,
        seed: u64,
    ) -> Result<Self, String> {
        let dialect = dialect.map(RequestTemplate::named).transpose()?;
        let targets = targets.into_iter().map(|target| (target.clone(), exact.applies_to(&target.host))).collect();
        Ok(Self {
            content,
            targets,
            patterns: Vec::new(),
            dialect,
            default_template: RequestTemplate::named(DEFAULT_DIALECT)?,
            fields,
            key: None,
            cancel,
            own: OwnFields::default(),
            seed,
        })
    }

    /// Adds an API key, in each dialect's own header line.
    pub fn with_key(mut self, key: Option<String>) -> Self {
        self.key = key;
        self
    }

    /// Adds fields to every body.
    pub fn with_own_fields(mut self, own: OwnFields) -> Self {
        self.own = own;
        self
    }

    /// Marks every request as a probe. Captures skip probes.
    pub fn for_probes(mut self) -> Self {
        self.fields.push((PROBE_HEADER.to_owned(), "1".to_owned()));
        self
    }

    /// Prompt tokens of a row, as the server counts them.
    pub fn prompt_tokens(&self, entry: &TraceEntry) -> u64 {
        self.content.tokens(entry)
    }

    /// The request template for a row.
    ///
    /// # Errors
    /// The row's dialect has no template, or its prompt is longer than the maximum.
    pub fn template(&self, send: &ScheduledRequest) -> Result<&'static RequestTemplate, String> {
        let tokens = self.content.tokens(&send.entry);
        if tokens > MAX_PROMPT_TOKENS {
            return Err(format!(
                "request {} of the plan has a prompt of {tokens} tokens, and none of more than {MAX_PROMPT_TOKENS} is made; \
                 `streamgauge trace info` shows the lengths of a trace",
                send.number
            ));
        }
        match (self.dialect, &send.entry.dialect) {
            (Some(form), _) => Ok(form),
            (None, Some(name)) => RequestTemplate::named(name),
            (None, None) => Ok(self.default_template),
        }
    }

    /// Restricts each target that has a pattern to the models that match it.
    pub fn with_patterns(mut self, patterns: Vec<Option<String>>) -> Self {
        self.patterns = patterns;
        self
    }

    /// Selects the target of a row; `None` if no target accepts its model. Targets for its model come before those for
    /// all models. Rows alternate between targets, and a session stays with one.
    pub fn target(&self, send: &ScheduledRequest) -> Option<usize> {
        let number = send.entry.session.as_deref().map_or(send.number, name_hash);
        let model = send.entry.model.as_deref().unwrap_or_default();
        let pattern = |at: usize| self.patterns.get(at).and_then(Option::as_deref);
        let for_it: Vec<usize> =
            (0..self.targets.len()).filter(|at| pattern(*at).is_some_and(|pattern| glob(pattern, model))).collect();
        let of = if for_it.is_empty() {
            (0..self.targets.len()).filter(|at| pattern(*at).is_none()).collect()
        } else {
            for_it
        };
        of.get((number % of.len().max(1) as u64) as usize).copied()
    }

    /// The planned values of a row's request. `stretch` is run time per trace time.
    pub fn planned_values(&self, send: &ScheduledRequest, stretch: f64) -> RequestTargets {
        let (entry, leave) = (&send.entry, self.client_abort(send));
        RequestTargets {
            input_tokens: Some(self.content.tokens(&send.entry)),
            output_tokens: entry.output_tokens.filter(|_| !entry.is_aborted()),
            think: entry.think.map(|think| scale_time(think, stretch).as_nanos()),
            abort_tokens: leave
                .and_then(|leave| if let ClientAbort::Tokens(tokens) = leave { Some(tokens) } else { None }),
            abort_after: leave
                .and_then(|leave| if let ClientAbort::After(gap) = leave { Some(gap.as_nanos()) } else { None }),
        }
    }

    /// The point at which a row's client aborts.
    pub fn client_abort(&self, send: &ScheduledRequest) -> Option<ClientAbort> {
        let entry = &send.entry;
        let left = entry.is_aborted();
        let after_send = || {
            let ended = entry.timing.ended?;
            Some(ClientAbort::After(Gap::from_nanos(ended.saturating_sub(entry.timing.sent.unwrap_or(0)))))
        };
        let captured = match entry.abort_tokens.filter(|_| left) {
            Some(tokens) if tokens > 0 => Some(ClientAbort::Tokens(tokens)),
            _ => after_send().filter(|_| left),
        };
        let drawn = self.cancel.filter(|cancel| uniform(self.seed ^ 0x6c65_6176, send.number) < cancel.rate);
        captured.or(drawn.map(|cancel| cancel.after))
    }

    /// The first turn of a live session, or with `history` a later one. The inner `Option` is `None` if the history is
    /// lost.
    pub fn turn(
        &self,
        send: &ScheduledRequest,
        form: &RequestTemplate,
        history: Option<Option<ConversationHistory>>,
    ) -> ConversationTurn {
        match history {
            None => ConversationTurn::first(&self.content, send),
            Some(history) => ConversationTurn::later(
                &self.content,
                send,
                history,
                if form.roles { self.content.template_tokens(&send.entry) } else { 0 },
            ),
        }
    }

    /// The history for the turn after this one.
    pub fn next_history(
        &self,
        turn: ConversationTurn,
        send: &ScheduledRequest,
        record: &RequestRecord,
        text: Option<ReplyText>,
    ) -> Option<ConversationHistory> {
        turn.next_history(&self.content, send, record, text, self.content.tokens(&send.entry))
    }

    /// Encodes a row's request; returns its bytes and the offset of its body. A live session's turn brings its own
    /// prompt.
    pub fn encode(
        &self,
        send: &ScheduledRequest,
        form: &RequestTemplate,
        target: usize,
        turn: Option<&ConversationTurn>,
    ) -> (Vec<u8>, usize) {
        let (target, exact) = &self.targets[target % self.targets.len()];
        let seed = mix(self.seed ^ mix(send.number) ^ 0x7069_7865_6c00);
        let body = match turn {
            Some(turn) => form.body(&send.entry, turn.past_turns(), turn.prompt(), *exact, seed, &self.own),
            None => form.body(&send.entry, &[], &self.content.text(&send.row()), *exact, seed, &self.own),
        };
        let own = form.fields(self.key.as_deref()).map(|(name, value)| (name.to_owned(), value));
        let slo = send.entry.request_slo().fields().map(|(name, value)| (name.to_owned(), value));
        encode_http_request(target, form.path(), own.chain(slo).chain(self.fields.iter().cloned()), &body)
    }
}
