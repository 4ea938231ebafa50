//! `streamgauge trace reuse`: where prefix-cache hits are lost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use clap::builder::PossibleValuesParser;

use super::cache_pages::cache_sizes;
use super::flags::{self, FormatName, TraceReadArgs};
use super::{notes, reuse_page};
use crate::cli::terminal::{self, render_table, right_aligned_table};
use crate::report::ascii_plot::format_percent;
use crate::trace::Trace;
use crate::trace::format::{FORMATS, native};
use crate::trace::info::{self, MAX_CACHE_BLOCKS};
use crate::trace::merge::{self, ClockAlignment};
use crate::trace::reuse::{self, CacheSizes, GROUP_KEYS, ReuseReport, ReuseSums};
use crate::trace_file::segment_list::segments_of_instances;

/// Find where prefix-cache hits are lost: by routing, to the caches' capacity, or otherwise
///
/// The reuse that the workload offers is compared with what survives routing, what fits into the pods' caches, and what the
/// engines report as cached. Give the captures of all pods. A pod is a server: of an instance in a bucket, by the instance's
/// name in all prefixes; of a capture, if several are given.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Captures to read: files, folders, or URLs of object storage
    #[arg(required = true, value_name = "CAPTURE", value_hint = ValueHint::AnyPath)]
    captures: Vec<PathBuf>,

    /// Cache size of each pod, in blocks of the capture
    #[arg(long, value_name = "N", conflicts_with = "cache_tokens")]
    cache_blocks: Option<usize>,

    /// Cache size of each pod, in tokens
    #[arg(long, value_name = "N")]
    cache_tokens: Option<u64>,

    /// Read the cache size from an engine's metrics page, for all pods or as POD=PAGE for one; may be repeated
    ///
    /// POD is the name of a pod, or the capture or instance that it begins with. vLLM and SGLang state the size.
    #[arg(long, value_name = "[POD=]FILE|URL", conflicts_with_all = ["cache_blocks", "cache_tokens"])]
    server_metrics: Vec<String>,

    /// Also group requests by these keys
    #[arg(long, value_name = "KEY", value_delimiter = ',', value_parser = PossibleValuesParser::new(GROUP_KEYS))]
    by: Vec<String>,

    /// Format of the captures [default: detected]
    #[arg(long, value_name = "FORMAT")]
    input_format: Option<FormatName>,

    #[command(flatten)]
    reading: TraceReadArgs,

    /// Print one JSON object with all groups instead of text
    #[arg(long)]
    json: bool,

    /// Print one self-contained HTML page with all groups: stacked bars of what is cached and where the rest is lost
    #[arg(long, conflicts_with_all = ["json", "by"])]
    html: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    flags::check_stdin_once(&args.captures)?;
    let mut traces = Vec::new();
    for path in &args.captures {
        let name = path.display().to_string();
        let segments = segments_of_instances(path)?;
        let trace = if !segments.is_empty() {
            let trace = native::read_instances(path, segments)?;
            terminal::eprint_line(&notes::format_note(path, FORMATS[0], Some(FORMATS[0].detected_by), &trace.header));
            trace
        } else {
            let trace = flags::open(path, args.input_format, &args.reading)?.trace;
            if args.captures.len() > 1 { with_pod_names(trace, name.clone()) } else { trace }
        };
        traces.push((name, flags::with_whole_turns(trace)));
    }
    let name = traces.first().map(|(name, _)| name.clone()).unwrap_or_default();
    let trace = merge::merge(traces, ClockAlignment::Clock)?;
    let cache = args.cache_tokens.and_then(|tokens| info::cache_blocks(&trace.header, tokens)).or(args.cache_blocks);
    let sizes = match args.server_metrics.is_empty() {
        true => CacheSizes { others: cache, ..CacheSizes::default() },
        false => cache_sizes(&args.server_metrics, &trace.header)?,
    };
    anyhow::ensure!(
        sizes.iter().all(|blocks| (1..=MAX_CACHE_BLOCKS).contains(&blocks)),
        "expected a cache of 1 to {MAX_CACHE_BLOCKS} blocks"
    );
    let losses = trace.losses.clone();
    let report = reuse::reuse(trace, &name, sizes)?;
    notes::print_losses(&losses);
    if args.json {
        return terminal::print(&format!("{}\n", serde_json::to_string_pretty(&report)?));
    }
    if report.pod_cache_blocks.is_empty() {
        terminal::eprint_line(
            "note: the pods' cache size is unknown, so losses to capacity are too; remedy: --cache-blocks or --cache-tokens, or \
             --server-metrics",
        );
    }
    if args.html {
        let name = match args.captures.len() {
            0 | 1 => name,
            captures => format!("{name} and {} more", captures - 1),
        };
        return terminal::print(&reuse_page::render(&name, &report));
    }
    terminal::print(&render(&report, &args.by))
}

fn with_pod_names(trace: Trace, capture: String) -> Trace {
    let named = trace.entries.map(move |entry| {
        let mut entry = entry?;
        entry.name_server(&capture);
        Ok(entry)
    });
    Trace { entries: Box::new(named), ..trace }
}

fn render(report: &ReuseReport, by: &[String]) -> String {
    let tokens = report.block_tokens;
    let caches = match report.cache_range() {
        None => String::new(),
        Some((least, most)) if least == most => format!(", with a cache of {least} blocks of {tokens} tokens each"),
        Some((least, most)) => format!(", with caches of {least} to {most} blocks of {tokens} tokens"),
    };
    let moves = report.all.sessions;
    let mut text = format!(
        "pods      {}{caches}\nsessions  {} with several requests; {} changed their pod, at {} of {} later requests\n\n",
        report.pods, moves.repeated, moves.moved, moves.moved_requests, moves.later_requests
    );
    let mut table = right_aligned_table(&[
        "share of prompt tokens",
        "requests",
        "offered",
        "- routing",
        "- capacity",
        "- otherwise",
        "= cached",
        "sticky session",
        "sticky prefix",
    ]);
    table.add_row(row("all", &report.all));
    for key in by {
        for (value, sums) in report.by.get(key.as_str()).into_iter().flatten() {
            table.add_row(row(&format!("{key} {value}"), sums));
        }
    }
    text += &render_table(&table);
    text += "\nsticky: hits that other routing would add to caches of this size\n";
    if let Some(bound) = report.all.error_bound_tokens {
        let reason = match report.blocks_are_tokens {
            true => "The engines' blocks are not those of the capture",
            false => "Blocks are bytes",
        };
        let (block, bound) = (report.block_tokens, share(bound as f64, &report.all));
        text += &format!(
            "{reason}, so each figure may be off by up to one block (about {block} tokens) per request: ±{bound} in all.\n"
        );
    }
    if report.sampled_one_of > 1 {
        text += &format!("Endless caches were estimated from 1 in {} block ids.\n", report.sampled_one_of);
    }
    text
}

/// Tokens as a share of the prompts of these requests.
fn share(tokens: f64, sums: &ReuseSums) -> String {
    match sums.prompt_tokens {
        0 => "-".to_owned(),
        all => format_percent(tokens / all as f64),
    }
}

fn row(name: &str, sums: &ReuseSums) -> Vec<String> {
    let share = |tokens: f64| share(tokens, sums);
    let known = |tokens: Option<u64>| tokens.map_or("-".to_owned(), |tokens| share(tokens as f64));
    let signed = |tokens: Option<i64>| tokens.map_or("-".to_owned(), |tokens| share(tokens as f64));
    vec![
        name.to_owned(),
        sums.requests.to_string(),
        share(sums.offered_tokens as f64),
        share(sums.lost_by_routing() as f64),
        known(sums.lost_to_capacity()),
        signed(sums.lost_otherwise()),
        known(sums.cached_tokens),
        signed(sums.sticky_session_gain()),
        signed(sums.sticky_prefix_gain()),
    ]
}
