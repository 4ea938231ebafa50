//! The flags of `replay`, `load` and `sweep`, by the headings of their help.

pub(in crate::cli) mod connections;
pub(in crate::cli) mod evaluation;
mod output;
pub(in crate::cli) mod requests;
pub(in crate::cli) mod timing;

use anyhow::Context as _;

use super::run_prefix::RunPrefix;
use crate::config::{InvalidStorageUrl, StorageUrl};
use crate::replay::sender::target::TargetUrl;
use crate::replay::server::scrape::ScrapeTarget;
use connections::ConnectionArgs;
use evaluation::EvaluationArgs;
use output::OutputArgs;
use requests::RequestArgs;
use timing::{StartAt, TimingArgs};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct RunnerArgs {
    /// Send requests to http://HOST:PORT[/PREFIX] or https://…; repeat it to alternate between targets
    ///
    /// With a model in front, e.g. `llama-*=http://…`, the target gets only the requests for that model.
    #[arg(long = "target", value_name = "[MODEL=]URL", required = true)]
    pub(in crate::cli) targets: Vec<String>,

    #[command(flatten)]
    pub(in crate::cli) output: OutputArgs,

    #[command(flatten)]
    pub(in crate::cli) timing: TimingArgs,

    #[command(flatten)]
    pub(in crate::cli) requests: RequestArgs,

    #[command(flatten)]
    pub(in crate::cli) connections: ConnectionArgs,

    #[command(flatten)]
    pub(in crate::cli) evaluation: EvaluationArgs,
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
        let fields = self.connections.secret_fields()?;
        let page = |text: &String| -> Result<ScrapeTarget, String> {
            let target: TargetUrl = text.parse().map_err(|error| format!("--server-metrics: {error}"))?;
            let same =
                |other: &TargetUrl| (other.tls, &other.host, other.port) == (target.tls, &target.host, target.port);
            let fields = if targets.iter().any(same) { fields.clone() } else { Vec::new() };
            Ok(ScrapeTarget { target, fields })
        };
        self.output.server_metrics.iter().map(page).collect()
    }

    /// Model pattern of each target.
    pub(super) fn patterns(&self) -> Vec<Option<String>> {
        self.targets.iter().map(|text| split_model(text).0.map(str::to_owned)).collect()
    }

    /// The prefix of --upload, which `--start-at all` needs. Not parsed by clap, whose errors quote the value.
    pub(super) fn run_prefix(&self) -> anyhow::Result<Option<RunPrefix>> {
        let Some(text) = &self.output.upload else {
            let needs_place = matches!(self.timing.start_at, Some(StartAt::AllShards));
            anyhow::ensure!(
                !needs_place,
                "--start-at all: the shards meet at the prefix of --upload; remedy: add --upload"
            );
            return Ok(None);
        };
        let url = StorageUrl::parse(text).unwrap_or(Err(InvalidStorageUrl)).context("--upload")?;
        anyhow::ensure!(!url.is_pattern(), "--upload: expected one prefix, without *");
        let prefix = RunPrefix::open(&url, self.timing.shard()?).with_context(|| format!("--upload {url}"))?;
        Ok(Some(prefix))
    }
}

/// Splits a target into its optional model and its URL.
pub(in crate::cli) fn split_model(text: &str) -> (Option<&str>, &str) {
    // A model name contains no scheme; a URL may contain `=` after its scheme.
    let parted = text.split_once('=').filter(|(model, _)| !model.is_empty() && !model.contains("://"));
    parted.map_or((None, text), |(model, url)| (Some(model), url))
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    #[test]
    fn only_a_page_at_a_target_is_told_what_requests_are() {
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
    fn a_target_may_have_a_model_in_front() {
        assert_eq!(split_model("llama-*=http://h"), (Some("llama-*"), "http://h"));
        assert_eq!(split_model("http://h/a=b"), (None, "http://h/a=b"));
    }
}
