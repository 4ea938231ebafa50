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

pub use settings::{AggregateSettings, DEFAULT_MAX_MODELS};

use super::catalog::Id;
use super::error_type::{error_type, http_error_type, known_status, termination};
use super::family::{ExemplarHistogram, SeriesFamily};
use super::interner::{Interner, Symbol};
use super::models::AdmittedModels;
use super::series_cache::{CacheSlot, GenAiLabels, SeriesCache};
use super::snapshot::{Snapshot, TimePoint};
use super::thread_gauges::known_method;
use super::trace_context::RequestTrace;
use crate::measure::observer::Progress;
use crate::measure::record::{Outcome, RequestRecord, TokenCount};
use crate::measure::shape::RequestShape;
use crate::measure::slo::Verdict;
use crate::measure::time::Gap;
use crate::measure::timeline::{GapMethod, TokenEvent};

/// Counts records.
#[derive(Debug)]
pub struct Aggregate {
    settings: AggregateSettings,
    interner: Interner,
    models: AdmittedModels,
    series_cache: SeriesCache,
    /// Models whose responses have been [announced](Aggregate::announce).
    declared: AHashSet<Symbol>,
    /// By [`Id`].
    series: Vec<SeriesFamily>,
}

/// One record's circumstances.
#[derive(Clone, Copy)]
struct RecordContext<'a> {
    moment: TimePoint,
    /// The trace of its exemplars, and their time in nanoseconds since 1970.
    exemplar: Option<(&'a RequestTrace, u64)>,
    model: Symbol,
    /// Where its series are known from.
    cache_slot: Option<CacheSlot>,
}

/// Names a series of one record: the instrument, and which of those that it has for requests of a kind.
type SeriesKey = (Id, usize);

impl Aggregate {
    /// Nothing counted yet.
    pub fn new(settings: AggregateSettings) -> Self {
        let series = Id::all().map(|id| SeriesFamily::new(id, settings.convention, &settings.slos)).collect();
        let models = AdmittedModels::new(settings.max_models);
        Self {
            settings,
            interner: Interner::default(),
            models,
            series_cache: SeriesCache::default(),
            declared: AHashSet::new(),
            series,
        }
    }

    /// From now on it counts like this. Histograms whose bounds move with an SLO begin again, which every reader of
    /// counters understands; what else has been counted stays.
    pub fn apply(&mut self, settings: AggregateSettings) {
        self.series.iter_mut().for_each(|series| series.reset_if_layout_changed(settings.convention, &settings.slos));
        self.models.set_limit(settings.max_models);
        self.series_cache = SeriesCache::default();
        self.settings = settings;
    }

    /// How it counts.
    pub fn settings(&self) -> &AggregateSettings {
        &self.settings
    }

    /// The name under which a model is shown: itself if it was admitted.
    pub fn display_name(&self, model: &str) -> Arc<str> {
        self.models.display_name(model, &self.interner)
    }

    /// One finished request. `kept` is its trace, if its spans are exported: an exemplar must lead somewhere.
    pub fn record_finished(&mut self, record: &RequestRecord, kept: Option<&RequestTrace>, moment: TimePoint) {
        let exemplar = kept.map(|trace| (trace, moment.unix_of(record.times.ended)));
        let (entry, gen_ai) =
            self.record_context(record, RecordContext { moment, exemplar, model: Symbol::default(), cache_slot: None });
        self.http(record, entry);
        self.record_response(record, entry);
        self.record_inference(record, gen_ai, entry);
    }

    /// One finished request of a run, which was sent so much later than planned.
    pub fn record_replayed(&mut self, record: &RequestRecord, lag: Gap, moment: TimePoint) {
        let entry = RecordContext { moment, exemplar: None, model: Symbol::default(), cache_slot: None };
        self.count((Id::ReplayRequests, 0), 1, entry, |symbols| [symbols.text(record.outcome.name())]);
        self.record((Id::ReplayLag, 0), lag.as_nanos(), entry, |_| []);
        let (entry, gen_ai) = self.record_context(record, entry);
        self.record_inference(record, gen_ai, entry);
    }

    /// The entry with the record's model and kind, and what all `gen_ai.*` instruments have of it.
    fn record_context<'a>(
        &mut self,
        record: &RequestRecord,
        entry: RecordContext<'a>,
    ) -> (RecordContext<'a>, GenAiLabels) {
        let Self { settings, interner: symbols, models, series_cache: kinds, .. } = self;
        let shape = &*record.shape;
        let mut model = Symbol::default();
        if shape.dialect.is_some() {
            let answered = matches!(record.status, Some(200..=299));
            model = models.admit(shape.model.as_deref(), answered, symbols);
        }
        let (kind, gen_ai) = kinds.lookup(record, model, || gen_ai(shape, model, settings, symbols));
        (RecordContext { model, cache_slot: kind, ..entry }, gen_ai)
    }

    fn record_inference(&mut self, record: &RequestRecord, gen_ai: GenAiLabels, entry: RecordContext<'_>) {
        if record.shape.dialect.is_none() {
            return;
        }
        self.record((Id::RequestDuration, 0), record.duration().as_nanos(), entry, |symbols| {
            with_label(gen_ai, error_type(record).map_or(Symbol::default(), |error| symbols.text(&error)))
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
                [entry.model, symbols.text(reason), symbols.bool_value(token)]
            });
        }
        self.record_verdicts(record, entry);
        self.overheads((0, "request"), record.request_overhead.map(Gap::as_nanos), entry);
        self.overheads((1, "response_head"), record.head_overhead.map(Gap::as_nanos), entry);
        self.chunk_overheads(&record.chunk_overheads, entry);
    }

    /// What moved in a long stream. Its tokens prove that the server answers to the model's name.
    pub fn record_progress(&mut self, progress: &Progress, moment: TimePoint) {
        let model = self.models.admit(progress.shape.model.as_deref(), true, &mut self.interner);
        let entry = RecordContext { moment, exemplar: None, model, cache_slot: None };
        self.gaps(&progress.gaps, entry);
        self.stalls(progress.stalls, entry);
        self.tokens(progress.tokens, entry);
        self.chunk_overheads(&progress.chunk_overheads, entry);
    }

    /// Everything counted so far.
    pub fn snapshot(&self, moment: TimePoint) -> Snapshot {
        Snapshot { unix: moment.unix, families: self.series.iter().filter_map(SeriesFamily::snapshot).collect() }
    }

    /// Of what was counted so far, these instruments.
    pub(super) fn snapshot_of(&self, ids: &[Id], moment: TimePoint) -> Snapshot {
        // Series are in the order of their ids, as families are.
        let asked = self.series.iter().filter(|series| ids.contains(&series.id()));
        Snapshot { unix: moment.unix, families: asked.filter_map(SeriesFamily::snapshot).collect() }
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

    fn gaps(&mut self, gaps: &[TokenEvent], entry: RecordContext<'_>) {
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
        for (tokens, total) in [(usage.cached, Id::UsageCached), (usage.reasoning, Id::UsageReasoning)] {
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
        // Which SLOs there are for a request is not a matter of its kind.
        let (model, entry) = (entry.model, RecordContext { cache_slot: None, ..entry });
        for (slo, verdict) in record.slos.verdicts(record) {
            let slo = self.interner.text(slo.name());
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

    /// A series of an instrument that is exported: where the entry's kind has it, else by its key.
    fn find<const N: usize>(
        &mut self,
        (id, which): SeriesKey,
        entry: RecordContext<'_>,
        key: impl FnOnce(&mut Interner) -> [Symbol; N],
    ) -> Option<(&mut SeriesFamily, u16)> {
        let Self { interner: symbols, series_cache: kinds, series, .. } = self;
        let series = series.get_mut(id as usize).filter(|series| series.is_enabled())?;
        let mut unknown = None;
        let known = entry.cache_slot.and_then(|kind| kinds.series_slot(kind, id, which)).unwrap_or(&mut unknown);
        let place = *known.get_or_insert_with(|| {
            let key = key(symbols);
            series.index_of(&key, symbols, entry.moment)
        });
        Some((series, place))
    }
}

/// The attributes that all `gen_ai.*` instruments have.
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
