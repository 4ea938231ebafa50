//! The one aggregation: records in, series out.
//!
//! Single-threaded: the control runtime owns it, and every exporter reads the same [`Snapshot`]. What each instrument
//! takes from a record:
//!
//! | instrument | taken from |
//! |---|---|
//! | `http.*` | every request that was served; those of a run are not |
//! | `replay.*` | every request of a run |
//! | everything below | requests of a dialect |
//! | request duration | all, with `error.type` where there was no whole answer |
//! | TTFT, phases, TPOT, the gaps that are left at the end | successes only; TPOT with two tokens or more |
//! | gaps and stalls of long streams | as they come (once a second): whether the stream will be a success is not known then, and a stream that fails after minutes has still delivered those tokens at that pace |
//! | usage | where the server reported it |
//! | `stream.output_tokens` | progress by its source; at the end the rest, by the final source |
//! | `stream.terminations` | streams |
//! | `slo.*` | the record's own verdicts |
//! | `proxy.overhead` | all |

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::catalog::{Convention, Id};
use super::endings::{error_type, http_error_type, termination};
use super::labels::{Sym, Symbols};
use super::levels::known_method;
use super::models::Models;
use super::series::{Distribution, Series};
use super::snapshot::{Moment, Snapshot};
use super::trace_context::RequestTrace;
use crate::measure::dialect::Dialect;
use crate::measure::observer::Progress;
use crate::measure::record::{Outcome, RequestRecord, TokenCount};
use crate::measure::shape::RequestShape;
use crate::measure::slo::{Slos, Verdict};
use crate::measure::time::{Gap, Stamp};
use crate::measure::timeline::{Method, TokenEvent};

/// Models that have series of their own unless configured otherwise: a server has a handful, and each costs some
/// 30 KiB here and 400 series at the backend.
pub const DEFAULT_MAX_MODELS: usize = 100;

/// How to count.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The objectives whose limits become bounds of histograms.
    pub slos: Arc<Slos>,
    /// Most models with series of their own.
    pub max_models: usize,
    /// `gen_ai.provider.name`; by default whose API the dialect is.
    pub provider: Option<String>,
    /// `url.scheme` of the listener.
    pub scheme: &'static str,
    /// The set of `gen_ai.*` names.
    pub convention: Convention,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slos: Arc::default(),
            max_models: DEFAULT_MAX_MODELS,
            provider: None,
            scheme: "http",
            convention: Convention::default(),
        }
    }
}

impl Settings {
    /// `gen_ai.provider.name` for a dialect, in the conventions' word where they have one.
    pub(super) fn provider_of(&self, dialect: &'static Dialect) -> &str {
        let whose = || match dialect.name.split('.').next().unwrap_or(dialect.name) {
            "bedrock" => "aws.bedrock",
            "gemini" => "gcp.gemini",
            whose => whose,
        };
        self.provider.as_deref().unwrap_or_else(whose)
    }
}

/// Counts records.
#[derive(Debug)]
pub struct Aggregate {
    settings: Settings,
    symbols: Symbols,
    models: Models,
    /// By [`Id`].
    series: Vec<Series>,
}

/// One record's circumstances.
#[derive(Clone, Copy)]
struct Entry<'a> {
    moment: Moment,
    /// The time and the trace of its exemplars.
    exemplar: Option<(Stamp, &'a RequestTrace)>,
    model: Sym,
}

impl Aggregate {
    /// Nothing counted yet.
    pub fn new(settings: Settings) -> Self {
        let series = Id::all().map(|id| Series::new(id, settings.convention, &settings.slos)).collect();
        let models = Models::new(settings.max_models);
        Self { settings, symbols: Symbols::default(), models, series }
    }

    /// From now on it counts like this. Histograms whose bounds move with an SLO begin again, which every reader of
    /// counters understands; what else has been counted stays.
    pub fn apply(&mut self, settings: Settings) {
        self.series.iter_mut().for_each(|series| series.refit(settings.convention, &settings.slos));
        self.models.limit(settings.max_models);
        self.settings = settings;
    }

    /// How it counts.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The name under which a model is shown: itself if it was admitted.
    pub fn shown(&self, model: &str) -> Arc<str> {
        self.models.shown(model, &self.symbols)
    }

    /// One finished request. `kept` is its trace, if its spans are exported: an exemplar must lead somewhere.
    pub fn finished(&mut self, record: &RequestRecord, kept: Option<&RequestTrace>, moment: Moment) {
        let exemplar = kept.map(|trace| (record.times.ended, trace));
        let entry = Entry { moment, exemplar, model: Sym::default() };
        self.http(record, entry);
        self.measured(record, entry);
    }

    /// One finished request of a run, which was sent so much later than planned.
    pub fn replayed(&mut self, record: &RequestRecord, lag: Gap, moment: Moment) {
        let entry = Entry { moment, exemplar: None, model: Sym::default() };
        let outcome = self.symbols.text(record.outcome.name());
        self.count(Id::ReplayRequests, &[outcome], 1, entry);
        self.record(Id::ReplayLag, &[], lag.as_nanos(), entry);
        self.measured(record, entry);
    }

    fn measured(&mut self, record: &RequestRecord, mut entry: Entry<'_>) {
        let Some(dialect) = record.shape.dialect else { return };
        let answered = matches!(record.status, Some(200..=299));
        entry.model = self.models.admit(record.shape.model.as_deref(), answered, &mut self.symbols);
        let gen_ai = self.gen_ai(&record.shape, dialect, entry.model);

        let error = error_type(record).map_or(Sym::default(), |error| self.symbols.text(&error));
        self.record(Id::RequestDuration, &with(gen_ai, error), record.duration().as_nanos(), entry);
        if record.outcome == Outcome::Success {
            self.latencies(record, gen_ai, entry);
            self.gaps(&record.gaps, entry);
        }
        self.usage(record, gen_ai, entry);
        if let Some(TokenCount { tokens, source }) = record.output_tokens {
            let rest = tokens.saturating_sub(record.tokens_reported);
            self.tokens(TokenCount { tokens: rest, source }, entry);
        }
        self.stalls(record.stalls, entry);
        if let Some(reason) = termination(record) {
            let reason = self.symbols.text(reason);
            let token = self.symbols.truth(record.times.first_token.is_some());
            self.count(Id::Terminations, &[entry.model, reason, token], 1, entry);
        }
        self.judge(record, entry);
        self.overheads("request", record.request_overhead.map(Gap::as_nanos), entry);
        self.overheads("response_head", record.head_overhead.map(Gap::as_nanos), entry);
        self.overheads("chunk", record.chunk_overheads.iter().copied().map(u64::from), entry);
    }

    /// What moved in a long stream. Its tokens prove that the server answers to the model's name.
    pub fn progress(&mut self, progress: &Progress, moment: Moment) {
        let model = self.models.admit(progress.shape.model.as_deref(), true, &mut self.symbols);
        let entry = Entry { moment, exemplar: None, model };
        self.gaps(&progress.gaps, entry);
        self.stalls(progress.stalls, entry);
        self.tokens(progress.tokens, entry);
        self.overheads("chunk", progress.chunk_overheads.iter().copied().map(u64::from), entry);
    }

    /// Everything counted so far.
    pub fn snapshot(&self, moment: Moment) -> Snapshot {
        Snapshot { unix: moment.unix, families: self.series.iter().filter_map(Series::snapshot).collect() }
    }

    /// Of what was counted so far, these instruments.
    pub(super) fn snapshot_of(&self, ids: &[Id], moment: Moment) -> Snapshot {
        // Series are in the order of their ids, as families are.
        let asked = self.series.iter().filter(|series| ids.contains(&series.id()));
        Snapshot { unix: moment.unix, families: asked.filter_map(Series::snapshot).collect() }
    }

    fn http(&mut self, record: &RequestRecord, entry: Entry<'_>) {
        let symbols = &mut self.symbols;
        let route = record.shape.route();
        let key = [
            symbols.text(known_method(&record.shape.method)),
            symbols.text(self.settings.scheme),
            if route.is_empty() { Sym::default() } else { symbols.text(route) },
            record.status.map_or(Sym::default(), |status| symbols.number(i64::from(status))),
            http_error_type(record).map_or(Sym::default(), |error| symbols.text(&error)),
        ];
        self.record(Id::HttpDuration, &key, record.duration().as_nanos(), entry);
    }

    /// The attributes that all `gen_ai.*` instruments have.
    fn gen_ai(&mut self, shape: &RequestShape, dialect: &'static Dialect, model: Sym) -> [Sym; 5] {
        let symbols = &mut self.symbols;
        let (address, port) = match &shape.server {
            Some((address, port)) => (symbols.text(address), symbols.number(i64::from(*port))),
            None => Default::default(),
        };
        [symbols.text(dialect.operation), symbols.text(self.settings.provider_of(dialect)), model, address, port]
    }

    fn latencies(&mut self, record: &RequestRecord, gen_ai: [Sym; 5], entry: Entry<'_>) {
        let times = &record.times;
        if let Some(ttft) = record.ttft() {
            self.record(Id::TimeToFirstToken, &gen_ai, ttft.as_nanos(), entry);
            if let Some(rest) = record.output_tokens.and_then(|count| count.tokens.checked_sub(1)).filter(|n| *n > 0) {
                let after_first = Gap::from_nanos(record.duration().as_nanos().saturating_sub(ttft.as_nanos()));
                self.record(Id::TimePerOutputToken, &gen_ai, after_first.divided_by(rest).as_nanos(), entry);
            }
        }
        if !record.streamed {
            return;
        }
        for (phase, at) in [
            ("headers", times.head),
            ("first_byte", times.first_byte),
            ("evidence", times.first_evidence),
            ("first_reasoning", times.first_reasoning),
            ("first_output", times.first_output),
        ] {
            if let Some(at) = at {
                let phase = self.symbols.text(phase);
                self.record(Id::TimeToPhase, &[entry.model, phase], at.since(times.received).as_nanos(), entry);
            }
        }
        if let Some(tokens) = record.first_event_tokens {
            self.record(Id::TokensPerChunk, &[entry.model], u64::from(tokens), Entry { exemplar: None, ..entry });
        }
    }

    fn gaps(&mut self, gaps: &[TokenEvent], entry: Entry<'_>) {
        for method in Method::ALL {
            let of_method = |gap: &TokenEvent| Some(gap.latency()).filter(|(_, how)| *how == method);
            let mut latencies = gaps.iter().filter_map(of_method).map(|(latency, _)| latency.as_nanos()).peekable();
            if latencies.peek().is_none() {
                continue;
            }
            let method = self.symbols.text(method.name());
            let Some(series) = self.distribution(Id::InterTokenLatency, &[entry.model, method], entry) else { return };
            let mut longest = 0;
            for latency in latencies {
                series.record(latency);
                longest = longest.max(latency);
            }
            if let Some((at, trace)) = entry.exemplar {
                series.exemplify(longest, trace, at, entry.moment);
            }
        }
        let mut tokens = gaps.iter().filter_map(|gap| gap.tokens()).peekable();
        if tokens.peek().is_some()
            && let Some(series) = self.distribution(Id::TokensPerChunk, &[entry.model], entry)
        {
            tokens.for_each(|tokens| series.record(u64::from(tokens)));
        }
    }

    fn usage(&mut self, record: &RequestRecord, gen_ai: [Sym; 5], entry: Entry<'_>) {
        let usage = record.usage;
        let modality = self.symbols.text("unknown");
        for (kind, tokens, histogram, total) in [
            ("input", usage.input, Id::InputTokens, Id::UsageInput),
            ("output", usage.output, Id::OutputTokens, Id::UsageOutput),
        ] {
            if let Some(tokens) = tokens {
                let kind = self.symbols.text(kind);
                self.record(Id::TokenUsage, &with(gen_ai, kind), tokens, entry);
                self.record(histogram, &gen_ai, tokens, entry);
                self.count(total, &with(gen_ai, modality), tokens, entry);
            }
        }
        for (tokens, total) in [(usage.cached, Id::UsageCached), (usage.reasoning, Id::UsageReasoning)] {
            if let Some(tokens) = tokens {
                self.count(total, &with(gen_ai, modality), tokens, entry);
            }
        }
    }

    fn tokens(&mut self, count: TokenCount, entry: Entry<'_>) {
        let source = self.symbols.text(count.source.name());
        self.count(Id::StreamTokens, &[entry.model, source], count.tokens, entry);
    }

    fn stalls(&mut self, stalls: u32, entry: Entry<'_>) {
        self.count(Id::Stalls, &[entry.model], u64::from(stalls), entry);
    }

    fn judge(&mut self, record: &RequestRecord, entry: Entry<'_>) {
        let slos = Arc::clone(&record.slos);
        for (slo, verdict) in slos.verdicts(record) {
            let slo = self.symbols.text(slo.name());
            let (result, tokens) = match &verdict {
                Verdict::Met => ("met", record.output_tokens.map_or(0, |count| count.tokens)),
                Verdict::Missed(_) => ("missed", 0),
                Verdict::Excluded => ("excluded", 0),
            };
            // All of them appear with the first request, so that a ratio of theirs always has both sides.
            for each in ["met", "missed", "excluded"] {
                let name = self.symbols.text(each);
                self.count(Id::SloRequests, &[entry.model, slo, name], u64::from(each == result), entry);
            }
            self.count(Id::SloTokens, &[entry.model, slo], tokens, entry);
            if let Verdict::Missed(objectives) = verdict {
                for objective in objectives {
                    let objective = self.symbols.text(objective);
                    self.count(Id::SloViolations, &[entry.model, slo, objective], 1, entry);
                }
            }
        }
    }

    fn overheads(&mut self, stage: &str, nanos: impl IntoIterator<Item = u64>, entry: Entry<'_>) {
        let mut nanos = nanos.into_iter().peekable();
        if nanos.peek().is_some() {
            let stage = self.symbols.text(stage);
            if let Some(series) = self.distribution(Id::ProxyOverhead, &[stage], entry) {
                nanos.for_each(|nanos| series.record(nanos));
            }
        }
    }

    fn record(&mut self, id: Id, key: &[Sym], raw: u64, entry: Entry<'_>) {
        if let Some(series) = self.distribution(id, key, entry) {
            series.record(raw);
            if let Some((at, trace)) = entry.exemplar {
                series.exemplify(raw, trace, at, entry.moment);
            }
        }
    }

    fn distribution(&mut self, id: Id, key: &[Sym], entry: Entry<'_>) -> Option<&mut Distribution> {
        self.series.get_mut(id as usize)?.distribution(key, &self.symbols, entry.moment)
    }

    fn count(&mut self, id: Id, key: &[Sym], more: u64, entry: Entry<'_>) {
        if let Some(series) = self.series.get_mut(id as usize) {
            series.add(key, more, &self.symbols, entry.moment);
        }
    }
}

fn with(gen_ai: [Sym; 5], one_more: Sym) -> [Sym; 6] {
    let [operation, provider, model, address, port] = gen_ai;
    [operation, provider, model, address, port, one_more]
}
