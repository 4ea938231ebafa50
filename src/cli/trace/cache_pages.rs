//! `--server-metrics` of `trace reuse`: the sizes of the pods' caches, from the metrics pages of their engines.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use tokio::runtime::{Builder, LocalOptions};

use crate::measure::server_metrics::cache_config::capacity_tokens;
use crate::measure::time::Gap;
use crate::net::tls;
use crate::replay::sender::target::TargetUrl;
use crate::replay::server::page_client::PageClient;
use crate::trace::info;
use crate::trace::reuse::CacheSizes;
use crate::trace_file::header::TraceHeader;

/// Limit on a page: that of a busy vLLM has 300 KiB.
const MAX_PAGE_BYTES: usize = 4 << 20;
const PAGE_TIMEOUT: Gap = Gap::from_millis(5_000);

/// Reads the pages, each as PAGE for all pods or as POD=PAGE for one. Sizes are in blocks of the captures.
pub(super) fn cache_sizes(pages: &[String], header: &TraceHeader) -> anyhow::Result<CacheSizes> {
    let mut sizes = CacheSizes::default();
    for text in pages {
        let (pod, place) = split_pod(text);
        let page = match is_url(place) {
            true => fetch(place),
            false => read(Path::new(place)).with_context(|| format!("cannot read {place}")),
        };
        let tokens = capacity_tokens(&page.context("--server-metrics")?).ok_or_else(|| {
            let remedy = "give the page of a vLLM or SGLang that runs, or --cache-tokens";
            anyhow!("--server-metrics: the page states no cache size (cache_config_info); remedy: {remedy}")
        })?;
        // Without block ids there is no report.
        let blocks = info::cache_blocks(header, tokens).unwrap_or(0);
        match pod {
            Some(pod) => sizes.of_pods.push((pod.to_owned(), blocks)),
            None => {
                let is_first = sizes.others.replace(blocks).is_none();
                ensure!(is_first, "--server-metrics: two pages are for all pods; remedy: POD=PAGE for each pod");
            }
        }
    }
    Ok(sizes)
}

/// Splits POD=PAGE. The path of a page may contain the sign too.
fn split_pod(text: &str) -> (Option<&str>, &str) {
    match text.rsplit_once('=').filter(|_| !is_url(text) && !Path::new(text).is_file()) {
        Some((pod, place)) => (Some(pod), place),
        None => (None, text),
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut page = Vec::new();
    File::open(path)?.take(MAX_PAGE_BYTES as u64).read_to_end(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

/// The path defaults to `/metrics`. Errors do not quote the URL, which may hold credentials by mistake.
fn fetch(url: &str) -> anyhow::Result<String> {
    let target: TargetUrl = url.parse().map_err(anyhow::Error::msg)?;
    let tls = if target.tls { Some(tls::client(None, None, &["http/1.1"])?.into()) } else { None };
    let path = if target.base.is_empty() { "/metrics" } else { "" };
    let page = PageClient::new(target, tls, PAGE_TIMEOUT, path, Vec::new());
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let bytes = runtime.block_on(page.fetch(MAX_PAGE_BYTES)).map_err(anyhow::Error::msg);
    runtime.shutdown_background();
    Ok(String::from_utf8_lossy(&bytes?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_of_one_pod_or_of_all() {
        for (text, pod, place) in [
            ("page.txt", None, "page.txt"),
            ("pod-a=page.txt", Some("pod-a"), "page.txt"),
            ("day=1/pod-a=http://h:1/metrics", Some("day=1/pod-a"), "http://h:1/metrics"),
            ("http://h/a=b", None, "http://h/a=b"),
        ] {
            assert_eq!(split_pod(text), (pod, place), "{text}");
        }
    }
}
