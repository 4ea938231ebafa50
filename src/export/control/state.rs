//! State of the control runtime: aggregated reports and all data that is read with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::task::spawn_blocking;

use super::live_view::{InFlight, LiveSnapshot, OpenStreams};
use super::process_control::ProcessControl;
use super::queue::{DRAIN_INTERVAL, FinishedRequest, QueuedReport, ReportReceiver};
use super::recent_requests::{RecentRequest, RecentRequests, RecentSince};
use super::run_status;
use super::slo_limit::SloLimit;
use crate::capture::live_sessions::LiveSessionsView;
use crate::capture::recorder::CaptureRecorder;
use crate::clock::Clock;
use crate::config::TailSampling;
use crate::export::otlp::batch::BatchQueue;
use crate::export::otlp::pending_spans::PendingSpans;
use crate::export::otlp::traces::{RequestSpans, SpanEncoder};
use crate::export::registry::aggregate;
use crate::export::registry::aggregate::Aggregate;
use crate::export::registry::catalog::Id;
use crate::export::registry::drops::Drops;
use crate::export::registry::gauges::Gauges;
use crate::export::registry::process::{self, DescriptorUsage};
use crate::export::registry::snapshot::{PointValue, Snapshot, TimePoint};
use crate::export::trace_context::RequestTrace;
use crate::measure::record::RequestRecord;
use crate::measure::slo::Slo;
use crate::measure::time::Gap;

/// Settings that can change at run time.
#[derive(Clone, Debug, Default)]
pub struct RuntimeSettings {
    /// Settings of the aggregation.
    pub aggregate: aggregate::AggregateSettings,
    /// Rules that keep traces against the sampler's decision.
    pub tail_keep: TailSampling,
    /// Enables one log line per request.
    pub access_log: bool,
    /// Includes health probes in the log and the recent requests.
    pub trace_probes: bool,
    /// Host names that the admin port accepts besides addresses and `localhost`, as lower-case patterns.
    pub admin_hosts: Arc<[String]>,
    /// Digest of the active configuration, for comparison between processes in `/api/state`.
    pub config_digest: String,
}

/// Shared state of the control runtime.
#[derive(Debug)]
pub(in crate::export) struct ControlState {
    pub(in crate::export) clock: Clock,
    pub(in crate::export) gauges: Arc<Gauges>,
    pub(in crate::export) drops: Arc<Drops>,
    pub(in crate::export) started: TimePoint,
    instance: BTreeMap<&'static str, String>,
    inbox: ReportReceiver,
    /// Queue of spans, if traces are exported.
    spans: Option<Arc<BatchQueue<SpanEncoder>>>,
    process_control: OnceLock<Box<dyn ProcessControl>>,
    /// Forwarding threads never lock this, and no holder waits.
    state: Mutex<ControlStateInner>,
}

#[derive(Debug)]
struct ControlStateInner {
    aggregate: Aggregate,
    tail_keep: TailSampling,
    access_log: bool,
    trace_probes: bool,
    admin_hosts: Arc<[String]>,
    config_digest: String,
    recent: RecentRequests,
    /// Exported names of models that have had an open stream.
    models_with_streams: BTreeSet<Box<str>>,
}

impl ControlStateInner {
    fn remember(&mut self, record: &RequestRecord, trace: Option<&RequestTrace>, moment: TimePoint) {
        if record.shape.probe.is_some() && !self.trace_probes {
            return;
        }
        let model = record.shape.model.as_deref().map(|model| self.aggregate.display_name(model));
        let recent = RecentRequest::new(record, trace, model, moment);
        if self.access_log {
            recent.log(record, trace);
        }
        self.recent.push(recent);
    }
}

impl ControlState {
    /// Creates an empty state.
    pub(in crate::export) fn new(
        rules: RuntimeSettings,
        inbox: ReportReceiver,
        spans: Option<Arc<BatchQueue<SpanEncoder>>>,
        drops: Arc<Drops>,
        clock: Clock,
        instance: BTreeMap<&'static str, String>,
    ) -> Self {
        let RuntimeSettings { aggregate, tail_keep, access_log, trace_probes, admin_hosts, config_digest } = rules;
        let (aggregate, recent) = (Aggregate::new(aggregate), RecentRequests::default());
        let streamed = BTreeSet::new();
        let state = ControlStateInner {
            aggregate,
            tail_keep,
            access_log,
            trace_probes,
            admin_hosts,
            config_digest,
            recent,
            models_with_streams: streamed,
        };
        let started = TimePoint::now(&clock);
        Self {
            clock,
            gauges: Arc::default(),
            drops,
            started,
            instance,
            inbox,
            spans,
            process_control: OnceLock::new(),
            state: Mutex::new(state),
        }
    }

    /// Applies new settings. Earlier reports are counted under the old ones.
    pub(in crate::export) fn apply(&self, rules: RuntimeSettings) {
        self.drain();
        let mut state = self.lock();
        state.aggregate.apply(rules.aggregate);
        (state.tail_keep, state.access_log) = (rules.tail_keep, rules.access_log);
        state.trace_probes = rules.trace_probes;
        (state.admin_hosts, state.config_digest) = (rules.admin_hosts, rules.config_digest);
    }

    /// Returns the host names that the admin port accepts.
    pub(in crate::export) fn admin_hosts(&self) -> Arc<[String]> {
        Arc::clone(&self.lock().admin_hosts)
    }

    /// Returns the digest of the active configuration.
    pub(in crate::export) fn config_digest(&self) -> String {
        self.lock().config_digest.clone()
    }

    /// Returns the text of each active SLO by name.
    pub(in crate::export) fn slos(&self) -> BTreeMap<String, String> {
        let state = self.lock();
        state.aggregate.settings().slos.iter().map(|slo| (slo.name().to_owned(), slo.to_string())).collect()
    }

    /// Returns the target of each active SLO by name, from 0 to 1.
    pub(in crate::export) fn slo_targets(&self) -> BTreeMap<String, f64> {
        let state = self.lock();
        state.aggregate.settings().slos.iter().map(|slo| (slo.name().to_owned(), slo.target().ratio())).collect()
    }

    /// Returns the fixed limits of each active SLO by name, of those that judge this model.
    pub(in crate::export) fn slo_limits(&self, model: Option<&str>) -> BTreeMap<String, Vec<SloLimit>> {
        let state = self.lock();
        let judging = |slo: &&Slo| model.is_none_or(|model| slo.is_for_model(model));
        let slos = state.aggregate.settings().slos.iter().filter(judging);
        slos.map(|slo| (slo.name().to_owned(), SloLimit::of(slo))).collect()
    }

    /// Returns the attributes of the resource that name this instance.
    pub(in crate::export) fn instance(&self) -> &BTreeMap<&'static str, String> {
        &self.instance
    }

    /// Aggregates the queued reports.
    pub(in crate::export) fn drain(&self) {
        let moment = TimePoint::now(&self.clock);
        let mut state = self.lock();
        for report in self.inbox.drain() {
            match report {
                QueuedReport::Progress(progress) => state.aggregate.record_progress(&progress, moment),
                QueuedReport::Replayed(replayed) => {
                    let (record, lag) = &*replayed;
                    state.aggregate.record_replayed(record, *lag, moment);
                    state.remember(record, None, moment);
                }
                QueuedReport::Finished(mut finished) => {
                    self.finished(&mut state, &mut finished, moment);
                    self.inbox.forward(finished);
                }
            }
        }
    }

    fn finished(&self, state: &mut ControlStateInner, finished: &mut FinishedRequest, moment: TimePoint) {
        let FinishedRequest { record, trace, capture_handle, spans } = finished;
        let (record, trace) = (&*record, trace.as_ref());
        let exported_trace = trace.filter(|trace| self.spans.is_some() && trace.is_kept(record, &state.tail_keep));
        state.aggregate.record_finished(record, exported_trace, moment);
        if let (Some(trace), Some(queue)) = (exported_trace, &self.spans) {
            let encode = || RequestSpans::new(record, trace, state.aggregate.settings(), moment);
            // The capture knows the session, if there is one.
            match capture_handle.is_some() && self.inbox.capture().is_some() {
                true => *spans = Some(PendingSpans::new(encode(), queue)),
                false => queue.push(encode),
            }
        }
        state.remember(record, trace, moment);
    }

    /// Returns a full snapshot that includes all queued reports.
    pub(in crate::export) fn snapshot(&self) -> Snapshot {
        self.drain();
        let mut open = self.in_flight().streams_by_model;
        let mut state = self.lock();
        if self.gauges.run_info().is_none() {
            state.aggregate.declare_overflow_series(self.started);
        }
        let mut snapshot = state.aggregate.snapshot(TimePoint::now(&self.clock));
        let scheme = state.aggregate.settings().scheme;
        for slo in state.aggregate.settings().slos.iter() {
            let target = PointValue::Number(slo.target().ratio());
            snapshot.observe(Id::SloTarget, [slo.name().into()], self.started.unix, target);
        }
        // A model whose streams have ended exports zero instead of its last value.
        state.models_with_streams.extend(open.keys().cloned());
        let models = state
            .models_with_streams
            .iter()
            .map(|model| (model.clone(), open.remove(model).unwrap_or_default()))
            .collect();
        drop(state);
        let descriptors = DescriptorUsage::now();
        self.gauges.observe(&mut snapshot, scheme, self.started.unix, &models, descriptors);
        self.drops.observe(&mut snapshot, self.started.unix);
        process::observe(&mut snapshot, env!("CARGO_PKG_VERSION"), self.started.unix, descriptors);
        snapshot
    }

    /// Lets the admin port show and change the process's settings.
    pub(in crate::export) fn set_process_control(&self, control: Box<dyn ProcessControl>) {
        // There is one owner of the process, which calls this once.
        _ = self.process_control.set(control).is_ok();
    }

    /// Returns what shows and changes the process's settings, if its owner allows that.
    pub(in crate::export) fn process_control(&self) -> Option<&dyn ProcessControl> {
        self.process_control.get().map(|control| &**control)
    }

    /// Returns at most this many recent requests, latest first.
    pub(in crate::export) fn recent(&self, most: usize) -> Vec<RecentRequest> {
        self.drain();
        self.lock().recent.latest(most)
    }

    /// Returns the recent requests after a position; see [`RecentSince`].
    pub(in crate::export) fn recent_since(&self, after: Option<u64>) -> RecentSince {
        self.drain();
        self.lock().recent.since(after)
    }

    /// Returns the open requests by exported model name.
    pub(in crate::export) fn in_flight(&self) -> InFlight {
        let open = self.gauges.open_by_model();
        let (waiting, streaming) = self.gauges.streams();
        let (mut by_model, mut streams_by_model) = (BTreeMap::new(), BTreeMap::<_, OpenStreams>::new());
        let state = self.lock();
        for (model, open) in open {
            let name = Box::<str>::from(&*state.aggregate.display_name(&model));
            let streams = streams_by_model.entry(name.clone()).or_default();
            *by_model.entry(name).or_default() += open.requests;
            streams.waiting += open.waiting;
            streams.streaming += open.streaming;
        }
        InFlight { requests: self.gauges.active_requests(), waiting, streaming, by_model, streams_by_model }
    }

    /// Returns the data of a run for the live page, if there is a run.
    pub(in crate::export) fn run_view(&self) -> Option<run_status::RunView<'_>> {
        let running = self.gauges.run_info()?;
        self.drain();
        let counted = [Id::ReplayLag, Id::ReplayRequests];
        Some(running.view(&self.lock().aggregate.snapshot_of(&counted, TimePoint::now(&self.clock))))
    }

    /// Returns a snapshot for live views.
    pub(in crate::export) fn live_snapshot(&self) -> LiveSnapshot {
        self.drain();
        let counted = self.lock().aggregate.snapshot_of(&LiveSnapshot::INSTRUMENTS, TimePoint::now(&self.clock));
        LiveSnapshot::from_snapshot(&counted, self.in_flight(), self.clock.now())
    }

    /// Returns the sessions of the last quarter of an hour, if a capture finds any.
    pub(in crate::export) fn live_sessions(&self) -> Option<LiveSessionsView> {
        self.inbox.capture()?.live_sessions()
    }

    /// Forwards counted requests to this capture from now on.
    pub(in crate::export) fn set_capture(&self, capture: Arc<CaptureRecorder>) {
        self.gauges.set_capture(Arc::clone(capture.stats()));
        self.inbox.set_capture(capture);
    }

    /// Returns the interval at which the queue must be drained.
    pub(in crate::export) fn drain_interval(&self) -> Gap {
        self.inbox.capture().map_or(DRAIN_INTERVAL, |capture| DRAIN_INTERVAL.min(capture.handover_interval()))
    }

    /// Writes the capture's remaining data and ends it.
    pub(in crate::export) async fn end_capture(&self) {
        if let Some(capture) = self.inbox.capture().map(Arc::clone) {
            // This call blocks on disk I/O.
            let _ended = spawn_blocking(move || capture.shutdown()).await.is_ok();
        }
    }

    /// Waits until the queue needs to be drained immediately.
    pub(in crate::export) async fn queue_half_full(&self) {
        self.inbox.half_full().await;
    }

    fn lock(&self) -> MutexGuard<'_, ControlStateInner> {
        // A panic while counting one record leaves consistent counters.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
