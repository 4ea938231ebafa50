//! The live page that a browser shows at `/`. All assets are in the binary; the page loads nothing from elsewhere.
//!
//! `index.html` has the structure and `page.css` the style. The scripts are modules with one task each:
//!
//! | file | task |
//! |---|---|
//! | `page.js` | starts, and redraws after new data or a change of what is selected |
//! | `feed.js` | polls `/api/history`, `/api/requests`, `/api/engine` and `/api/state` once a second and stores the results |
//! | `selection.js`, `view.js` | the selected model and SLO; the visible part of the time axis |
//! | `figures.js` | windows, rates, quantiles and limits of the seconds; needs no browser |
//! | `charts.js`, `chart.js`, `latency_chart.js`, `count_charts.js` | the charts |
//! | `engine.js` | the engine's own figures: two charts and a table |
//! | `tables.js`, `models.js` | the values as text, for everyone and for screen readers |
//! | `sessions.js` | the sessions that a capture finds |
//! | `requests.js`, `waterfall.js` | the last requests, their filter, and the phases of one |
//! | `instance.js`, `banners.js` | which instance this is, its settings and its problems |
//! | `dom.js` | changes the document |
//!
//! `uplot/` is uPlot 1.6.32 as published, with its license. Names from the network are only set as text, and the policy
//! below blocks every script that is not one of these files.

use flate2::Crc;
use http::HeaderName;
use http::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_FRAME_OPTIONS};

/// Maximum size of the page with all its parts, uncompressed.
#[cfg(test)]
const MAX_PAGE_BYTES: usize = 400 << 10;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Headers of every reply with a part of the page.
pub(super) const HEADERS: [(HeaderName, &str); 3] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
];

pub(super) struct Asset {
    path: &'static str,
    pub(super) content_type: &'static str,
    pub(super) bytes: &'static [u8],
}

pub(super) static INDEX: Asset = Asset::new("/", HTML, include_bytes!("index.html"));

static ASSETS: [Asset; 22] = [
    Asset::new("/page/page.css", CSS, include_bytes!("page.css")),
    Asset::new("/page/page.js", SCRIPT, include_bytes!("page.js")),
    Asset::new("/page/feed.js", SCRIPT, include_bytes!("feed.js")),
    Asset::new("/page/selection.js", SCRIPT, include_bytes!("selection.js")),
    Asset::new("/page/view.js", SCRIPT, include_bytes!("view.js")),
    Asset::new("/page/figures.js", SCRIPT, include_bytes!("figures.js")),
    Asset::new("/page/charts.js", SCRIPT, include_bytes!("charts.js")),
    Asset::new("/page/chart.js", SCRIPT, include_bytes!("chart.js")),
    Asset::new("/page/latency_chart.js", SCRIPT, include_bytes!("latency_chart.js")),
    Asset::new("/page/count_charts.js", SCRIPT, include_bytes!("count_charts.js")),
    Asset::new("/page/tables.js", SCRIPT, include_bytes!("tables.js")),
    Asset::new("/page/engine.js", SCRIPT, include_bytes!("engine.js")),
    Asset::new("/page/models.js", SCRIPT, include_bytes!("models.js")),
    Asset::new("/page/sessions.js", SCRIPT, include_bytes!("sessions.js")),
    Asset::new("/page/requests.js", SCRIPT, include_bytes!("requests.js")),
    Asset::new("/page/waterfall.js", SCRIPT, include_bytes!("waterfall.js")),
    Asset::new("/page/instance.js", SCRIPT, include_bytes!("instance.js")),
    Asset::new("/page/banners.js", SCRIPT, include_bytes!("banners.js")),
    Asset::new("/page/dom.js", SCRIPT, include_bytes!("dom.js")),
    Asset::new("/page/icon.svg", "image/svg+xml", include_bytes!("icon.svg")),
    Asset::new("/page/uPlot.css", CSS, include_bytes!("uplot/uPlot.min.css")),
    Asset::new("/page/uPlot.js", SCRIPT, include_bytes!("uplot/uPlot.iife.min.js")),
];

/// Returns `true` for the `accept` header of a browser that opens the page.
pub(super) fn accepts_html(accept: &str) -> bool {
    accept.split([',', ';']).any(|range| range.trim().eq_ignore_ascii_case("text/html"))
}

/// Returns the file at a path.
pub(super) fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

impl Asset {
    const fn new(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        Self { path, content_type, bytes }
    }

    /// Returns the entity tag in quotes: checksum and length of the file.
    pub(super) fn etag(&self) -> String {
        let mut crc = Crc::new();
        crc.update(self.bytes);
        format!("\"{:08x}{:08x}\"", crc.sum(), crc.amount())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_plot_library_is_as_it_was_published() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/export/admin/page/uplot");
        let sums = "\
8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd  LICENSE
19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f  uPlot.iife.min.js
df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04  uPlot.min.css
";
        let mut check = Command::new("sha256sum");
        check.args(["--check", "--strict"]).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut check = check.spawn().unwrap();
        check.stdin.take().unwrap().write_all(sums.as_bytes()).unwrap();
        let output = check.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(
            asset("/page/uPlot.js").unwrap().bytes.starts_with(b"/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
        );
    }

    #[test]
    fn every_file_that_the_page_names_is_there_and_none_is_elsewhere() {
        let html = std::str::from_utf8(INDEX.bytes).unwrap();
        let named = ["src=\"", "href=\""].into_iter().flat_map(|start| html.split(start).skip(1));
        let named: Vec<&str> = named.map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(named.contains(&"page/page.js"), "{named:?}");
        for name in named {
            let is_link = ["#figures", "metrics", "readyz", "api/requests"].contains(&name);
            assert!(is_link || asset(&format!("/{name}")).is_some(), "{name}");
        }
        for script in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT && !asset.path.contains("uPlot")) {
            let text = std::str::from_utf8(script.bytes).unwrap();
            for name in text.split(" from \"./").skip(1).map(|rest| rest.split('"').next().unwrap()) {
                assert!(asset(&format!("/page/{name}")).is_some(), "{name} in {}", script.path);
            }
            for written in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"]
            {
                assert!(!text.contains(written), "{written} in {}", script.path);
            }
        }
    }

    #[test]
    fn the_page_with_all_its_parts_is_small() {
        let bytes = ASSETS.iter().map(|asset| asset.bytes.len()).sum::<usize>() + INDEX.bytes.len();
        assert!(bytes <= MAX_PAGE_BYTES, "{bytes} bytes");
    }

    #[test]
    fn a_browser_gets_the_page_and_other_clients_the_list() {
        for browser in ["text/html,application/xhtml+xml,*/*;q=0.8", "image/*, TEXT/HTML;q=0.9"] {
            assert!(accepts_html(browser), "{browser}");
        }
        for other in ["", "*/*", "text/plain", "application/json, text/htmlx"] {
            assert!(!accepts_html(other), "{other}");
        }
    }

    #[test]
    fn a_tag_changes_with_the_file() {
        static OTHER: Asset = Asset::new("/other", CSS, b"a { color: red }");
        assert_ne!(OTHER.etag(), INDEX.etag());
        assert_eq!(INDEX.etag().len(), "\"0123456789abcdef\"".len());
    }
}
