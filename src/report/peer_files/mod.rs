//! Result files of other tools: AIPerf, `vllm bench serve`, SGLang's `bench_serving`, GuideLLM and inference-perf, one
//! file per format.
//!
//! A file with requests becomes the same [`RequestView`](super::request_view::RequestView)s that our own rows become,
//! so every figure, group, filter and condition applies. Values that a file lacks are absent. A file with figures alone
//! is a [`PeerSummary`], which is shown and never taken for a distribution.
//!
//! # Memory
//! AIPerf's records are read one by one. The other files are JSON documents and stay in memory, at most
//! [`MAX_DOCUMENT_BYTES`](input::MAX_DOCUMENT_BYTES) each, without their texts.

mod aiperf_records;
mod aiperf_summary;
pub mod detect;
pub mod error;
pub mod facts;
pub mod file_definitions;
mod guidellm;
pub mod in_flight;
mod inference_perf;
pub mod input;
pub mod request;
mod sglang_bench;
pub mod summary;
mod vllm_bench;
mod vllm_columns;

use std::fs;
use std::path::{Path, PathBuf};

use detect::{DETECT_BYTES, PeerFormat};
use error::PeerFileError;
use facts::PeerFacts;
use in_flight::InFlightCounter;
use input::PeerInput;
use request::PeerRequest;
use summary::PeerSummary;

/// AIPerf's figures and configuration, beside its records.
const AIPERF_SUMMARY: &str = "profile_export_aiperf.json";
/// Files that mark the folder of a tool's results, those with requests first.
const FOLDER_FILES: [&str; 5] = [
    "profile_export.jsonl",
    "per_request_lifecycle_metrics.json",
    "benchmarks.json",
    AIPERF_SUMMARY,
    "summary_lifecycle_metrics.json",
];

/// Requests in the order of the file.
pub type PeerRequests = Box<dyn Iterator<Item = Result<PeerRequest, PeerFileError>>>;

/// Content of a result file.
pub enum PeerContent {
    /// A run with its requests.
    Run(PeerRun),
    /// Figures alone.
    Summary(PeerSummary),
}

/// A run of another tool.
pub struct PeerRun {
    /// Format of the file.
    pub format: PeerFormat,
    /// The file's facts about the run.
    pub facts: PeerFacts,
    /// The requests.
    pub requests: PeerRequests,
    /// Requests in flight at each send.
    pub in_flight: InFlightCounter,
}

/// Opens a result file, a folder with one, or `FILE#N`, a benchmark of a file with several. `None` if the path is no
/// result of a known tool.
///
/// # Errors
/// Returns an error if the file is one of them but cannot be read.
pub fn open(path: &Path) -> Result<Option<PeerContent>, PeerFileError> {
    let (path, number) = split_number(path);
    let Some(file) = result_file(&path) else { return Ok(None) };
    let input = PeerInput::file(&file);
    let Some(format) = PeerFormat::detect(&input.start(DETECT_BYTES)?) else { return Ok(None) };
    let config = path.join(AIPERF_SUMMARY);
    if format == PeerFormat::AiperfRecords && path.is_dir() && config.is_file() {
        let facts = aiperf_summary::read_facts(&PeerInput::file(&config))?;
        return aiperf_records::read(&input, facts).map(PeerContent::Run).map(Some);
    }
    read(format, &input, number).map(Some)
}

/// Reads a file of this format. `number` selects one of several benchmarks, from 1.
///
/// # Errors
/// Returns an error if the input is not of the format.
pub fn read(format: PeerFormat, input: &PeerInput, number: Option<usize>) -> Result<PeerContent, PeerFileError> {
    match format {
        PeerFormat::AiperfRecords => aiperf_records::read(input, PeerFacts::default()).map(PeerContent::Run),
        PeerFormat::AiperfSummary => aiperf_summary::read(input),
        PeerFormat::VllmBench => vllm_bench::read(input),
        PeerFormat::SglangBench => sglang_bench::read(input, number),
        PeerFormat::Guidellm => guidellm::read(input, number),
        PeerFormat::InferencePerfRecords => inference_perf::read(input),
        PeerFormat::InferencePerfSummary => inference_perf::read_summary(input),
    }
}

/// Splits `FILE#N`. A file whose name ends like that is meant itself.
fn split_number(path: &Path) -> (PathBuf, Option<usize>) {
    let split = path.to_str().filter(|_| !path.exists()).and_then(|text| text.rsplit_once('#'));
    match split.and_then(|(file, number)| Some((file, number.parse().ok()?))) {
        Some((file, number)) => (PathBuf::from(file), Some(number)),
        None => (path.to_owned(), None),
    }
}

/// The file to read. A pipe is never one: its start could not be read twice.
fn result_file(path: &Path) -> Option<PathBuf> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.is_dir() {
        return FOLDER_FILES.iter().map(|name| path.join(name)).find(|file| file.is_file());
    }
    metadata.is_file().then(|| path.to_owned())
}
