//! Flags for what a run writes, records and serves.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use crate::cli::runner::artifacts::ArtifactFormat;
use crate::config::AdminAccessConfig;
use crate::export::admin::access::{AdminAccess, AdminCredentials};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct OutputArgs {
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
}

impl OutputArgs {
    /// The listener of the live page, and its access rules.
    pub(in crate::cli) fn admin_port(&self) -> Result<Option<(TcpListener, AdminAccess)>, String> {
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
}

fn meta(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, as in gpu=H100")?;
    match key.trim() {
        "" => Err("expected a key before the `=`, as in gpu=H100"),
        key => Ok((key.to_owned(), value.trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_split_at_the_first_equals_sign() {
        assert_eq!(meta("engine=vllm --x=1"), Ok(("engine".to_owned(), "vllm --x=1".to_owned())));
        assert!(meta("gpu").is_err() && meta("=H100").is_err());
    }
}
