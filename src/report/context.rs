//! The origin of the results: the load, the server and the machines. A report begins with it in every form.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::ascii_plot::replace_unprintable;
use super::engine_facts;
use super::source::ReportSource;
use crate::measure::calendar::utc;

/// Text of a fact that no source reports.
pub const UNKNOWN: &str = "unknown";
/// Maximum names in a list of models.
const MAX_NAMES: usize = 8;

/// The load of a run, as its flags describe it. Part of `run.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct LoadDescription {
    /// Process of the send times, for example `poisson` or `closed loop`.
    pub arrivals: Option<String>,
    /// Requests per second, or the factor on the times of a trace.
    pub rate: Option<String>,
    /// Maximum open requests.
    pub concurrency: Option<u32>,
    /// Distribution of prompt lengths, in tokens.
    pub isl: Option<String>,
    /// Distribution of response lengths, in tokens.
    pub osl: Option<String>,
    /// Sampling parameters of the requests.
    pub sampling: Option<String>,
    /// Prefixes that prompts share.
    pub prefixes: Option<String>,
    /// Turns and pauses of sessions.
    pub sessions: Option<String>,
}

/// Facts in the order of [`FactName`]. A fact without a value is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportContext(BTreeMap<FactName, String>);

/// A fact about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is documented by its label")]
pub enum FactName {
    Date,
    Command,
    Target,
    Model,
    Engine,
    EngineVersion,
    EngineFlags,
    Gpu,
    GpuCount,
    Interconnect,
    Precision,
    Parallelism,
    Arrivals,
    Rate,
    Concurrency,
    Isl,
    Osl,
    Sampling,
    Prefixes,
    Sessions,
    Duration,
    Seed,
    Trace,
    TraceDigest,
    Machine,
    StreamgaugeVersion,
}

impl FactName {
    /// All facts, in the order of a report.
    pub const ALL: [Self; 26] = [
        Self::Date,
        Self::Command,
        Self::Target,
        Self::Model,
        Self::Engine,
        Self::EngineVersion,
        Self::EngineFlags,
        Self::Gpu,
        Self::GpuCount,
        Self::Interconnect,
        Self::Precision,
        Self::Parallelism,
        Self::Arrivals,
        Self::Rate,
        Self::Concurrency,
        Self::Isl,
        Self::Osl,
        Self::Sampling,
        Self::Prefixes,
        Self::Sessions,
        Self::Duration,
        Self::Seed,
        Self::Trace,
        Self::TraceDigest,
        Self::Machine,
        Self::StreamgaugeVersion,
    ];

    /// Returns the key in JSON and CSV.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Date => "date",
            Self::Command => "command",
            Self::Target => "target",
            Self::Model => "model",
            Self::Engine => "engine",
            Self::EngineVersion => "engine_version",
            Self::EngineFlags => "engine_flags",
            Self::Gpu => "gpu",
            Self::GpuCount => "gpu_count",
            Self::Interconnect => "interconnect",
            Self::Precision => "precision",
            Self::Parallelism => "parallelism",
            Self::Arrivals => "arrivals",
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::Isl => "isl",
            Self::Osl => "osl",
            Self::Sampling => "sampling",
            Self::Prefixes => "prefixes",
            Self::Sessions => "sessions",
            Self::Duration => "duration",
            Self::Seed => "seed",
            Self::Trace => "trace",
            Self::TraceDigest => "trace_digest",
            Self::Machine => "machine",
            Self::StreamgaugeVersion => "streamgauge_version",
        }
    }

    /// Returns the name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::EngineVersion => "engine version",
            Self::EngineFlags => "engine flags",
            Self::Gpu => "GPU",
            Self::GpuCount => "GPUs",
            Self::Isl => "ISL",
            Self::Osl => "OSL",
            Self::TraceDigest => "trace digest",
            Self::StreamgaugeVersion => "Streamgauge",
            _ => self.key(),
        }
    }

    /// Returns `true` if the fact describes the load, so that runs that differ in it are different experiments.
    pub const fn describes_load(self) -> bool {
        matches!(
            self,
            Self::Arrivals
                | Self::Rate
                | Self::Concurrency
                | Self::Isl
                | Self::Osl
                | Self::Sampling
                | Self::Prefixes
                | Self::Sessions
                | Self::Trace
                | Self::TraceDigest
        )
    }

    /// Key of `--meta` that sets the fact.
    const fn meta_key(self) -> Option<&'static str> {
        match self {
            Self::Gpu
            | Self::GpuCount
            | Self::Interconnect
            | Self::Precision
            | Self::Parallelism
            | Self::Model
            | Self::Engine
            | Self::EngineVersion => Some(self.key()),
            _ => None,
        }
    }
}

impl JsonSchema for ReportContext {
    fn schema_name() -> Cow<'static, str> {
        "ReportContext".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let facts: Map<String, Value> = FactName::ALL
            .iter()
            .map(|name| (name.key().to_owned(), generator.subschema_for::<Option<String>>().to_value()))
            .collect();
        json_schema!({"type": "object", "description": "Facts of the run; null where no source reports one", "properties": facts})
    }
}

impl Serialize for ReportContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(FactName::ALL.len()))?;
        for name in FactName::ALL {
            map.serialize_entry(name.key(), &self.get(name))?;
        }
        map.end()
    }
}

impl ReportContext {
    /// Collects the facts of the sources. Where sources differ, a fact has each value. `models` are the models that
    /// requests named, and `seconds` is the measured time.
    pub fn of<'a>(
        sources: impl IntoIterator<Item = &'a ReportSource, IntoIter: Clone>,
        models: &BTreeSet<String>,
        seconds: f64,
    ) -> Self {
        let sources = sources.into_iter();
        let mut context = Self::default();
        for name in FactName::ALL {
            let values = sources.clone().filter_map(|source| fact(source, name));
            context.set(name, joined(values, MAX_NAMES));
        }
        context.set(FactName::Date, dates(sources.clone()));
        context.set(FactName::EngineFlags, engine_facts::flags(sources));
        context.set(FactName::Duration, (seconds > 0.0).then(|| format!("{seconds:.1} s measured")));
        if context.get(FactName::Model).is_none() {
            context.set(FactName::Model, joined(models.iter().cloned(), MAX_NAMES));
        }
        context
    }

    /// Returns a fact, or `None` if it is unknown.
    pub fn get(&self, name: FactName) -> Option<&str> {
        self.0.get(&name).map(String::as_str)
    }

    /// Returns every fact, with [`UNKNOWN`] where no source reports it.
    pub fn facts(&self) -> impl Iterator<Item = (FactName, &str)> {
        FactName::ALL.into_iter().map(|name| (name, self.get(name).unwrap_or(UNKNOWN)))
    }

    /// Returns the known facts as named lines, printable, and the unknown ones in one line.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let known = |name: FactName| {
            let value = self.get(name)?;
            match (name, self.get(FactName::EngineVersion)) {
                (FactName::Engine, Some(version)) => Some((name.label(), format!("{value} {version}"))),
                (FactName::EngineVersion, _) if self.get(FactName::Engine).is_some() => None,
                _ => Some((name.label(), value.to_owned())),
            }
        };
        let known = FactName::ALL.into_iter().filter_map(known);
        let mut lines: Vec<(&str, String)> = known.map(|(name, value)| (name, replace_unprintable(&value))).collect();
        let unknown: Vec<&str> =
            FactName::ALL.into_iter().filter(|name| self.get(*name).is_none()).map(FactName::label).collect();
        if !unknown.is_empty() {
            lines.push((UNKNOWN, unknown.join(", ")));
        }
        lines
    }

    fn set(&mut self, name: FactName, value: Option<String>) {
        if let Some(value) = value {
            self.0.insert(name, value);
        }
    }
}

/// Different values in their order, separated by commas, of which at most `shown` are named.
pub(super) fn joined(values: impl Iterator<Item = String>, shown: usize) -> Option<String> {
    let mut different: Vec<String> = Vec::new();
    for value in values {
        if !different.contains(&value) {
            different.push(value);
        }
    }
    let more = different.len().saturating_sub(shown);
    different.truncate(shown);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!different.is_empty()).then(|| different.join(", ") + &more)
}

/// The first start, and the last one if it differs.
fn dates<'a>(sources: impl Iterator<Item = &'a ReportSource> + Clone) -> Option<String> {
    let started = || sources.clone().filter_map(|source| source.started_unix_ns);
    let (first, last) = (utc(started().min()?), utc(started().max()?));
    Some(if first == last { first } else { format!("{first} to {last}") })
}

/// One fact of one source.
fn fact(source: &ReportSource, name: FactName) -> Option<String> {
    if let Some(value) = name.meta_key().and_then(|key| source.meta.get(key)) {
        return Some(value.clone());
    }
    let load = &source.load;
    let of_engines = |of: fn(&Value) -> Option<String>| joined(source.engines.values().filter_map(of), MAX_NAMES);
    match name {
        FactName::Command => (!source.command.is_empty()).then(|| shell_words(&source.command)),
        FactName::Target => joined(source.targets.iter().cloned(), MAX_NAMES),
        FactName::Model => of_engines(engine_facts::model),
        FactName::Engine => of_engines(engine_facts::name),
        FactName::EngineVersion => of_engines(engine_facts::version),
        FactName::Precision => of_engines(engine_facts::precision),
        FactName::Parallelism => of_engines(engine_facts::parallelism),
        FactName::Arrivals => load.arrivals.clone(),
        FactName::Rate => load.rate.clone(),
        FactName::Concurrency => match load.concurrency.or(source.slots) {
            Some(slots) => Some(format!("at most {slots} open")),
            None => load.arrivals.is_some().then(|| "unlimited".to_owned()),
        },
        FactName::Isl => load.isl.clone(),
        FactName::Osl => load.osl.clone(),
        FactName::Sampling => load.sampling.clone(),
        FactName::Prefixes => load.prefixes.clone(),
        FactName::Sessions => load.sessions.clone(),
        FactName::Seed => source.seed.map(|seed| seed.to_string()),
        FactName::Trace => match &source.trace {
            Some(trace) => Some(trace.clone()),
            None if source.tool.is_some() => None,
            None if source.run => load.arrivals.is_some().then(|| "none: synthetic load".to_owned()),
            None => Some(source.path.clone()),
        },
        FactName::TraceDigest => source.trace_digest.clone(),
        FactName::Machine => machine(&source.machine),
        FactName::StreamgaugeVersion => source.version.clone(),
        FactName::Date
        | FactName::EngineFlags
        | FactName::Gpu
        | FactName::GpuCount
        | FactName::Interconnect
        | FactName::Duration => None,
    }
}

/// The load generator's machine in one line.
fn machine(machine: &Value) -> Option<String> {
    let text = |key: &str| machine.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |key: &str| machine.get(key).and_then(Value::as_u64);
    let facts = [
        text("cpu"),
        number("cores").map(|cores| format!("{cores} cores")),
        number("memory_bytes").map(|bytes| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30))),
        text("os").zip(text("kernel")).map(|(os, kernel)| format!("{os} {kernel}")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    (!facts.is_empty()).then(|| facts.join(", "))
}

/// A command as a shell reads it.
fn shell_words(words: &[String]) -> String {
    let is_plain =
        |word: &str| !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "-_./:=,@%+".contains(c));
    let quoted =
        |word: &String| if is_plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run() -> ReportSource {
        let engine = json!({
            "/v1/models": {"id": "Qwen/Qwen3-8B", "owned_by": "vllm"},
            "/version": {"version": "0.32.0"},
        });
        ReportSource {
            run: true,
            targets: vec!["http://127.0.0.1:8000".to_owned()],
            engines: [("http://127.0.0.1:8000".to_owned(), engine)].into(),
            meta: [("gpu", "H100"), ("gpu_count", "8")].map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            command: ["streamgauge", "load", "--slo", "chat: ttft<=1s"].map(str::to_owned).to_vec(),
            started_unix_ns: Some(1_795_504_655_267_820_721),
            load: LoadDescription { isl: Some("fixed:100".to_owned()), ..LoadDescription::default() },
            ..ReportSource::default()
        }
    }

    #[test]
    fn facts_come_from_the_server_the_flags_and_the_metadata_and_the_others_are_unknown() {
        let context = ReportContext::of(&[run()], &BTreeSet::new(), 8.25);
        let known: Vec<(&str, &str)> =
            context.facts().filter(|(_, value)| *value != UNKNOWN).map(|(name, value)| (name.key(), value)).collect();
        assert_eq!(
            known,
            [
                ("date", "2026-11-24T07:17:35Z"),
                ("command", "streamgauge load --slo 'chat: ttft<=1s'"),
                ("target", "http://127.0.0.1:8000"),
                ("model", "Qwen/Qwen3-8B"),
                ("engine", "vllm"),
                ("engine_version", "0.32.0"),
                ("gpu", "H100"),
                ("gpu_count", "8"),
                ("isl", "fixed:100"),
                ("duration", "8.2 s measured"),
            ]
        );
        assert_eq!(context.facts().count(), FactName::ALL.len());
        assert_eq!(serde_json::to_value(&context).unwrap()["precision"], Value::Null);
    }

    #[test]
    fn metadata_wins_over_what_the_server_reports() {
        let mut run = run();
        run.meta.insert("engine_version".to_owned(), "0.32.0+patch".to_owned());
        let context = ReportContext::of(&[run.clone(), run], &BTreeSet::new(), 1.0);
        assert_eq!(context.get(FactName::EngineVersion), Some("0.32.0+patch"), "equal values are one");
    }
}
