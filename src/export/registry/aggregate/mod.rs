//! The only aggregation: converts records to series.
//!
//! It is single-threaded: the control runtime owns it, and every exporter reads the same [`Snapshot`]. Each instrument
//! counts these records:
//!
//! | instrument | counted records |
//! |---|---|
//! | `http.*`, `streamgauge.http.responses` | every request that the proxy served; not those of a run |
//! | `replay.*` | every request of a run |
//! | everything below | requests of a dialect |
//! | request duration | all, with `error.type` if the response was incomplete |
//! | `gen_ai.client.*`, with `gen_ai_client` | as those of servers below: duration, first chunk as TTFT, time per chunk as gaps, usage |
//! | TTFT, phases, TPOT, remaining gaps at the end | successes only; TPOT with at least two tokens |
//! | gaps and stalls of long streams | on arrival, once a second: the outcome is not known yet, and a stream that fails after minutes did deliver those tokens at that pace |
//! | usage | responses with usage from the server |
//! | `stream.output_tokens` | progress by its source; at the end the rest, by the final source |
//! | `stream.terminations` | streams |
//! | `slo.*` | the verdicts in the record |
//! | `proxy.overhead` | all |

mod responses;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ahash::AHashSet;

pub use settings::{AggregateSettings, DEFAULT_MAX_MODELS};

use super::catalog::Id;
use super::classes::{AdmittedClasses, ClassSet};
use super::error_type::{error_type, http_error_type, known_status, termination};
use super::family::{ExemplarHistogram, SeriesFamily};
use super::interner::{Interner, Symbol};
use super::models::AdmittedModels;
use super::series_cache::{CacheSlot, GenAiLabels, SeriesCache};
use super::snapshot::{Snapshot, TimePoint};
use super::thread_gauges::known_method;
use crate::export::trace_context::RequestTrace;
use crate::measure::observer::Progress;
use crate::measure::record::{Outcome, RequestRecord, TokenCount};
use crate::measure::shape::RequestShape;
use crate::measure::slo::RequestVerdict;
use crate::measure::time::Gap;
use crate::measure::timeline::{GapMethod, TokenEvent};

/// Aggregates records into series.
#[derive(Debug)]
pub struct Aggregate {
    settings: AggregateSettings,
    interner: Interner,
    models: AdmittedModels,
    classes: AdmittedClasses,
    series_cache: SeriesCache,
    /// Models and classes whose responses have [declared](Aggregate::declare_overflow_series) their initial series.
    declared: AHashSet<(Symbol, ClassSet)>,
    /// Indexed by [`Id`].
    series: Vec<SeriesFamily>,
}

/// Context for counting one record.
#[derive(Clone, Copy)]
struct RecordContext<'a> {
    moment: TimePoint,
    /// Trace for exemplars, and their time in nanoseconds since 1970.
    exemplar: Option<(&'a RequestTrace, u64)>,
    model: Symbol,
    classes: ClassSet,
    /// Cache slot of the record's series.
    cache_slot: Option<CacheSlot>,
}

impl<'a> RecordContext<'a> {
    fn new(moment: TimePoint, exemplar: Option<(&'a RequestTrace, u64)>) -> Self {
        Self { moment, exemplar, model: Symbol::default(), classes: ClassSet::default(), cache_slot: None }
    }
}

/// Key of a cached series: the instrument, and the index among its series for one kind of request.
type SeriesKey = (Id, usize);

impl Aggregate {
    /// Creates an empty aggregation.
    pub fn new(settings: AggregateSettings) -> Self {
        let series = Id::all().map(|id| SeriesFamily::new(id, &settings)).collect();
        let models = AdmittedModels::new(settings.max_models);
        let classes = AdmittedClasses::new(settings.max_class_values);
        Self {
            settings,
            interner: Interner::default(),
            models,
            classes,
            series_cache: SeriesCache::default(),
            declared: AHashSet::new(),
            series,
        }
    }

    /// Applies new settings. Histograms whose bounds move with an SLO restart at zero, which every reader of counters
    /// handles, and so do instruments that are exported again; all other counts remain.
    pub fn apply(&mut self, settings: AggregateSettings) {
        self.series.iter_mut().for_each(|series| series.reset_if_changed(&settings));
        self.models.set_limit(settings.max_models);
        self.classes.set_limit(settings.max_class_values);
        self.series_cache = SeriesCache::default();
        self.settings = settings;
    }

    /// Returns the current settings.
    pub fn settings(&self) -> &AggregateSettings {
        &self.settings
    }

    /// Returns a model's exported name: its own if it was admitted.
    pub fn display_name(&self, model: &str) -> Arc<str> {
        self.models.display_name(model, &self.interner)
    }

    /// Counts a finished request. `exported_trace` is its trace if its spans are exported, because an exemplar must
    /// lead to a trace.
    pub fn record_finished(
        &mut self,
        record: &RequestRecord,
        exported_trace: Option<&RequestTrace>,
        moment: TimePoint,
    ) {
        let exemplar = exported_trace.map(|trace| (trace, moment.unix_of(record.times.ended)));
        let (entry, gen_ai) = self.record_context(record, RecordContext::new(moment, exemplar));
        self.http(record, entry);
        self.record_response(record, entry);
        self.record_inference(record, gen_ai, entry);
    }

    /// Counts a finished request of a run; `lag` is its delay behind the plan.
    pub fn record_replayed(&mut self, record: &RequestRecord, lag: Gap, moment: TimePoint) {
        let entry = RecordContext::new(moment, None);
        self.count((Id::ReplayRequests, 0), 1, entry, |symbols| [symbols.text(record.outcome.name())]);
        self.record((Id::ReplayLag, 0), lag.as_nanos(), entry, |_| []);
        let (entry, gen_ai) = self.record_context(record, entry);
        self.record_inference(record, gen_ai, entry);
    }

    /// Prepares the context of a record: its model, its kind and the shared `gen_ai.*` attributes.
    fn record_context<'a>(
        &mut self,
        record: &RequestRecord,
        entry: RecordContext<'a>,
    ) -> (RecordContext<'a>, GenAiLabels) {
        let Self { settings, interner: symbols, models, classes, series_cache: kinds, .. } = self;
        let shape = &*record.shape;
        let (mut model, mut set) = <(Symbol, ClassSet)>::default();
        if shape.dialect.is_some() {
            let answered = matches!(record.status, Some(200..=299));
            model = models.admit(shape.model.as_deref(), answered, symbols);
            set = classes.admit(&shape.classes, answered);
        }
        let (kind, gen_ai) = kinds.lookup(record, (model, set), || gen_ai(shape, model, settings, symbols));
        (RecordContext { model, classes: set, cache_slot: kind, ..entry }, gen_ai)
    }

    fn record_inference(&mut self, record: &RequestRecord, gen_ai: GenAiLabels, entry: RecordContext<'_>) {
        if record.shape.dialect.is_none() {
            return;
        }
        let error = error_type(record);
        for id in [Id::RequestDuration, Id::ClientDuration, Id::InferenceDuration] {
            self.record((id, 0), record.duration().as_nanos(), entry, |symbols| {
                with_label(gen_ai, error.as_deref().map_or(Symbol::default(), |error| symbols.text(error)))
            });
        }
        if record.outcome == Outcome::Success {
            self.latencies(record, gen_ai, entry);
            self.gaps(&record.gaps, gen_ai, entry);
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
                [entry.model, symbols.text(reason), symbols.bool_value(token)]
            });
        }
        self.record_verdicts(record, entry);
        self.overheads((0, "request"), record.request_overhead.map(Gap::as_nanos), entry);
        self.overheads((1, "response_head"), record.head_overhead.map(Gap::as_nanos), entry);
        self.chunk_overheads(&record.chunk_overheads, entry);
    }

    /// Counts the progress of a long stream. Its tokens prove that the server accepts the model's name.
    pub fn record_progress(&mut self, progress: &Progress, moment: TimePoint) {
        let model = self.models.admit(progress.shape.model.as_deref(), true, &mut self.interner);
        let classes = self.classes.admit(&progress.shape.classes, true);
        let gen_ai = gen_ai(&progress.shape, model, &self.settings, &mut self.interner);
        let entry = RecordContext { model, classes, ..RecordContext::new(moment, None) };
        self.gaps(&progress.gaps, gen_ai, entry);
        self.stalls(progress.stalls, entry);
        self.tokens(progress.tokens, entry);
        self.chunk_overheads(&progress.chunk_overheads, entry);
    }

    /// Returns all series.
    pub fn snapshot(&self, moment: TimePoint) -> Snapshot {
        Snapshot { unix: moment.unix, families: self.series.iter().filter_map(SeriesFamily::snapshot).collect() }
    }

    /// Returns the series of these instruments.
    pub(in crate::export) fn snapshot_of(&self, ids: &[Id], moment: TimePoint) -> Snapshot {
        // Series and families share the order of the ids.
        let series = self.series.iter().filter(|series| ids.contains(&series.id()));
        Snapshot { unix: moment.unix, families: series.filter_map(SeriesFamily::snapshot).collect() }
    }

    fn http(&mut self, record: &RequestRecord, entry: RecordContext<'_>) {
        let scheme = self.settings.scheme;
        self.record((Id::HttpDuration, 0), record.duration().as_nanos(), entry, |symbols| {
            let route = record.shape.route();
            [
                symbols.text(known_method(&record.shape.method)),
                symbols.text(scheme),
                if route.is_empty() { Symbol::default() } else { symbols.text(route) },
                record.status.map_or(Symbol::default(), |status| symbols.number(i64::from(known_status(status)))),
                http_error_type(record).map_or(Symbol::default(), |error| symbols.text(&error)),
            ]
        });
    }

    fn latencies(&mut self, record: &RequestRecord, gen_ai: GenAiLabels, entry: RecordContext<'_>) {
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
        if let Some(waited) = record.time_to_first_chunk() {
            for id in [Id::ClientFirstChunk, Id::InferenceFirstChunk] {
                self.record((id, 0), waited.as_nanos(), entry, |_| gen_ai);
            }
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
            let entry = RecordContext { exemplar: None, ..entry };
            self.record((Id::TokensPerChunk, 0), u64::from(tokens), entry, |_| [entry.model]);
        }
    }

    fn gaps(&mut self, gaps: &[TokenEvent], gen_ai: GenAiLabels, entry: RecordContext<'_>) {
        if gaps.is_empty() {
            return;
        }
        for id in [Id::ClientChunkTime, Id::InferenceChunkTime] {
            let Some(series) = self.distribution((id, 0), entry, |_| gen_ai) else { continue };
            let mut longest = 0;
            for gap in gaps.iter().map(|gap| gap.gap().as_nanos()) {
                series.record(gap);
                longest = longest.max(gap);
            }
            if let Some((trace, unix)) = entry.exemplar {
                series.set_exemplar(longest, trace, unix);
            }
        }
        for method in GapMethod::ALL {
            let of_method = |gap: &TokenEvent| Some(gap.latency()).filter(|(_, how)| *how == method);
            let mut latencies = gaps.iter().filter_map(of_method).map(|(latency, _)| latency.as_nanos()).peekable();
            if latencies.peek().is_none() {
                continue;
            }
            let key = |symbols: &mut Interner| [entry.model, symbols.text(method.name())];
            let Some(series) = self.distribution((Id::InterTokenLatency, method as usize), entry, key) else { return };
            let mut longest = 0;
            for latency in latencies {
                series.record(latency);
                longest = longest.max(latency);
            }
            if let Some((trace, unix)) = entry.exemplar {
                series.set_exemplar(longest, trace, unix);
            }
        }
        let mut tokens = gaps.iter().filter_map(|gap| gap.tokens()).peekable();
        if tokens.peek().is_some()
            && let Some(series) = self.distribution((Id::TokensPerChunk, 0), entry, |_| [entry.model])
        {
            tokens.for_each(|tokens| series.record(u64::from(tokens)));
        }
    }

    fn usage(&mut self, record: &RequestRecord, gen_ai: GenAiLabels, entry: RecordContext<'_>) {
        let usage = record.usage;
        let of_modality = |symbols: &mut Interner| with_label(gen_ai, symbols.text("unknown"));
        let kinds = [
            ("input", usage.input, Id::InputTokens, Id::UsageInput),
            ("output", usage.output, Id::OutputTokens, Id::UsageOutput),
        ];
        for (which, (kind, tokens, histogram, total)) in kinds.into_iter().enumerate() {
            if let Some(tokens) = tokens {
                self.record((Id::TokenUsage, which), tokens, entry, |symbols| with_label(gen_ai, symbols.text(kind)));
                self.record((histogram, 0), tokens, entry, |_| gen_ai);
                self.count((total, 0), tokens, entry, of_modality);
            }
        }
        let parts = [
            (usage.cached, Id::UsageCached),
            (usage.cache_write, Id::UsageCacheWrite),
            (usage.reasoning, Id::UsageReasoning),
        ];
        for (tokens, total) in parts {
            if let Some(tokens) = tokens {
                self.count((total, 0), tokens, entry, of_modality);
            }
        }
    }

    fn tokens(&mut self, TokenCount { tokens, source }: TokenCount, entry: RecordContext<'_>) {
        self.count((Id::StreamTokens, source as usize), tokens, entry, |symbols| {
            [entry.model, symbols.text(source.name())]
        });
    }

    fn stalls(&mut self, stalls: u32, entry: RecordContext<'_>) {
        self.count((Id::Stalls, 0), u64::from(stalls), entry, |_| [entry.model]);
    }

    fn record_verdicts(&mut self, record: &RequestRecord, entry: RecordContext<'_>) {
        // SLOs depend on the request, not on its kind.
        let (model, entry) = (entry.model, RecordContext { cache_slot: None, ..entry });
        for metric in record.shape.slo.invalid() {
            self.count((Id::SloInvalidLimits, 0), 1, entry, |symbols| [symbols.text(metric.name())]);
        }
        for (slo, verdict) in record.slos.verdicts(record) {
            let slo = self.interner.text(slo.name());
            let (result, tokens) = match &verdict {
                RequestVerdict::Met => ("met", record.output_tokens.map_or(0, |count| count.tokens)),
                RequestVerdict::Missed(_) => ("missed", 0),
                RequestVerdict::Excluded => ("excluded", 0),
            };
            // The first request declares all three, so that a ratio always has both sides.
            for each in ["met", "missed", "excluded"] {
                let more = u64::from(each == result);
                self.count((Id::SloRequests, 0), more, entry, |symbols| [model, slo, symbols.text(each)]);
            }
            self.count((Id::SloTokens, 0), tokens, entry, |_| [model, slo]);
            if let RequestVerdict::Missed(objectives) = verdict {
                for objective in objectives {
                    self.count((Id::SloViolations, 0), 1, entry, |symbols| [model, slo, symbols.text(objective)]);
                }
            }
        }
    }

    fn chunk_overheads(&mut self, nanos: &[u32], entry: RecordContext<'_>) {
        self.overheads((2, "chunk"), nanos.iter().copied().map(u64::from), entry);
    }

    fn overheads(
        &mut self,
        (which, stage): (usize, &str),
        nanos: impl IntoIterator<Item = u64>,
        entry: RecordContext<'_>,
    ) {
        let mut nanos = nanos.into_iter().peekable();
        if nanos.peek().is_some()
            && let Some(series) = self.distribution((Id::ProxyOverhead, which), entry, |symbols| [symbols.text(stage)])
        {
            nanos.for_each(|nanos| series.record(nanos));
        }
    }

    fn record<const N: usize>(
        &mut self,
        which: SeriesKey,
        raw: u64,
        entry: RecordContext<'_>,
        key: impl FnOnce(&mut Interner) -> [Symbol; N],
    ) {
        if let Some(series) = self.distribution(which, entry, key) {
            series.record(raw);
            if let Some((trace, unix)) = entry.exemplar {
                series.set_exemplar(raw, trace, unix);
            }
        }
    }

    fn distribution<const N: usize>(
        &mut self,
        which: SeriesKey,
        entry: RecordContext<'_>,
        key: impl FnOnce(&mut Interner) -> [Symbol; N],
    ) -> Option<&mut ExemplarHistogram> {
        let (series, place) = self.find(which, entry, key)?;
        series.distribution(place)
    }

    fn count<const N: usize>(
        &mut self,
        which: SeriesKey,
        more: u64,
        entry: RecordContext<'_>,
        key: impl FnOnce(&mut Interner) -> [Symbol; N],
    ) {
        if let Some((series, place)) = self.find(which, entry, key) {
            series.add(place, more);
        }
    }

    /// Finds or creates a series of an exported instrument, from the kind's cache if possible.
    fn find<const N: usize>(
        &mut self,
        (id, which): SeriesKey,
        entry: RecordContext<'_>,
        key: impl FnOnce(&mut Interner) -> [Symbol; N],
    ) -> Option<(&mut SeriesFamily, u16)> {
        let Self { interner: symbols, classes, series_cache: kinds, series, .. } = self;
        let series = series.get_mut(id as usize).filter(|series| series.is_enabled())?;
        let mut unknown = None;
        let known = entry.cache_slot.and_then(|kind| kinds.series_slot(kind, id, which)).unwrap_or(&mut unknown);
        let place = *known.get_or_insert_with(|| {
            let key = key(symbols);
            series.index_of((&key, entry.classes), symbols, classes, entry.moment)
        });
        Some((series, place))
    }
}

/// Builds the attributes that all `gen_ai.*` instruments share.
fn gen_ai(shape: &RequestShape, model: Symbol, settings: &AggregateSettings, symbols: &mut Interner) -> GenAiLabels {
    let Some(dialect) = shape.dialect else { return GenAiLabels::default() };
    let (address, port) = match &shape.server {
        Some((address, port)) => (symbols.text(address), symbols.number(i64::from(*port))),
        None => Default::default(),
    };
    [symbols.text(dialect.operation), symbols.text(settings.provider_of(dialect)), model, address, port]
}

fn with_label(gen_ai: GenAiLabels, one_more: Symbol) -> [Symbol; 6] {
    let [operation, provider, model, address, port] = gen_ai;
    [operation, provider, model, address, port, one_more]
}
