//! Scrapes the servers' metrics once per second and stores them beside the records.
//!
//! One thread scrapes all servers and shares nothing with the sending threads. Each server has its own task, so a slow
//! one delays no other; its next scrape is at the next whole second after its response. The first scrape comes before
//! time zero and the last one after the last response. So the run's share of a counter is known.
//!
//! Pages are untrusted: each has a timeout of five seconds and a limit of 4 MiB, and only numbers under known names are
//! kept ([`server_metrics`](crate::measure::server_metrics)). A failed scrape becomes a row with its reason and stops
//! nothing.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustls::ClientConfig;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

use super::http_fetch::{FetchRequest, fetch};
use crate::clock::Clock;
use crate::measure::server_metrics::metric_names;
use crate::measure::time::{Gap, Stamp};
use crate::replay::sender::target::{TargetConnector, TargetUrl};
use crate::trace_file::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader, ScrapesWriter, VERSION};

/// Time between two scrapes of a server.
pub const SCRAPE_INTERVAL: Gap = Gap::from_millis(1_000);
/// Timeout of a scrape. A busy Python server takes a second or two.
const SCRAPE_TIMEOUT: Gap = Gap::from_millis(5_000);
/// Timeout of the last scrape, when all else has ended.
const FINAL_SCRAPE_TIMEOUT: Gap = Gap::from_millis(2_000);
/// Page size limit: vLLM's pages have 60 KB, those of a machine with eight GPUs 100 KB.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// Time from the first scrape to time zero.
const FIRST_SCRAPE_LEAD: Gap = Gap::from_millis(250);
/// Used if the URL has no path.
const DEFAULT_METRICS_PATH: &str = "/metrics";

/// A page to scrape.
#[derive(Clone)]
pub struct ScrapeTarget {
    /// Server and path.
    pub target: TargetUrl,
    /// Additional header lines, as (name, value). They may hold credentials: never log or store them.
    pub fields: Vec<(String, String)>,
}

/// Scrape results of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ScrapeStats {
    /// The page's URL.
    pub url: String,
    /// Scrapes that returned figures.
    pub scrapes: u64,
    /// Scrapes that failed.
    pub failed: u64,
    /// Reason of the first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
}

/// A running scraper.
pub struct Scraper {
    order: watch::Sender<ScrapeCommand>,
    state: Arc<Mutex<ScrapeState>>,
    thread: JoinHandle<io::Result<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrapeCommand {
    Run,
    /// Scrape once more and end.
    Last,
    /// End now.
    Stop,
}

#[derive(Debug)]
struct ScrapeState {
    scraped: Vec<ScrapeStats>,
    /// Failures not yet reported to the user.
    warnings: Vec<String>,
}

impl ScrapeTarget {
    /// The URL for display.
    pub fn url(&self) -> String {
        let TargetUrl { tls, .. } = &self.target;
        format!("{}://{}{}", if *tls { "https" } else { "http" }, self.target.authority(), self.path())
    }

    fn path(&self) -> &str {
        if self.target.base.is_empty() { DEFAULT_METRICS_PATH } else { &self.target.base }
    }
}

impl Scraper {
    /// Starts the scraper thread. `begin` is the run's time zero; the file goes into `folder`.
    ///
    /// # Errors
    /// The file cannot be created, or the system cannot start a thread.
    pub fn start(
        folder: &Path,
        pages: Vec<ScrapeTarget>,
        tls: Option<Arc<ClientConfig>>,
        begin: Stamp,
    ) -> io::Result<Self> {
        let header = ScrapesHeader {
            streamgauge_server_metrics: VERSION,
            started_unix_ns: Clock::Monotonic.unix_nanos(begin),
            servers: pages.iter().map(ScrapeTarget::url).collect(),
        };
        let scraped =
            header.servers.iter().map(|url| ScrapeStats { url: url.clone(), ..ScrapeStats::default() }).collect();
        let state = Arc::new(Mutex::new(ScrapeState { scraped, warnings: Vec::new() }));
        let writer = ScrapesWriter::create(&folder.join(SERVER_METRICS_FILE), &header)?;
        let (order, orders) = watch::channel(ScrapeCommand::Run);
        let shared_state = Arc::clone(&state);
        let thread = thread::Builder::new().name("server-metrics".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
            runtime.block_on(scrape_all(pages, tls, begin, orders, shared_state, writer))
        })?;
        Ok(Self { order, state, thread })
    }

    /// Drains the unreported warnings: the first failure of each server.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).warnings)
    }

    /// Ends the scraper, with `once_more` after a last scrape if time allows. Returns each server's results and the
    /// result of the file's writes.
    pub fn finish(self, once_more: bool) -> (Vec<ScrapeStats>, io::Result<()>) {
        self.order.send_replace(if once_more { ScrapeCommand::Last } else { ScrapeCommand::Stop });
        let panicked = || Err(io::Error::other("the thread of --server-metrics panicked"));
        let written = self.thread.join().unwrap_or_else(|_| panicked());
        (self.state.lock().unwrap_or_else(PoisonError::into_inner).scraped.clone(), written)
    }
}

/// Writes the rows. The first write error stops the writes and is reported at the end.
struct ScrapeSink {
    writer: ScrapesWriter,
    written: io::Result<()>,
    state: Arc<Mutex<ScrapeState>>,
}

async fn scrape_all(
    pages: Vec<ScrapeTarget>,
    tls: Option<Arc<ClientConfig>>,
    begin: Stamp,
    orders: watch::Receiver<ScrapeCommand>,
    state: Arc<Mutex<ScrapeState>>,
    writer: ScrapesWriter,
) -> io::Result<()> {
    let rows = Rc::new(RefCell::new(ScrapeSink { writer, written: Ok(()), state }));
    let tasks: Vec<_> = pages
        .into_iter()
        .enumerate()
        .map(|(server, page)| {
            let tls = tls.clone().filter(|_| page.target.tls);
            let connector = TargetConnector::new(page.target.clone(), tls, SCRAPE_TIMEOUT);
            let each = ScrapeTask { server, page, connector, begin, rows: Rc::clone(&rows) };
            tokio::task::spawn_local(each.run(orders.clone()))
        })
        .collect();
    for task in tasks {
        task.await.map_err(io::Error::other)?;
    }
    match Rc::into_inner(rows).map(RefCell::into_inner) {
        Some(ScrapeSink { writer, written, .. }) => written.and(writer.finish()),
        None => Err(io::Error::other("a scrape has not ended")),
    }
}

/// The scrapes of one server.
struct ScrapeTask {
    server: usize,
    page: ScrapeTarget,
    connector: TargetConnector,
    begin: Stamp,
    rows: Rc<RefCell<ScrapeSink>>,
}

impl ScrapeTask {
    async fn run(self, mut orders: watch::Receiver<ScrapeCommand>) {
        let clock = Clock::Monotonic;
        let mut next = Stamp::from_nanos(self.begin.as_nanos().saturating_sub(FIRST_SCRAPE_LEAD.as_nanos()));
        loop {
            let order = *orders.borrow_and_update();
            if order == ScrapeCommand::Run && next > clock.now() {
                tokio::select! {
                    () = clock.sleep_until(next) => {}
                    // A closed channel means that the run has gone.
                    changed = orders.changed() => if changed.is_err() { return } else { continue },
                }
            }
            let patience = match order {
                ScrapeCommand::Run => SCRAPE_TIMEOUT,
                ScrapeCommand::Last => FINAL_SCRAPE_TIMEOUT,
                ScrapeCommand::Stop => return,
            };
            let at = clock.now();
            let answer = clock.timeout(patience, self.fetch_page());
            let answer = tokio::select! {
                answer = answer => answer,
                // The last scrape replaces a pending one.
                changed = orders.wait_for(|now| *now != order) => if changed.is_err() { return } else { continue },
            };
            let answer = answer.unwrap_or_else(|| Err(format!("no answer within {patience}")));
            self.record(at, answer);
            if order == ScrapeCommand::Last {
                return;
            }
            let since = clock.now().since(self.begin).as_nanos();
            let before_zero = clock.now() < self.begin;
            let whole = if before_zero { 0 } else { since / SCRAPE_INTERVAL.as_nanos() + 1 };
            next = self.begin.after(Gap::from_nanos(whole * SCRAPE_INTERVAL.as_nanos()));
        }
    }

    async fn fetch_page(&self) -> Result<String, String> {
        let question = FetchRequest {
            target: &self.page.target,
            path: self.page.path(),
            accept: "text/plain;version=0.0.4",
            fields: &self.page.fields,
            body: None,
        };
        let page =
            fetch(&self.connector, question, MAX_PAGE_BYTES).await.map_err(|unanswered| unanswered.to_string())?;
        Ok(String::from_utf8_lossy(&page).into_owned())
    }

    /// Counts the scrape and writes its row.
    fn record(&self, at: Stamp, answer: Result<String, String>) {
        let took = Clock::Monotonic.now().since(at).as_nanos();
        let figures = answer.map(|page| metric_names::figures(&page)).and_then(|figures| match figures.is_empty() {
            true => Err("the page has no figure of a server that is known".to_owned()),
            false => Ok(figures),
        });
        let mut rows = self.rows.borrow_mut();
        {
            let mut state = rows.state.lock().unwrap_or_else(PoisonError::into_inner);
            let ScrapeState { scraped, warnings: news } = &mut *state;
            let of = &mut scraped[self.server];
            match &figures {
                Ok(_) => of.scrapes += 1,
                Err(why) => {
                    of.failed += 1;
                    if of.first_failure.is_none() {
                        of.first_failure = Some(why.clone());
                        news.push(format!(
                            "note: no figures from {} (--server-metrics): {why}; the run goes on",
                            of.url
                        ));
                    }
                }
            }
        }
        let (figures, failed) = match figures {
            Ok(figures) => (figures, None),
            Err(why) => (Default::default(), Some(why)),
        };
        let late = at.since(self.begin).as_nanos();
        let early = self.begin.since(at).as_nanos();
        let at = late.cast_signed() - early.cast_signed();
        if rows.written.is_ok() {
            let row = Scrape { at, server: self.server, took, figures, failed };
            rows.written = rows.writer.write(&row);
        }
    }
}
