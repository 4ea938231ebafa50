//! The flags of `replay`, `load` and `sweep`: targets, requests, connections, evaluation.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::Context as _;
use clap::ValueEnum;

use super::artifacts::ArtifactFormat;
use super::body_args::BodyArgs;
use super::run_prefix::RunPrefix;
use crate::cli::values::{parse_count_up_to, parse_duration, parse_positive_duration, percent};
use crate::config::{AdminAccessConfig, InvalidStorageUrl, StorageUrl};
use crate::export::admin::access::{AdminAccess, AdminCredentials};
use crate::measure::slo::Slo;
use crate::measure::slo::SloError;
use crate::measure::slo::criteria::Criteria;
use crate::measure::time::Gap;
use crate::replay::plan::schedule::Shard;
use crate::replay::request::encoder::CancelPolicy;
use crate::replay::request::template::ExactOutput;
use crate::replay::sender::target::TargetUrl;
use crate::replay::server::scrape::ScrapeTarget;
use crate::replay::{ClientAbort, ConnectionReuse};
use crate::report::condition::Condition;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RunnerArgs {
    /// Send requests to http://HOST:PORT[/PREFIX] or https://…; repeat it to alternate between targets
    ///
    /// With a model in front, e.g. `llama-*=http://…`, the target gets only the requests for that model.
    #[arg(long = "target", value_name = "[MODEL=]URL", required = true)]
    pub(in crate::cli) targets: Vec<String>,

    /// Write run.json, records.jsonl.zst and histograms.hlog into this folder [default: write nothing]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(in crate::cli) out: Option<PathBuf>,

    /// Upload the files of --out to this prefix of object storage after the run, e.g. s3://BUCKET/RUN
    #[arg(long, value_name = "URL", requires = "out", help_heading = "Output")]
    pub(in crate::cli) upload: Option<String>,

    /// Also write the result files of another tool, by its definitions; may be repeated
    #[arg(long = "out-format", value_name = "TOOL", value_delimiter = ',', requires = "out", help_heading = "Output")]
    pub(in crate::cli) out_formats: Vec<ArtifactFormat>,

    /// Add metadata to run.json, e.g. gpu=H100 or 'engine=vllm serve --max-num-seqs 64'; may be repeated
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = meta, requires = "out", help_heading = "Output")]
    pub(in crate::cli) meta: Vec<(String, String)>,

    /// Record this Prometheus endpoint once a second: queue, KV cache, preemptions, GPU; may be repeated
    ///
    /// The path defaults to /metrics.
    #[arg(long = "server-metrics", value_name = "URL", requires = "out", help_heading = "Output")]
    pub(in crate::cli) server_metrics: Vec<String>,

    /// Serve the live page, metrics and health on this address during the run [default: none]
    #[arg(long, value_name = "IP:PORT", help_heading = "Output")]
    pub(in crate::cli) admin: Option<SocketAddr>,

    /// Admit clients to --admin that send a bearer token of this file, which has one token per line
    #[arg(long, value_name = "FILE", requires = "admin", help_heading = "Output")]
    pub(in crate::cli) admin_token_file: Option<PathBuf>,

    /// Allow an --admin address beyond loopback without a token
    #[arg(long, requires = "admin", help_heading = "Output")]
    pub(in crate::cli) admin_insecure: bool,

    /// Print the summary as one JSON object
    #[arg(long, help_heading = "Output")]
    pub(in crate::cli) json: bool,

    /// Start sending at this UTC time, e.g. 2026-11-21T12:00:00Z, to synchronize several machines
    ///
    /// `all` starts when all shards of --shard are ready; they meet at the prefix of --upload.
    #[arg(long, value_name = "TIME|all", value_parser = start_at, help_heading = "Timing")]
    pub(in crate::cli) start_at: Option<StartAt>,

    /// Send part I of N of the load, e.g. 1/4, in whole sessions
    ///
    /// The N parts together are the load that one machine would send. `job/4` reads the part from JOB_COMPLETION_INDEX, which
    /// an Indexed Job of Kubernetes sets.
    #[arg(long, value_name = "I/N|job/N", value_parser = part, help_heading = "Timing")]
    pub(in crate::cli) shard: Option<ShardArg>,

    /// Exclude the first requests from the figures: a time, e.g. 30s, or a number, e.g. 100req
    #[arg(long, value_name = "DURATION|Nreq", value_parser = warmup, help_heading = "Timing")]
    pub(in crate::cli) warmup: Option<WarmupArg>,

    /// Exclude requests sent in the last DURATION of the run from the figures
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Timing")]
    pub(in crate::cli) cooldown: Option<Gap>,

    /// Send all requests in this dialect, e.g. openai.completions [default: the trace's, or openai.chat]
    #[arg(long, value_name = "NAME", help_heading = "Requests")]
    pub(in crate::cli) dialect: Option<String>,

    /// Build prompts from words that are one token in this tokenizer.json, for exact lengths
    ///
    /// Without it, the command asks the server's /tokenize endpoint, if there is one.
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub(in crate::cli) tokenizer: Option<PathBuf>,

    /// Shorten prompts by the N tokens that the server's chat template adds
    ///
    /// `auto` measures the overhead with two short requests before the run, and also corrects for words of more than one
    /// token. With a number, no calibration request is sent, not even to /tokenize.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = overhead, help_heading = "Requests")]
    pub(in crate::cli) prompt_overhead: PromptOverheadArg,

    /// Request responses of exactly the planned length, with `ignore_eos` and `min_tokens`
    ///
    /// `auto` omits these fields for public APIs, which reject them.
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = "Requests")]
    pub(in crate::cli) exact_output: ExactOutputArg,

    /// Seed for prompt text and random draws
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Requests")]
    pub(in crate::cli) seed: u64,

    #[command(flatten)]
    pub(in crate::cli) body: BodyArgs,

    /// Disconnect this share of clients early, e.g. 20% [default: none]
    #[arg(long, value_name = "PERCENT", value_parser = percent, requires = "cancel_after", help_heading = "Requests")]
    pub(in crate::cli) cancel_rate: Option<f64>,

    /// Disconnect the clients of --cancel-rate this long after sending, e.g. 2s, or after N tokens, e.g. 10tok
    #[arg(long, value_name = "DURATION|Ntok", value_parser = client_abort, requires = "cancel_rate", help_heading = "Requests")]
    pub(in crate::cli) cancel_after: Option<ClientAbort>,

    /// Add a header to every request, e.g. 'x-tenant: a'; may be repeated. The value is never written to a file
    #[arg(long = "header", value_name = "LINE", help_heading = "Connections")]
    pub(in crate::cli) headers: Vec<String>,

    /// Send the API key in this environment variable as a bearer token
    #[arg(long, value_name = "NAME", help_heading = "Connections")]
    pub(in crate::cli) api_key_env: Option<String>,

    /// Trust the certificates in this PEM file for https targets, instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Connections")]
    pub(in crate::cli) target_ca: Option<PathBuf>,

    /// Choose the connection of a request: an idle one, a new one, or one per session
    #[arg(long, value_name = "HOW", default_value = "reuse", help_heading = "Connections")]
    pub(in crate::cli) connections: ConnectionPolicy,

    /// Fail a request if connecting takes longer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_positive_duration, help_heading = "Connections")]
    pub(in crate::cli) connect_timeout: Gap,

    /// Fail a request if it takes longer, from sending to the last byte
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_positive_duration, help_heading = "Connections")]
    pub(in crate::cli) timeout: Gap,

    /// Number of sending threads, at most 256 [default: half the cores]
    #[arg(long, value_name = "N", value_parser = parse_count_up_to(MAX_WORKERS), help_heading = "Connections")]
    pub(in crate::cli) workers: Option<u32>,

    /// Count goodput by these objectives, e.g. 'chat: ttft<=500ms tpot<=50ms'; may be repeated
    #[arg(long = "slo", value_name = "SLO", help_heading = "Evaluation")]
    pub(in crate::cli) slos: Vec<Slo>,

    /// Exit with status 1 unless these hold, e.g. 'ttft.p95<=1s goodput>=95%'; may be repeated
    ///
    /// A condition may also state what must not hold, e.g. 'goodput<95%'. A failed request counts as slower than any limit.
    #[arg(long, value_name = "CONDITIONS", value_parser = conditions, help_heading = "Evaluation")]
    pub(in crate::cli) fail_if: Vec<Conditions>,

    /// Skip the 2.5 s self-test of this machine before the run; the result records that
    #[arg(long, help_heading = "Evaluation")]
    pub(in crate::cli) no_audit: bool,

    /// Send nothing and exit with status 3 if the self-test finds this machine too slow for the plan
    #[arg(long, conflicts_with = "no_audit", help_heading = "Evaluation")]
    pub(in crate::cli) strict: bool,

    /// Exit with status 3 if late sends add more than this to TTFT p50, p90 or p99: the run is then not valid
    ///
    /// E2E counts if nothing streams. A percentile counts if at least one whole request lies beyond it.
    #[arg(long, value_name = "DURATION", default_value = "10ms", value_parser = parse_positive_duration, help_heading = "Evaluation")]
    pub(in crate::cli) max_lag: Gap,
}

/// This process's shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum ShardArg {
    Explicit(Shard),
    /// One of N; Kubernetes sets the index.
    JobIndex(u64),
}

/// Guards against typing errors: no machine needs more, and each thread has its own sockets and memory.
const MAX_WORKERS: u32 = 256;

/// Index of a pod in a Kubernetes Indexed Job, from 0.
const JOB_INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// When to start sending.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum StartAt {
    Time(SystemTime),
    /// When all shards are ready.
    AllShards,
}

/// The warm-up, excluded from the figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum WarmupArg {
    Duration(Gap),
    Requests(u64),
}

/// Tokens that the server adds to every prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::cli) enum PromptOverheadArg {
    Auto,
    Tokens(u64),
}

/// Command-line form of [`ExactOutput`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum ExactOutputArg {
    Auto,
    On,
    Off,
}

/// Command-line form of [`ConnectionReuse`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum ConnectionPolicy {
    Reuse,
    Fresh,
    PerSession,
}

impl From<ExactOutputArg> for ExactOutput {
    fn from(exact: ExactOutputArg) -> Self {
        match exact {
            ExactOutputArg::Auto => Self::Auto,
            ExactOutputArg::On => Self::On,
            ExactOutputArg::Off => Self::Off,
        }
    }
}

impl From<ConnectionPolicy> for ConnectionReuse {
    fn from(reuse: ConnectionPolicy) -> Self {
        match reuse {
            ConnectionPolicy::Reuse => Self::Reuse,
            ConnectionPolicy::Fresh => Self::Fresh,
            ConnectionPolicy::PerSession => Self::PerSession,
        }
    }
}

impl RunnerArgs {
    /// The targets. Not parsed by clap, whose errors quote the value: it may hold credentials.
    pub(super) fn targets(&self) -> Result<Vec<TargetUrl>, String> {
        let parsed = self.targets.iter().map(|text| {
            let (_, url) = split_model(text);
            url.parse().map_err(|error| format!("--target: {error}"))
        });
        parsed.collect()
    }

    /// The `--server-metrics` pages. A page at a target gets the requests' headers and API key; other hosts get
    /// neither.
    pub(super) fn pages(&self, targets: &[TargetUrl]) -> Result<Vec<ScrapeTarget>, String> {
        let fields = self.secret_fields()?;
        let page = |text: &String| -> Result<ScrapeTarget, String> {
            let target: TargetUrl = text.parse().map_err(|error| format!("--server-metrics: {error}"))?;
            let same =
                |other: &TargetUrl| (other.tls, &other.host, other.port) == (target.tls, &target.host, target.port);
            let fields = if targets.iter().any(same) { fields.clone() } else { Vec::new() };
            Ok(ScrapeTarget { target, fields })
        };
        self.server_metrics.iter().map(page).collect()
    }

    /// The listener of the live page, and its access rules.
    pub(super) fn admin_port(&self) -> Result<Option<(TcpListener, AdminAccess)>, String> {
        let Some(address) = self.admin else { return Ok(None) };
        let (token_file, insecure) = (self.admin_token_file.clone(), self.admin_insecure);
        let access = AdminAccessConfig { token_file, insecure, ..AdminAccessConfig::default() };
        if !access.allows(address) {
            let remedy = "set --admin-token-file, or --admin-insecure if the network admits only those who may read it";
            return Err(format!("--admin: other machines can reach {address}, and it has no access control; {remedy}"));
        }
        let credentials = AdminCredentials::load(&access).map_err(|error| error.to_string())?;
        let listener = TcpListener::bind(address);
        let listener = listener.map_err(|error| format!("cannot listen on {address} (--admin): {error}"))?;
        Ok(Some((listener, AdminAccess::new(credentials))))
    }

    /// Model pattern of each target.
    pub(super) fn patterns(&self) -> Vec<Option<String>> {
        self.targets.iter().map(|text| split_model(text).0.map(str::to_owned)).collect()
    }

    /// The `--header` lines, as (name, value).
    pub(super) fn fields(&self) -> Result<Vec<(String, String)>, String> {
        self.headers.iter().map(|line| header(line).map_err(|error| format!("--header: {error}"))).collect()
    }

    /// The `--header` lines and the API key's header: for targets only.
    pub(super) fn secret_fields(&self) -> Result<Vec<(String, String)>, String> {
        let mut fields = self.fields()?;
        fields.extend(self.key()?.map(|key| ("authorization".to_owned(), format!("Bearer {key}"))));
        Ok(fields)
    }

    pub(super) fn key(&self) -> Result<Option<String>, String> {
        let Some(variable) = &self.api_key_env else { return Ok(None) };
        let key = std::env::var(variable).map_err(|_| format!("--api-key-env: there is no variable {variable}"))?;
        let fits = !key.is_empty() && http::HeaderValue::from_str(&key).is_ok();
        if !fits {
            return Err(format!("--api-key-env: {variable} holds no key"));
        }
        Ok(Some(key))
    }

    /// This process's shard.
    pub(in crate::cli) fn shard(&self) -> anyhow::Result<Shard> {
        match self.shard {
            None => Ok(Shard::default()),
            Some(ShardArg::Explicit(shard)) => Ok(shard),
            Some(ShardArg::JobIndex(of)) => {
                let index = std::env::var(JOB_INDEX_VARIABLE).ok();
                let index =
                    index.with_context(|| format!("--shard job/{of}: there is no variable {JOB_INDEX_VARIABLE}"))?;
                let index = index.parse().ok().filter(|index| *index < of);
                let index = index
                    .with_context(|| format!("--shard job/{of}: {JOB_INDEX_VARIABLE} is not from 0 to {}", of - 1))?;
                Ok(Shard { index, count: of })
            }
        }
    }

    /// The prefix of --upload, which `--start-at all` needs. Not parsed by clap, whose errors quote the value.
    pub(super) fn run_prefix(&self) -> anyhow::Result<Option<RunPrefix>> {
        let Some(text) = &self.upload else {
            let needs_place = matches!(self.start_at, Some(StartAt::AllShards));
            anyhow::ensure!(
                !needs_place,
                "--start-at all: the shards meet at the prefix of --upload; remedy: add --upload"
            );
            return Ok(None);
        };
        let url = StorageUrl::parse(text).unwrap_or(Err(InvalidStorageUrl)).context("--upload")?;
        anyhow::ensure!(!url.is_pattern(), "--upload: expected one prefix, without *");
        let prefix = RunPrefix::open(&url, self.shard()?).with_context(|| format!("--upload {url}"))?;
        Ok(Some(prefix))
    }

    /// Injected client aborts.
    pub(in crate::cli) fn cancel(&self) -> Option<CancelPolicy> {
        Some(CancelPolicy { rate: self.cancel_rate?, after: self.cancel_after? })
    }
}

fn start_at(text: &str) -> Result<StartAt, &'static str> {
    if text == "all" {
        return Ok(StartAt::AllShards);
    }
    let moment = humantime::parse_rfc3339(text).map(StartAt::Time);
    moment.map_err(|_| "expected a moment in UTC, as in 2026-11-21T12:00:00Z, or all")
}

/// Splits a target into its optional model and its URL.
pub(in crate::cli) fn split_model(text: &str) -> (Option<&str>, &str) {
    // A model name contains no scheme; a URL may contain `=` after its scheme.
    let parted = text.split_once('=').filter(|(model, _)| !model.is_empty() && !model.contains("://"));
    parted.map_or((None, text), |(model, url)| (Some(model), url))
}

fn part(text: &str) -> Result<ShardArg, &'static str> {
    const SHAPE: &str = "expected I/N with I from 1 to N, as in 1/4, or job/N";
    let (index, of) = text.split_once('/').ok_or(SHAPE)?;
    let of = of.parse().ok().filter(|of| *of > 0).ok_or(SHAPE)?;
    if index == "job" {
        return Ok(ShardArg::JobIndex(of));
    }
    let index = index.parse().ok().filter(|index| (1..=of).contains(index)).ok_or(SHAPE)?;
    Ok(ShardArg::Explicit(Shard { index: index - 1, count: of }))
}

/// The conditions of one `--fail-if`.
pub(in crate::cli) type Conditions = Vec<Condition>;

pub(in crate::cli) fn conditions(text: &str) -> Result<Conditions, SloError> {
    Condition::parse_all(text)
}

/// The goals of every level of a sweep, if conditions state them.
pub(in crate::cli) fn sweep_goals(conditions: &[Conditions]) -> anyhow::Result<Option<Criteria>> {
    let given = conditions.concat();
    if given.is_empty() {
        return Ok(None);
    }
    let text = given.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let goals = text.parse().map_err(|error| {
        anyhow::anyhow!(
            "--fail-if: {error}\nA sweep is judged by shares of requests; remedy: name one of its runs for other figures"
        )
    });
    goals.map(Some)
}

fn meta(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as in gpu=H100")?;
    match key.trim() {
        "" => Err("expected a key before the `=`, as in gpu=H100"),
        key => Ok((key.to_owned(), value.trim().to_owned())),
    }
}

fn warmup(text: &str) -> Result<WarmupArg, String> {
    match text.strip_suffix("req") {
        Some(number) => {
            number.trim().parse().map(WarmupArg::Requests).map_err(|_| "expected a number of requests".into())
        }
        None => parse_duration(text).map(WarmupArg::Duration).map_err(|error| error.to_string()),
    }
}

fn overhead(text: &str) -> Result<PromptOverheadArg, &'static str> {
    match text {
        "auto" => Ok(PromptOverheadArg::Auto),
        _ => text.parse().map(PromptOverheadArg::Tokens).map_err(|_| "expected a number of tokens, or auto"),
    }
}

fn client_abort(text: &str) -> Result<ClientAbort, String> {
    match text.strip_suffix("tok") {
        Some(number) => match number.trim().parse() {
            Ok(tokens) if tokens > 0 => Ok(ClientAbort::Tokens(tokens)),
            _ => Err("expected a number of tokens above 0".into()),
        },
        None => parse_duration(text).map(ClientAbort::After).map_err(|error| error.to_string()),
    }
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    const SHAPE: &str = "expected `name: value`";
    let (name, value) = text.split_once(':').ok_or(SHAPE)?;
    let (name, value) = (name.trim(), value.trim());
    http::HeaderName::from_bytes(name.as_bytes()).map_err(|_| SHAPE)?;
    http::HeaderValue::from_str(value).map_err(|_| "expected a value without control characters")?;
    const RESERVED_HEADERS: [&str; 5] = ["host", "content-length", "content-type", "transfer-encoding", "connection"];
    if RESERVED_HEADERS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        return Err("expected another header: this one is part of every request");
    }
    Ok((name.to_ascii_lowercase(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_at_a_target_is_told_what_requests_are() {
        use clap::{Args as _, FromArgMatches as _};
        let typed = [
            "x",
            "--target",
            "http://h:1/v1",
            "--out",
            "run",
            "--header",
            "x-tenant: one",
            "--server-metrics",
            "http://h:1/metrics",
            "--server-metrics",
            "http://h:2",
            "--server-metrics",
            "https://h:1/metrics",
        ];
        let matches = RunnerArgs::augment_args(clap::Command::new("x")).get_matches_from(typed);
        let sending = RunnerArgs::from_arg_matches(&matches).unwrap();
        let pages = sending.pages(&sending.targets().unwrap()).unwrap();
        let page_fields: Vec<_> = pages.iter().map(|page| (page.url(), page.fields.len())).collect();
        let expected = [("http://h:1/metrics", 1), ("http://h:2/metrics", 0), ("https://h:1/metrics", 0)];
        assert_eq!(page_fields, expected.map(|(url, fields)| (url.to_owned(), fields)));
    }

    #[test]
    fn values_are_taken_in_the_forms_that_the_help_shows() {
        assert_eq!(split_model("llama-*=http://h"), (Some("llama-*"), "http://h"));
        assert_eq!(split_model("http://h/a=b"), (None, "http://h/a=b"));
        assert_eq!(part("2/4"), Ok(ShardArg::Explicit(Shard { index: 1, count: 4 })));
        assert_eq!(part("job/4"), Ok(ShardArg::JobIndex(4)));
        assert!(part("0/4").is_err() && part("5/4").is_err() && part("4").is_err() && part("job/0").is_err());
        assert_eq!(meta("engine=vllm --x=1"), Ok(("engine".to_owned(), "vllm --x=1".to_owned())));
        assert!(meta("gpu").is_err() && meta("=H100").is_err());
        assert_eq!(warmup("100req"), Ok(WarmupArg::Requests(100)));
        assert_eq!(warmup("60s"), Ok(WarmupArg::Duration(Gap::from_millis(60_000))));
        assert_eq!((overhead("auto"), overhead("7")), (Ok(PromptOverheadArg::Auto), Ok(PromptOverheadArg::Tokens(7))));
        assert_eq!(client_abort("10tok"), Ok(ClientAbort::Tokens(10)));
        assert_eq!(client_abort("500ms"), Ok(ClientAbort::After(Gap::from_millis(500))));
        let goals = |text: &str| sweep_goals(&[conditions(text).unwrap()]).map(|goals| goals.unwrap().to_string());
        assert_eq!(goals("goodput < 95%  ttft.p95 <= 1s").unwrap(), "goodput>=95% ttft.p95<=1s");
        assert!(goals("osl.avg>=40").unwrap_err().to_string().contains("A sweep is judged by shares of requests"));
        assert_eq!(header("Authorization: Bearer x"), Ok(("authorization".to_owned(), "Bearer x".to_owned())));
        assert!(warmup("req").is_err() && client_abort("0tok").is_err());
        assert!(start_at("yesterday").is_err() && conditions("ttft<5%").is_err() && percent("101%").is_err());
        assert!(header("Host: x").is_err() && header("x").is_err() && header("a: b\r\nc: d").is_err());
    }
}
