//! The one aggregation: records in, series out.
//!
//! Single-threaded: the control runtime owns it, and every exporter reads the same [`Snapshot`]. What each instrument
//! takes from a record:
//!
//! | instrument | taken from |
//! |---|---|
//! | `http.*`, `streamgauge.http.responses` | every request that was served; those of a run are not |
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

mod responses;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ahash::AHashSet;

pub use settings::{DEFAULT_MAX_MODELS, Settings};

use super::catalog::Id;
use super::endings::{error_type, http_error_type, known_status, termination};
use super::kinds::{GenAi, KindAt, Kinds};
use super::labels::{Sym, Symbols};
use super::levels::known_method;
use super::models::Models;
use super::series::{Distribution, Series};
use super::snapshot::{Moment, Snapshot};
use super::trace_context::RequestTrace;
use crate::measure::observer::Progress;
use crate::measure::record::{Outcome, RequestRecord, TokenCount};
use crate::measure::shape::RequestShape;
use crate::measure::slo::Verdict;
use crate::measure::time::Gap;
use crate::measure::timeline::{Method, TokenEvent};

/// Counts records.
#[derive(Debug)]
pub struct Aggregate {
    settings: Settings,
    symbols: Symbols,
    models: Models,
    kinds: Kinds,
    /// Models whose responses have been [announced](Aggregate::announce).
    announced: AHashSet<Sym>,
    /// By [`Id`].
    series: Vec<Series>,
}

/// One record's circumstances.
#[derive(Clone, Copy)]
struct Entry<'a> {
    moment: Moment,
    /// The trace of its exemplars, and their time in nanoseconds since 1970.
    exemplar: Option<(&'a RequestTrace, u64)>,
    model: Sym,
    /// Where its series are known from.
    kind: Option<KindAt>,
}

/// Names a series of one record: the instrument, and which of those that it has for requests of a kind.
type Which = (Id, usize);

impl Aggregate {
    /// Nothing counted yet.
    pub fn new(settings: Settings) -> Self {
        let series = Id::all().map(|id| Series::new(id, settings.convention, &settings.slos)).collect();
        let models = Models::new(settings.max_models);
        Self {
            settings,
            symbols: Symbols::default(),
            models,
            kinds: Kinds::default(),
            announced: AHashSet::new(),
            series,
        }
    }

    /// From now on it counts like this. Histograms whose bounds move with an SLO begin again, which every reader of
    /// counters understands; what else has been counted stays.
    pub fn apply(&mut self, settings: Settings) {
        self.series.iter_mut().for_each(|series| series.refit(settings.convention, &settings.slos));
        self.models.limit(settings.max_models);
        self.kinds = Kinds::default();
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
        let exemplar = kept.map(|trace| (trace, moment.unix_of(record.times.ended)));
        let (entry, gen_ai) = self.entry(record, Entry { moment, exemplar, model: Sym::default(), kind: None });
        self.http(record, entry);
        self.response(record, entry);
        self.measured(record, gen_ai, entry);
    }

    /// One finished request of a run, which was sent so much later than planned.
    pub fn replayed(&mut self, record: &RequestRecord, lag: Gap, moment: Moment) {
        let entry = Entry { moment, exemplar: None, model: Sym::default(), kind: None };
        self.count((Id::ReplayRequests, 0), 1, entry, |symbols| [symbols.text(record.outcome.name())]);
        self.record((Id::ReplayLag, 0), lag.as_nanos(), entry, |_| []);
        let (entry, gen_ai) = self.entry(record, entry);
        self.measured(record, gen_ai, entry);
    }

    /// The entry with the record's model and kind, and what all `gen_ai.*` instruments have of it.
    fn entry<'a>(&mut self, record: &RequestRecord, entry: Entry<'a>) -> (Entry<'a>, GenAi) {
        let Self { settings, symbols, models, kinds, .. } = self;
        let shape = &*record.shape;
        let mut model = Sym::default();
        if shape.dialect.is_some() {
            let answered = matches!(record.status, Some(200..=299));
            model = models.admit(shape.model.as_deref(), answered, symbols);
        }
        let (kind, gen_ai) = kinds.of(record, model, || gen_ai(shape, model, settings, symbols));
        (Entry { model, kind, ..entry }, gen_ai)
    }

    fn measured(&mut self, record: &RequestRecord, gen_ai: GenAi, entry: Entry<'_>) {
        if record.shape.dialect.is_none() {
            return;
        }
        self.record((Id::RequestDuration, 0), record.duration().as_nanos(), entry, |symbols| {
            with(gen_ai, error_type(record).map_or(Sym::default(), |error| symbols.text(&error)))
        });
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
            let token = record.times.first_token.is_some();
            self.count((Id::Terminations, usize::from(token)), 1, entry, |symbols| {
                [entry.model, symbols.text(reason), symbols.truth(token)]
            });
        }
        self.judge(record, entry);
        self.overheads((0, "request"), record.request_overhead.map(Gap::as_nanos), entry);
        self.overheads((1, "response_head"), record.head_overhead.map(Gap::as_nanos), entry);
        self.chunk_overheads(&record.chunk_overheads, entry);
    }

    /// What moved in a long stream. Its tokens prove that the server answers to the model's name.
    pub fn progress(&mut self, progress: &Progress, moment: Moment) {
        let model = self.models.admit(progress.shape.model.as_deref(), true, &mut self.symbols);
        let entry = Entry { moment, exemplar: None, model, kind: None };
        self.gaps(&progress.gaps, entry);
        self.stalls(progress.stalls, entry);
        self.tokens(progress.tokens, entry);
        self.chunk_overheads(&progress.chunk_overheads, entry);
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
        let scheme = self.settings.scheme;
        self.record((Id::HttpDuration, 0), record.duration().as_nanos(), entry, |symbols| {
            let route = record.shape.route();
            [
                symbols.text(known_method(&record.shape.method)),
                symbols.text(scheme),
                if route.is_empty() { Sym::default() } else { symbols.text(route) },
                record.status.map_or(Sym::default(), |status| symbols.number(i64::from(known_status(status)))),
                http_error_type(record).map_or(Sym::default(), |error| symbols.text(&error)),
            ]
        });
    }

    fn latencies(&mut self, record: &RequestRecord, gen_ai: GenAi, entry: Entry<'_>) {
        let times = &record.times;
        if let Some(ttft) = record.ttft() {
            self.record((Id::TimeToFirstToken, 0), ttft.as_nanos(), entry, |_| gen_ai);
            if let Some(rest) = record.output_tokens.and_then(|count| count.tokens.checked_sub(1)).filter(|n| *n > 0) {
                let after_first = Gap::from_nanos(record.duration().as_nanos().saturating_sub(ttft.as_nanos()));
                let each = after_first.divided_by(rest).as_nanos();
                self.record((Id::TimePerOutputToken, 0), each, entry, |_| gen_ai);
            }
        }
        if !record.streamed {
            return;
        }
        let phases = [
            ("headers", times.head),
            ("first_byte", times.first_byte),
            ("evidence", times.first_evidence),
            ("first_reasoning", times.first_reasoning),
            ("first_output", times.first_output),
        ];
        for (which, (phase, at)) in phases.into_iter().enumerate() {
            if let Some(at) = at {
                let time = at.since(times.received).as_nanos();
                self.record((Id::TimeToPhase, which), time, entry, |symbols| [entry.model, symbols.text(phase)]);
            }
        }
        if let Some(tokens) = record.first_event_tokens {
            let entry = Entry { exemplar: None, ..entry };
            self.record((Id::TokensPerChunk, 0), u64::from(tokens), entry, |_| [entry.model]);
        }
    }

    fn gaps(&mut self, gaps: &[TokenEvent], entry: Entry<'_>) {
        for method in Method::ALL {
            let of_method = |gap: &TokenEvent| Some(gap.latency()).filter(|(_, how)| *how == method);
            let mut latencies = gaps.iter().filter_map(of_method).map(|(latency, _)| latency.as_nanos()).peekable();
            if latencies.peek().is_none() {
                continue;
            }
            let key = |symbols: &mut Symbols| [entry.model, symbols.text(method.name())];
            let Some(series) = self.distribution((Id::InterTokenLatency, method as usize), entry, key) else { return };
            let mut longest = 0;
            for latency in latencies {
                series.record(latency);
                longest = longest.max(latency);
            }
            if let Some((trace, unix)) = entry.exemplar {
                series.exemplify(longest, trace, unix);
            }
        }
        let mut tokens = gaps.iter().filter_map(|gap| gap.tokens()).peekable();
        if tokens.peek().is_some()
            && let Some(series) = self.distribution((Id::TokensPerChunk, 0), entry, |_| [entry.model])
        {
            tokens.for_each(|tokens| series.record(u64::from(tokens)));
        }
    }

    fn usage(&mut self, record: &RequestRecord, gen_ai: GenAi, entry: Entry<'_>) {
        let usage = record.usage;
        let of_modality = |symbols: &mut Symbols| with(gen_ai, symbols.text("unknown"));
        let kinds = [
            ("input", usage.input, Id::InputTokens, Id::UsageInput),
            ("output", usage.output, Id::OutputTokens, Id::UsageOutput),
        ];
        for (which, (kind, tokens, histogram, total)) in kinds.into_iter().enumerate() {
            if let Some(tokens) = tokens {
                self.record((Id::TokenUsage, which), tokens, entry, |symbols| with(gen_ai, symbols.text(kind)));
                self.record((histogram, 0), tokens, entry, |_| gen_ai);
                self.count((total, 0), tokens, entry, of_modality);
            }
        }
        for (tokens, total) in [(usage.cached, Id::UsageCached), (usage.reasoning, Id::UsageReasoning)] {
            if let Some(tokens) = tokens {
                self.count((total, 0), tokens, entry, of_modality);
            }
        }
    }

    fn tokens(&mut self, TokenCount { tokens, source }: TokenCount, entry: Entry<'_>) {
        self.count((Id::StreamTokens, source as usize), tokens, entry, |symbols| {
            [entry.model, symbols.text(source.name())]
        });
    }

    fn stalls(&mut self, stalls: u32, entry: Entry<'_>) {
        self.count((Id::Stalls, 0), u64::from(stalls), entry, |_| [entry.model]);
    }

    fn judge(&mut self, record: &RequestRecord, entry: Entry<'_>) {
        // Which SLOs there are for a request is not a matter of its kind.
        let (model, entry) = (entry.model, Entry { kind: None, ..entry });
        for (slo, verdict) in record.slos.verdicts(record) {
            let slo = self.symbols.text(slo.name());
            let (result, tokens) = match &verdict {
                Verdict::Met => ("met", record.output_tokens.map_or(0, |count| count.tokens)),
                Verdict::Missed(_) => ("missed", 0),
                Verdict::Excluded => ("excluded", 0),
            };
            // All of them appear with the first request, so that a ratio of theirs always has both sides.
            for each in ["met", "missed", "excluded"] {
                let more = u64::from(each == result);
                self.count((Id::SloRequests, 0), more, entry, |symbols| [model, slo, symbols.text(each)]);
            }
            self.count((Id::SloTokens, 0), tokens, entry, |_| [model, slo]);
            if let Verdict::Missed(objectives) = verdict {
                for objective in objectives {
                    self.count((Id::SloViolations, 0), 1, entry, |symbols| [model, slo, symbols.text(objective)]);
                }
            }
        }
    }

    fn chunk_overheads(&mut self, nanos: &[u32], entry: Entry<'_>) {
        self.overheads((2, "chunk"), nanos.iter().copied().map(u64::from), entry);
    }

    fn overheads(&mut self, (which, stage): (usize, &str), nanos: impl IntoIterator<Item = u64>, entry: Entry<'_>) {
        let mut nanos = nanos.into_iter().peekable();
        if nanos.peek().is_some()
            && let Some(series) = self.distribution((Id::ProxyOverhead, which), entry, |symbols| [symbols.text(stage)])
        {
            nanos.for_each(|nanos| series.record(nanos));
        }
    }

    fn record<const N: usize>(
        &mut self,
        which: Which,
        raw: u64,
        entry: Entry<'_>,
        key: impl FnOnce(&mut Symbols) -> [Sym; N],
    ) {
        if let Some(series) = self.distribution(which, entry, key) {
            series.record(raw);
            if let Some((trace, unix)) = entry.exemplar {
                series.exemplify(raw, trace, unix);
            }
        }
    }

    fn distribution<const N: usize>(
        &mut self,
        which: Which,
        entry: Entry<'_>,
        key: impl FnOnce(&mut Symbols) -> [Sym; N],
    ) -> Option<&mut Distribution> {
        let (series, place) = self.find(which, entry, key)?;
        series.distribution(place)
    }

    fn count<const N: usize>(
        &mut self,
        which: Which,
        more: u64,
        entry: Entry<'_>,
        key: impl FnOnce(&mut Symbols) -> [Sym; N],
    ) {
        if let Some((series, place)) = self.find(which, entry, key) {
            series.add(place, more);
        }
    }

    /// A series of an instrument that is exported: where the entry's kind has it, else by its key.
    fn find<const N: usize>(
        &mut self,
        (id, which): Which,
        entry: Entry<'_>,
        key: impl FnOnce(&mut Symbols) -> [Sym; N],
    ) -> Option<(&mut Series, u16)> {
        let Self { symbols, kinds, series, .. } = self;
        let series = series.get_mut(id as usize).filter(|series| series.is_enabled())?;
        let mut unknown = None;
        let known = entry.kind.and_then(|kind| kinds.place(kind, id, which)).unwrap_or(&mut unknown);
        let place = *known.get_or_insert_with(|| {
            let key = key(symbols);
            series.place(&key, symbols, entry.moment)
        });
        Some((series, place))
    }
}

/// The attributes that all `gen_ai.*` instruments have.
fn gen_ai(shape: &RequestShape, model: Sym, settings: &Settings, symbols: &mut Symbols) -> GenAi {
    let Some(dialect) = shape.dialect else { return GenAi::default() };
    let (address, port) = match &shape.server {
        Some((address, port)) => (symbols.text(address), symbols.number(i64::from(*port))),
        None => Default::default(),
    };
    [symbols.text(dialect.operation), symbols.text(settings.provider_of(dialect)), model, address, port]
}

fn with(gen_ai: GenAi, one_more: Sym) -> [Sym; 6] {
    let [operation, provider, model, address, port] = gen_ai;
    [operation, provider, model, address, port, one_more]
}
