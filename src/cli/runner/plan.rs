//! Turns flags into a prepared run. It reads and checks every input before anything is sent.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rustls::ClientConfig;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::calibrate::{CalibrationResult, calibrate, without_calibration};
use super::context_limit::ContextDemand;
use super::error::SetupError;
use super::figures::RunFigures;
use super::flags::RunnerArgs;
use super::flags::requests::PromptOverheadArg;
use super::flags::timing::{StartAt, WarmupArg};
use super::live;
use super::metadata::run_metadata;
use super::prefix_warmup::warm_prefixes;
use super::self_test::{OfferedLoad, run_self_test};
use super::spec::{PlannedTotal, RowSource, WorkloadSpec};
use super::vocabulary::{from_servers, from_tokenizer_file};
use crate::clock::Clock;
use crate::export::admin::access::AdminAccess;
use crate::measure::observer::DEFAULT_STALL;
use crate::measure::slo::Slos;
use crate::measure::time::{Gap, Window};
use crate::net::tls;
use crate::replay::Config;
use crate::replay::no_target;
use crate::replay::plan::measurement_window::MeasurementWindow;
use crate::replay::plan::schedule::{ReplayPlan, RowError, Schedule, ScheduledRequest, Shard};
use crate::replay::request::encoder::RequestEncoder;
use crate::replay::request::template::max_output_tokens;
use crate::replay::result::output::RunOutput;
use crate::replay::sender::run::{LoopMode, SessionMode};
use crate::replay::sender::target::{TargetUrl, check_reachable};
use crate::replay::server::info::fetch_server_info;
use crate::replay::server::scrape::ScrapeTarget;
use crate::report::accumulate::AccumulatorSettings;
use crate::report::condition::Condition;
use crate::trace::prompt_text::PromptGenerator;
use crate::trace::vocabulary::Vocabulary;
use crate::trace_file::header::TraceHeader;

/// Everything that a run needs.
pub(in crate::cli) struct PreparedRun {
    pub(super) config: Config,
    pub(super) plan: ReplayPlan,
    pub(super) open_rows: RowSource,
    pub(super) output: Option<RunOutput>,
    pub(super) total: PlannedTotal,
    /// Server metrics pages to scrape during the run.
    pub(super) pages: Vec<ScrapeTarget>,
    /// TLS client configuration, if a target or page uses TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    /// The live page's listener and readers, and its description.
    pub(super) admin_port: Option<(TcpListener, AdminAccess)>,
    pub(super) live: live::LiveRunInfo,
    /// Metadata for `run.json`, without header values.
    pub(super) metadata: Value,
    pub(super) figures: RunFigures,
    /// The trace, if it contains the captured results of its requests.
    pub(super) production: Option<PathBuf>,
    /// Notes for the user before the start.
    pub(super) notes: Vec<String>,
}

pub(in crate::cli) fn prepare(args: &RunnerArgs, spec: WorkloadSpec) -> Result<PreparedRun, SetupError> {
    let usage = |message: String| SetupError::Usage(anyhow::Error::msg(message));
    let targets = args.targets().map_err(usage)?;
    if args.evaluation.slos.is_empty() && args.evaluation.fail_if.iter().flatten().any(Condition::needs_slos) {
        return Err(usage("--fail-if has no goodput to judge; remedy: define it with --slo".to_owned()));
    }
    let content =
        |words| PromptGenerator::new(words, spec.header.blocks.clone(), spec.tokens_per_byte, args.requests.seed);
    let encoder = |content| encoder(args, &targets, content);
    let own_words = args.requests.tokenizer.as_deref().map(from_tokenizer_file).transpose()?;
    let first = encoder(content(Vocabulary::default()))?;
    let WorkloadEstimate { total: whole, measured, load, models, context } = estimate_workload(args, &spec, &first)?;
    let pages = args.pages(&targets).map_err(usage)?;
    let admin_port = args.output.admin_port().map_err(usage)?;
    let tls = match targets.iter().chain(pages.iter().map(|page| &page.target)).any(|target| target.tls) {
        true => Some(Arc::new(tls::client(args.connections.target_ca.as_deref(), None, &["http/1.1"])?)),
        false if args.connections.target_ca.is_some() => {
            return Err(usage("--target-ca is for https, which neither --target nor --server-metrics is".to_owned()));
        }
        false => None,
    };
    let begin = match args.timing.start_at {
        Some(StartAt::Time(moment)) => {
            let begin = Clock::Monotonic.of_wall(moment);
            Some(begin.ok_or_else(|| usage("--start-at has passed; give a moment to come".to_owned()))?)
        }
        Some(StartAt::AllShards) | None => None,
    };
    let prefix = args.run_prefix().map_err(SetupError::Usage)?;
    for target in &targets {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let reached = runtime.block_on(check_reachable(target, tls.clone(), args.connections.connect_timeout));
        reached.map_err(|error| {
            let error = tls::describe_error(&error, "--target-ca");
            let alone = error.contains("NoApplicationProtocol");
            let hint = if alone { "; it speaks HTTP/2 alone, which is not supported" } else { "" };
            SetupError::Unreachable(format!("cannot reach {target}: {error}{hint}"))
        })?;
    }
    let slos = Arc::new(Slos::new(args.evaluation.slos.clone()).map_err(usage)?);
    let half = thread::available_parallelism().map_or(1, |cores| cores.get() / 2).clamp(1, 8);
    let workers = args.connections.workers.map_or(half, |workers| workers as usize);
    let config = |encoder, begin| Config {
        targets: targets.clone(),
        tls: tls.clone(),
        encoder,
        loop_mode: spec.arrivals,
        slots: spec.slots.map(|slots| Arc::new(Semaphore::new(slots as usize))),
        sessions: spec.sessions,
        // A closed loop ends by a command instead.
        session_time_limit: spec.plan.duration.filter(|_| spec.arrivals == LoopMode::Open),
        connections: args.connections.policy.into(),
        connect_timeout: args.connections.connect_timeout,
        timeout: args.connections.timeout,
        think_time_scale: spec.pause_stretch,
        slos: Arc::clone(&slos),
        stall: DEFAULT_STALL,
        workers,
        measurement_window: measured.clone(),
        begin,
    };
    let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
    let mut notes = vec![format!(
        "{}requests{} to {}",
        whole.requests.map_or(String::new(), |requests| format!("{requests} ")),
        whole.length.map_or(String::new(), |length| format!(" in {:.1} s", length.as_secs())),
        names.join(", ")
    )];
    // In parallel, so that a slow server delays nothing.
    let reads_server_info = args.output.out.is_some() || args.requests.prompt_overhead == PromptOverheadArg::Auto;
    let engines = match reads_server_info {
        true => {
            let (targets, fields, tls) =
                (targets.clone(), args.connections.secret_fields().map_err(usage)?, tls.clone());
            Some(thread::Builder::new().spawn(move || fetch_server_info(&targets, &fields, tls))?)
        }
        false => None,
    };
    let audit = (!args.evaluation.no_audit).then(|| run_self_test(args, load, workers)).transpose()?;
    match &audit {
        Some(audit) => {
            notes.push(audit.summary_line());
            notes.extend(audit.uncertain.iter().map(|finding| format!("audit: on this machine {finding}")));
        }
        None => notes.push("note: no audit: what this machine adds to the figures is unknown".to_owned()),
    }
    if let Some(finding) = audit.iter().flat_map(|audit| &audit.uncertain).next().filter(|_| args.evaluation.strict) {
        return Err(SetupError::Machine(format!("--strict: on this machine {finding}")));
    }
    let calibrated = match (args.requests.prompt_overhead, own_words) {
        (PromptOverheadArg::Tokens(added), words) => without_calibration(words.unwrap_or_default(), added, content),
        (PromptOverheadArg::Auto, words) => {
            let words = words.map_or_else(|| from_servers(args, &targets, &first, &models, tls.clone()), Ok)?;
            calibrate(&models, words, content, |content| Ok(config(encoder(content)?.for_probes(), None)))?
        }
    };
    let CalibrationResult { content, prompt_overhead: added, words, notes: calibration_notes } = calibrated;
    notes.extend(calibration_notes);
    if !spec.warmup_rows.is_empty() {
        let config = || Ok(config(encoder(content.clone())?.for_probes(), None));
        notes.push(warm_prefixes(&spec.warmup_rows, targets.len(), config)?);
    }
    let content = content.with_texts(spec.texts.clone());
    // Last, because everything before it takes a different time on each machine.
    let begin = match (args.timing.start_at, prefix) {
        (Some(StartAt::AllShards), Some(prefix)) => Some(prefix.meet().map_err(SetupError::Usage)?),
        _ => begin,
    };
    let config = config(encoder(content)?, begin);
    let window = window(&spec, measured.window());
    let engines = match engines.map(thread::JoinHandle::join) {
        Some(Ok(infos)) => infos?,
        // A panicked thread counts as no response.
        Some(Err(_)) | None => Vec::new(),
    };
    notes.extend(context.warning(&engines));
    let about = run_metadata(args, &spec, (&targets, &engines), (added, words), window, audit);
    let settings = AccumulatorSettings {
        slos: Slos::clone(&slos),
        conditions: args.evaluation.fail_if.concat(),
        ..AccumulatorSettings::default()
    };
    let figures = RunFigures::with_settings(settings, measured, spec.header.blocks.clone());
    notes.extend(spec.notes);
    let live_name = spec.trace.unwrap_or_else(|| "a synthetic load".to_owned());
    let output = match &args.output.out {
        Some(folder) => {
            // Responses are measured whatever the requests come from.
            let made = RunOutput::new(folder, TraceHeader { simulated: false, ..spec.header });
            Some(made.map_err(|error| usage(format!("cannot write to {}: {error}", folder.display())))?)
        }
        None => None,
    };
    let live = live::LiveRunInfo { name: live_name, targets, total: whole, slos };
    let (plan, open) = (spec.plan, spec.open_rows);
    Ok(PreparedRun {
        config,
        plan,
        open_rows: open,
        output,
        total: whole,
        pages,
        tls,
        admin_port,
        live,
        metadata: about,
        figures,
        production: spec.production,
        notes,
    })
}

fn row_error(error: RowError) -> SetupError {
    SetupError::Usage(anyhow::Error::from_boxed(error))
}

/// The measured part of the trace, in trace time.
fn window(spec: &WorkloadSpec, measured: Window) -> Window {
    let plan = &spec.plan;
    let in_trace = |run: u64| plan.from.as_nanos().saturating_add((run as f64 / plan.stretch).round() as u64);
    // In a closed loop the trace's times do not apply.
    if plan.repeat || spec.arrivals == LoopMode::Closed {
        return Window { from: plan.from.as_nanos(), to: plan.to.map(Gap::as_nanos) };
    }
    let sent = [plan.duration.map(Gap::as_nanos), measured.to].into_iter().flatten().min();
    let to = [plan.to.map(Gap::as_nanos), sent.map(in_trace)].into_iter().flatten().min();
    Window { from: in_trace(measured.from), to }
}

fn encoder(args: &RunnerArgs, targets: &[TargetUrl], content: PromptGenerator) -> Result<RequestEncoder, SetupError> {
    let usage = |message: String| SetupError::Usage(anyhow::Error::msg(message));
    let (fields, exact) = (args.connections.fields().map_err(usage)?, args.requests.exact_output.into());
    let dialect = args.requests.dialect.as_deref();
    let encoder = RequestEncoder::new(
        content,
        targets.to_vec(),
        dialect,
        fields,
        exact,
        args.requests.cancel(),
        args.requests.seed,
    );
    let encoder = encoder.map_err(usage)?.with_own_fields(args.requests.body.own_fields());
    Ok(encoder.with_patterns(args.patterns()).with_key(args.connections.key().map_err(usage)?))
}

/// Limit on rows read ahead if the run's length is known without them: about a second's work.
const MAX_COUNTED_REQUESTS: u64 = 1_000_000;

/// Limit for a closed loop of unknown length: enough for mean lengths.
const MAX_SAMPLED_REQUESTS: u64 = 10_000;

/// Assumed output tokens if the row does not plan them.
const DEFAULT_OUTPUT_TOKENS: u64 = 128;

/// Limit on models to calibrate.
const MAX_CALIBRATED_MODELS: usize = 8;

/// An estimate of the workload from its schedule.
struct WorkloadEstimate {
    /// Planned requests and length.
    total: PlannedTotal,
    /// Selects the measured requests.
    measured: MeasurementWindow,
    /// Average load.
    load: OfferedLoad,
    /// The first row of each model.
    models: Vec<ScheduledRequest>,
    /// Prompt and output tokens of the rows.
    context: ContextDemand,
}

/// Reads the schedule once.
fn estimate_workload(
    args: &RunnerArgs,
    spec: &WorkloadSpec,
    encoder: &RequestEncoder,
) -> Result<WorkloadEstimate, SetupError> {
    let mut whole = PlannedTotal { requests: None, length: spec.plan.duration };
    let (mut requests, mut tokens, mut last) = (0, 0, Gap::ZERO);
    let mut models: Vec<ScheduledRequest> = Vec::new();
    let (mut sessions, mut context) = (false, ContextDemand::default());
    let most = match (spec.arrivals, spec.plan.duration) {
        (_, None) => u64::MAX,
        (LoopMode::Open, Some(_)) => MAX_COUNTED_REQUESTS,
        (LoopMode::Closed, Some(_)) => MAX_SAMPLED_REQUESTS,
    };
    for send in schedule_rows(spec, spec.plan.shard)? {
        let send = send.map_err(row_error)?;
        encoder.template(&send).map_err(|message| SetupError::Usage(anyhow::Error::msg(message)))?;
        if encoder.target(&send).is_none() {
            return Err(SetupError::Usage(anyhow::Error::msg(no_target(send.entry.model.as_deref()))));
        }
        requests += 1;
        tokens += send.entry.output_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS);
        let output = max_output_tokens(&send.entry).unwrap_or(0);
        context.add(encoder.prompt_tokens(&send.entry).saturating_add(output));
        last = last.max(send.at);
        sessions |= send.entry.session.is_some();
        if models.len() < MAX_CALIBRATED_MODELS && models.iter().all(|other| other.entry.model != send.entry.model) {
            models.push(send);
        }
        if requests == most {
            break;
        }
    }
    // The server's pace decides how many turns of live sessions fit before the end.
    let open = sessions && spec.sessions == SessionMode::Live && spec.arrivals == LoopMode::Open;
    whole.requests = Some(requests).filter(|requests| *requests < most && !(open && whole.length.is_some()));
    whole.length = whole.length.or(Some(last).filter(|_| spec.arrivals == LoopMode::Open));
    let from = match (args.timing.warmup, spec.arrivals) {
        (Some(WarmupArg::Duration(gap)), _) => Some(gap),
        // Counted over all shards, so that together they exclude the same requests as one machine would.
        (Some(WarmupArg::Requests(number)), LoopMode::Open) => {
            let first = schedule_rows(spec, Shard::default())?.nth(usize::try_from(number).unwrap_or(usize::MAX));
            first.transpose().map_err(row_error)?.map(|send| send.at)
        }
        (Some(WarmupArg::Requests(_)), LoopMode::Closed) | (None, _) => None,
    };
    let measured = measured_window(args, spec, (from.map(Gap::as_nanos), last), whole)?;
    let load = match spec.arrivals {
        LoopMode::Open => OfferedLoad::open(requests, last, tokens, spec.slots),
        LoopMode::Closed => OfferedLoad::closed(spec.slots, requests, tokens),
    };
    Ok(WorkloadEstimate { total: whole, measured, load, models, context })
}

/// The measurement window, from the first measured send time and the last send time.
fn measured_window(
    args: &RunnerArgs,
    spec: &WorkloadSpec,
    (from, last): (Option<u64>, Gap),
    whole: PlannedTotal,
) -> Result<MeasurementWindow, SetupError> {
    let usage = |message: String| Err(SetupError::Usage(anyhow::Error::msg(message)));
    let to = match (args.timing.cooldown, whole.length) {
        (Some(cooldown), Some(length)) => Some(length.as_nanos().saturating_sub(cooldown.as_nanos())),
        (Some(_), None) => {
            return usage(
                "--cooldown needs a known end; remedy: set with --duration how long requests are sent".to_owned(),
            );
        }
        (None, _) => None,
    };
    let open = spec.arrivals == LoopMode::Open;
    let last = if open { Some(last) } else { whole.length };
    if let Some(WarmupArg::Requests(number)) = args.timing.warmup {
        let few = if open { from.is_none() } else { whole.requests.is_some_and(|requests| number >= requests) };
        if few {
            return usage(format!("--warmup leaves nothing: the plan has no more than {number} requests"));
        }
    }
    // A shard may have no measured requests of its own.
    if spec.plan.shard.count == 1 {
        // The last request of a schedule is still sent; at the end of a closed loop none is.
        let end = to.or(last.map(|last| last.as_nanos() + u64::from(open))).unwrap_or(u64::MAX);
        if from.unwrap_or(0) >= end {
            let last = last.unwrap_or_default();
            return usage(format!("--warmup and --cooldown leave nothing: the last request is sent after {last}"));
        }
    }
    Ok(match args.timing.warmup {
        Some(WarmupArg::Requests(number)) if !open => MeasurementWindow::after_requests(number, to),
        _ => Window { from: from.unwrap_or(0), to }.into(),
    })
}

fn schedule_rows(
    spec: &WorkloadSpec,
    shard: Shard,
) -> Result<impl Iterator<Item = Result<ScheduledRequest, RowError>> + use<>, SetupError> {
    let open = Arc::clone(&spec.open_rows);
    Schedule::new(ReplayPlan { shard, ..spec.plan.clone() }, move || open()).map_err(row_error)
}
