//! Flags for the connections of a run, and for the headers of its requests.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::cli::values::{parse_count_up_to, parse_positive_duration};
use crate::measure::time::Gap;
use crate::replay::ConnectionReuse;

/// Guards against typing errors: no machine needs more, and each thread has its own sockets and memory.
const MAX_WORKERS: u32 = 256;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ConnectionArgs {
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
    #[arg(long = "connections", value_name = "HOW", default_value = "reuse", help_heading = "Connections")]
    pub(in crate::cli) policy: ConnectionPolicy,

    /// Fail a request if connecting takes longer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_positive_duration, help_heading = "Connections")]
    pub(in crate::cli) connect_timeout: Gap,

    /// Fail a request if it takes longer, from sending to the last byte
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_positive_duration, help_heading = "Connections")]
    pub(in crate::cli) timeout: Gap,

    /// Number of sending threads, at most 256 [default: half the cores]
    #[arg(long, value_name = "N", value_parser = parse_count_up_to(MAX_WORKERS), help_heading = "Connections")]
    pub(in crate::cli) workers: Option<u32>,
}

/// Command-line form of [`ConnectionReuse`].
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(in crate::cli) enum ConnectionPolicy {
    Reuse,
    Fresh,
    PerSession,
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

impl ConnectionArgs {
    /// The `--header` lines, as (name, value).
    pub(in crate::cli) fn fields(&self) -> Result<Vec<(String, String)>, String> {
        self.headers.iter().map(|line| header(line).map_err(|error| format!("--header: {error}"))).collect()
    }

    /// The `--header` lines and the API key's header: for targets only.
    pub(in crate::cli) fn secret_fields(&self) -> Result<Vec<(String, String)>, String> {
        let mut fields = self.fields()?;
        fields.extend(self.key()?.map(|key| ("authorization".to_owned(), format!("Bearer {key}"))));
        Ok(fields)
    }

    pub(in crate::cli) fn key(&self) -> Result<Option<String>, String> {
        let Some(variable) = &self.api_key_env else { return Ok(None) };
        let key = std::env::var(variable).map_err(|_| format!("--api-key-env: there is no variable {variable}"))?;
        let fits = !key.is_empty() && http::HeaderValue::from_str(&key).is_ok();
        if !fits {
            return Err(format!("--api-key-env: {variable} holds no key"));
        }
        Ok(Some(key))
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
    fn a_header_is_a_name_and_a_value_that_the_command_does_not_set_itself() {
        assert_eq!(header("Authorization: Bearer x"), Ok(("authorization".to_owned(), "Bearer x".to_owned())));
        assert!(header("Host: x").is_err() && header("x").is_err() && header("a: b\r\nc: d").is_err());
    }
}
