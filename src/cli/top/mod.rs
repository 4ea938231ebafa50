//! `streamgauge top`: the live page in a terminal, for one or many instances.
//!
//! It reads the live page's own data, `/api/history`, and not `/metrics`. One reply has the last seconds already, so
//! the first table is complete. Its distributions are finer than the buckets of a scrape.
//! The sessions are those of `/api/state`.

mod row;
mod window;

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use clap::ValueHint;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::JoinSet;

pub(super) use self::row::TopRow;
use self::window::{HistoryReply, StateReply, TopSessions};
use super::signals::StopSignals;
use super::status_block::StatusBlock;
use super::terminal;
use super::verb_help::VerbHelp;
use crate::clock::Clock;
use crate::config::ADMIN_PORT;
use crate::export::admin::access::read_tokens;
use crate::measure::time::Gap;
use crate::net::tls;
use crate::replay::sender::target::TargetUrl;
use crate::replay::server::page_client::PageClient;

/// Length of the window, as on the live page.
const WINDOW_SECONDS: u64 = 10;
const POLL_INTERVAL: Gap = Gap::from_millis(1_000);
/// Time limit of one instance's reply, which is then a row with this reason.
const POLL_TIMEOUT: Gap = Gap::from_millis(2_000);
/// Limit on a reply: 64 models in ten seconds have less than 1 MiB.
const MAX_REPLY_BYTES: usize = 4 << 20;
/// Rows of the updating table; `--once` prints all.
const MAX_SCREEN_ROWS: usize = 20;

/// Show the figures of running instances in a table, worst first
///
/// The table covers the last ten seconds and updates once a second. Each instance is a proxy, or a run with --admin. The mark
/// of a row is ✗ if the instance or its server cannot be reached or requests fail, ! if an SLO is below its target or streams
/// are open and no token comes, and ✓ otherwise. With --once the exit code is 1 if an instance cannot be read.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Read these admin addresses: HOST, HOST:PORT or a URL; the port defaults to 9464
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,

    /// Print the table once and exit
    #[arg(long)]
    once: bool,

    /// With --once, print the rows as a JSON array
    #[arg(long, requires = "once")]
    json: bool,

    /// Send the first bearer token of this file to every instance
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,

    /// Trust the certificates in this PEM file for https addresses, instead of the system's
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca: Option<PathBuf>,
}

pub(super) const HELP: VerbHelp = VerbHelp {
    flags: &["once", "json", "token-file", "ca"],
    examples: &[
        ("Watch the proxy of this machine", "streamgauge top 127.0.0.1"),
        (
            "Watch several instances, which ask for a token",
            "streamgauge top --token-file token gpu1 gpu2 https://gpu3:9464",
        ),
        (
            "List the instances that are not well",
            "streamgauge top --once --json gpu1 gpu2 |\n      jq '.[] | select(.status != \"ok\")'",
        ),
    ],
};

/// One instance, as it was named.
struct TopInstance {
    address: String,
    history: PageClient,
    state: PageClient,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let instances = match instances(args) {
        Ok(instances) => Rc::new(instances),
        Err(error) => return Ok(terminal::usage_error(&format!("{error:#}"))),
    };
    let mut screen = StatusBlock::on_stderr();
    if !args.once && !screen.is_terminal() {
        return Ok(terminal::usage_error(&"stderr is no terminal, where the table could update; remedy: --once"));
    }
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let done = runtime.block_on(async {
        if args.once {
            return print_once(&poll(&instances).await, args.json);
        }
        let mut stop = StopSignals::new().context("cannot wait for signals")?;
        let colourful = terminal::supports_colour(&std::io::stderr());
        let mut next = Clock::Monotonic.now();
        loop {
            let rows = tokio::select! {
                rows = poll(&instances) => rows,
                () = stop.wait() => break,
            };
            screen.replace(&screen_text(&rows, colourful));
            next = next.after(POLL_INTERVAL).max(Clock::Monotonic.now());
            tokio::select! {
                () = Clock::Monotonic.sleep_until(next) => {}
                () = stop.wait() => break,
            }
        }
        Ok(ExitCode::SUCCESS)
    });
    runtime.shutdown_background();
    done
}

/// The instances of the command line.
fn instances(args: &Args) -> anyhow::Result<Vec<TopInstance>> {
    let tokens = args.token_file.as_deref().map(read_tokens).transpose();
    let tokens = tokens.map_err(|reason| anyhow::anyhow!("--token-file: {reason}"))?.unwrap_or_default();
    let first = tokens.into_iter().take(1);
    let fields: Vec<_> = first.map(|token| ("authorization".to_owned(), format!("Bearer {token}"))).collect();
    let targets = args.addresses.iter().map(|address| {
        let target = url(address).parse::<TargetUrl>();
        let target = target.map_err(|error| anyhow::anyhow!("an address: {error}; or HOST:PORT of an admin port"))?;
        anyhow::Ok((address.clone(), target))
    });
    let targets = targets.collect::<anyhow::Result<Vec<_>>>()?;
    let tls = match targets.iter().any(|(_, target)| target.tls) {
        true => Some(Arc::new(tls::client(args.ca.as_deref(), None, &["http/1.1"]).context("--ca")?)),
        false => None,
    };
    let path = format!("/api/history?by_model=true&seconds={WINDOW_SECONDS}");
    let instance = |(address, target): (String, TargetUrl)| {
        let page = |path| PageClient::new(target.clone(), tls.clone(), POLL_TIMEOUT, path, fields.clone());
        TopInstance { address, history: page(&path), state: page("/api/state") }
    };
    Ok(targets.into_iter().map(instance).collect())
}

/// The URL of an address, with the port of admin ports if it has none.
fn url(address: &str) -> String {
    if address.contains("://") {
        return address.to_owned();
    }
    let has_port = address.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    if has_port { format!("http://{address}") } else { format!("http://{address}:{ADMIN_PORT}") }
}

/// The rows of all instances, worst first.
async fn poll(instances: &Rc<Vec<TopInstance>>) -> Vec<TopRow> {
    let mut replies = JoinSet::new();
    for at in 0..instances.len() {
        let instances = Rc::clone(instances);
        replies.spawn_local(async move { rows_of(&instances[at]).await });
    }
    let mut rows: Vec<TopRow> = replies.join_all().await.into_iter().flatten().collect();
    rows.sort_by(TopRow::cmp_worst_first);
    rows
}

async fn rows_of(instance: &TopInstance) -> Vec<TopRow> {
    let (history, state) = tokio::join!(instance.history.fetch(MAX_REPLY_BYTES), instance.state.fetch(MAX_REPLY_BYTES));
    let state = state.ok().and_then(|bytes| serde_json::from_slice::<StateReply>(&bytes).ok());
    let sessions = state.and_then(|state| state.sessions).map(TopSessions::of);
    let read = history.and_then(|bytes| {
        serde_json::from_slice::<HistoryReply>(&bytes).map_err(|_| "the reply is not that of an admin port".to_owned())
    });
    match read {
        Ok(reply) => TopRow::of_instance(&instance.address, &reply, sessions),
        Err(reason) => vec![TopRow::unreadable(&instance.address, reason)],
    }
}

fn print_once(rows: &[TopRow], json: bool) -> anyhow::Result<ExitCode> {
    let text = match json {
        true => serde_json::to_string_pretty(rows)? + "\n",
        false => row::table(rows, terminal::supports_colour(&std::io::stdout())),
    };
    let printed = terminal::print(&text)?;
    Ok(if rows.iter().any(TopRow::is_unreadable) { ExitCode::FAILURE } else { printed })
}

fn screen_text(rows: &[TopRow], colourful: bool) -> String {
    let shown = &rows[..rows.len().min(MAX_SCREEN_ROWS)];
    let title = format!("the last {WINDOW_SECONDS} s, latencies in ms, worst first; Ctrl-C ends");
    let left_out = match rows.len() - shown.len() {
        0 => String::new(),
        rows => format!("{rows} better rows are left out; --once lists them\n"),
    };
    format!("{title}\n\n{}{left_out}", row::table(shown, colourful))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_is_an_admin_port() {
        for (address, expected) in [
            ("gpu1", "http://gpu1:9464"),
            ("gpu1:80", "http://gpu1:80"),
            ("[::1]", "http://[::1]:9464"),
            ("[::1]:80", "http://[::1]:80"),
            ("10.0.0.1", "http://10.0.0.1:9464"),
            ("https://gpu3:9464", "https://gpu3:9464"),
        ] {
            assert_eq!(url(address), expected);
        }
    }
}
