//! `streamgauge doctor`: what is in the way of a good deployment on this machine.

mod finding;
mod machine;
mod network;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;

pub(super) use self::finding::DoctorFinding;
use self::finding::FindingStatus;
use super::terminal;
use super::verb_help::VerbHelp;
use crate::config::{ConfigSource, LoadedConfig, RawSettings};
use crate::proxy::Proxy;

/// Check a machine before the proxy runs there
///
/// Run it where the proxy will run, as its user and with its settings: the checks read limits, try the ports, and connect to
/// the inference server and the OTLP collector. The only requests list the capture's bucket and read the engine's metrics, and
/// nothing is changed. The exit code is 0 if there is no
/// problem (there may be warnings), 1 if there is one, and 2 for a wrong command line.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Read settings from this YAML file; STREAMGAUGE_CONFIG names it too
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,

    /// Print the findings as a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    settings: RawSettings,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["config", "json", "upstream", "listen", "admin"],
    examples: &[
        ("Check a machine before the proxy runs there", "streamgauge doctor --upstream http://127.0.0.1:8000"),
        ("Print what is wrong with a configuration", "streamgauge doctor --config streamgauge.yaml --json"),
    ],
};

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    super::descriptors::raise_fd_limit();
    let source = ConfigSource::from_process(args.settings, args.config);
    let mut findings = Vec::new();
    let loaded = match source.load() {
        Ok(loaded) => {
            findings.extend(configuration(&loaded));
            Some(loaded)
        }
        Err(error) => {
            let remedy = "correct the configuration; the checks that depend on it are left out";
            findings.push(DoctorFinding::problem("configuration", error.to_string(), remedy));
            None
        }
    };
    findings.extend(machine::findings(loaded.as_ref().map(|loaded| loaded.config.limits.streams)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    findings.push(runtime.block_on(network::time_stamps()));
    if let Some(loaded) = &loaded {
        findings.extend(network::ports(&loaded.config));
        findings.push(runtime.block_on(network::upstream(&loaded.config)));
        findings.extend(runtime.block_on(network::engine_page(&loaded.config)));
        findings.extend(runtime.block_on(network::collectors(&loaded.otlp)));
        findings.extend(network::bucket(&loaded.config));
    }
    runtime.shutdown_background();
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&findings)?),
        false => finding::text(&findings),
    };
    let printed = terminal::print(&text)?;
    let is_problem = findings.iter().any(|finding| finding.status == FindingStatus::Problem);
    Ok(if is_problem { ExitCode::FAILURE } else { printed })
}

/// Findings of `proxy --check`.
fn configuration(loaded: &LoadedConfig) -> Vec<DoctorFinding> {
    const CHECK: &str = "configuration";
    let warning =
        |warning: &String| DoctorFinding::warning(CHECK, warning.clone(), "correct the setting that it names");
    let mut findings: Vec<DoctorFinding> = loaded.warnings.iter().map(warning).collect();
    findings.push(match Proxy::check(&loaded.config, &loaded.otlp) {
        Ok(()) => {
            DoctorFinding::ok(CHECK, format!("valid, and so are the files that it names ({})", loaded.config.digest()))
        }
        Err(error) => DoctorFinding::problem(
            CHECK,
            format!("{:#}", anyhow::Error::from(error)),
            "correct the file or the setting",
        ),
    });
    findings
}
