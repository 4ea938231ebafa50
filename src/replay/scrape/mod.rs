//! Asks servers once a second what they say of themselves, and writes it down beside the records.
//!
//! One thread does it for all of them, which shares nothing with those that send; each server is a task of its own, so that
//! one that is slow delays no other, and is asked again at the next whole second after its answer. The first time is
//! before time zero and the last after the last reply, so that counters can be told from what was there before.
//!
//! A page is believed to be hostile: it has five seconds and 4 MiB, and of what it says only numbers under names
//! that are known are kept ([`names`]). A scrape that fails is a row that says why; it stops nothing.

pub mod exposition;
pub mod metric_names;

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustls::ClientConfig;
use serde::Serialize;
use tokio::sync::watch;

use super::http_fetch::{FetchRequest, fetch};
use super::target::{TargetConnector, TargetUrl};
use crate::capture::server_metrics::{SERVER_METRICS_FILE, Scrape, ScrapesHeader, ScrapesWriter, VERSION};
use crate::clock::Clock;
use crate::measure::time::{Gap, Stamp};

/// How often a server is asked.
pub const SCRAPE_INTERVAL: Gap = Gap::from_millis(1_000);
/// How long it may take to answer. A busy Python server takes a second or two.
const SCRAPE_TIMEOUT: Gap = Gap::from_millis(5_000);
/// How long the last answer is waited for when everything else has ended.
const FINAL_SCRAPE_TIMEOUT: Gap = Gap::from_millis(2_000);
/// The largest page: vLLM's are 60 KB, those of a machine of eight GPUs 100.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// The first time is so long before time zero.
const FIRST_SCRAPE_LEAD: Gap = Gap::from_millis(250);
/// Where servers have their figures, unless the URL says.
const DEFAULT_METRICS_PATH: &str = "/metrics";

/// A page to be asked for.
#[derive(Clone)]
pub struct ScrapeTarget {
    /// Where it is; its path is the page's.
    pub target: TargetUrl,
    /// Further header lines, as (name, value). They may hold credentials: never to be written anywhere.
    pub fields: Vec<(String, String)>,
}

/// What became of the scrapes of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScrapeStats {
    /// The page.
    pub url: String,
    /// How many had figures.
    pub scrapes: u64,
    /// How many had none.
    pub failed: u64,
    /// Why the first of these had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<String>,
}

/// Scrapes that go on.
pub struct Scraper {
    order: watch::Sender<ScrapeCommand>,
    state: Arc<Mutex<ScrapeState>>,
    thread: JoinHandle<io::Result<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScrapeCommand {
    Run,
    /// Ask once more, and end.
    Last,
    /// End.
    Stop,
}

#[derive(Debug)]
struct ScrapeState {
    scraped: Vec<ScrapeStats>,
    /// Failures that nobody has been told of.
    warnings: Vec<String>,
}

impl ScrapeTarget {
    /// The URL, as it is shown.
    pub fn url(&self) -> String {
        let TargetUrl { tls, .. } = &self.target;
        format!("{}://{}{}", if *tls { "https" } else { "http" }, self.target.authority(), self.path())
    }

    fn path(&self) -> &str {
        if self.target.base.is_empty() { DEFAULT_METRICS_PATH } else { &self.target.base }
    }
}

impl Scraper {
    /// Begins to ask. `begin` is time zero of the run, whose folder is given.
    ///
    /// # Errors
    /// When the file cannot be made, or the system gives no thread.
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
        let told = Arc::clone(&state);
        let thread = thread::Builder::new().name("server-metrics".to_owned()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
            runtime.block_on(scrape_all(pages, tls, begin, orders, told, writer))
        })?;
        Ok(Self { order, state, thread })
    }

    /// What people should know that they have not been told: of each server its first failure.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).warnings)
    }

    /// Ends, after one more scrape if there is time for it; what became of all of them, and whether they are written.
    pub fn finish(self, once_more: bool) -> (Vec<ScrapeStats>, io::Result<()>) {
        self.order.send_replace(if once_more { ScrapeCommand::Last } else { ScrapeCommand::Stop });
        let panicked = || Err(io::Error::other("the thread of --server-metrics panicked"));
        let written = self.thread.join().unwrap_or_else(|_| panicked());
        (self.state.lock().unwrap_or_else(PoisonError::into_inner).scraped.clone(), written)
    }
}

/// Where the rows go: the first failure to write ends the writing, and is told at the end.
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

/// One server.
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
                    // Whoever gave orders is gone: there is nobody to scrape for.
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
                // The end does not wait for an answer that it will ask for again.
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

    /// The text of the page.
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

    /// Writes the row, and counts it.
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
