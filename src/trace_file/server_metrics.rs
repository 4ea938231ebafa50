//! Server metrics scraped during a run: one row per scrape, in a file beside the records.
//!
//! JSON Lines in zstd: a [`ScrapesHeader`], then one [`Scrape`] per request to a server. Times are nanoseconds since
//! time zero of the run, as in the records. Each server's metric names are mapped to one common name
//! ([`ServerMetric`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zstd::stream::{read::Decoder, write::Encoder};

use super::run_files::open_part;
use crate::measure::server_metrics::ServerMetric;

/// File name in the folder of a run.
pub const SERVER_METRICS_FILE: &str = "server_metrics.jsonl.zst";
/// Version of the rows. Version 2 added the histograms of the servers and the memory traffic of GPUs.
pub const VERSION: u32 = 2;
/// Maximum line length in bytes. A row has a dozen numbers, a header a few URLs.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Maximum rows that are read: eleven days of one server.
const MAX_ROWS: usize = 1_000_000;

/// The first line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScrapesHeader {
    /// Version of the rows.
    pub streamgauge_server_metrics: u32,
    /// Wall-clock time of the run's time zero, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// URLs of the servers; rows refer to them by index.
    pub servers: Vec<String>,
}

/// One scrape of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scrape {
    /// Time of the request, in nanoseconds since time zero. Negative for the first scrape, before the run starts.
    pub at: i64,
    /// Index of the server in the header.
    pub server: usize,
    /// Response time in nanoseconds; the values belong to some moment within it.
    pub took: u64,
    /// Values reported by the server.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<ServerMetric, f64>,
    /// The error, if there are no values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Writes rows. Each row is flushed to the operating system at once, so that a killed run keeps all earlier rows.
pub struct ScrapesWriter(Encoder<'static, File>);

impl ScrapesWriter {
    /// Creates a file and writes its header.
    ///
    /// # Errors
    /// If the operating system reports an error.
    pub fn create(path: &Path, header: &ScrapesHeader) -> io::Result<Self> {
        let mut writer = Self(Encoder::new(File::create(path)?, zstd::DEFAULT_COMPRESSION_LEVEL)?);
        writer.line(header)?;
        Ok(writer)
    }

    /// Appends one row.
    ///
    /// # Errors
    /// If the operating system reports an error.
    pub fn write(&mut self, scrape: &Scrape) -> io::Result<()> {
        self.line(scrape)
    }

    /// Ends the zstd frame.
    ///
    /// # Errors
    /// If the operating system reports an error.
    pub fn finish(self) -> io::Result<()> {
        self.0.finish().map(drop)
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.write_all(&text)?;
        self.0.flush()
    }
}

/// Reads a file of scrapes: its header, and its rows up to a torn end. `None` if the file does not exist.
///
/// # Errors
/// If the file cannot be read or is invalid; the error names the line.
pub fn read(path: &Path) -> io::Result<Option<(ScrapesHeader, Vec<Scrape>)>> {
    let Some(file) = open_part(path)? else { return Ok(None) };
    let mut lines = BufReader::new(Decoder::new(file)?);
    let mut number = 0_u64;
    let mut next = || -> io::Result<Option<(u64, Vec<u8>)>> {
        let mut line = Vec::new();
        number += 1;
        match lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            // A killed run leaves a partial line.
            _ if line.last() != Some(&b'\n') && (line.len() as u64) < MAX_LINE_BYTES => Ok(None),
            _ => Ok(Some((number, line))),
        }
    };
    let wrong = |line: u64, why: String| io::Error::new(io::ErrorKind::InvalidData, format!("line {line}: {why}"));
    let Some((line, first)) = next()? else { return Err(wrong(1, "there is no header".to_owned())) };
    let header: ScrapesHeader = serde_json::from_slice(&first).map_err(|error| wrong(line, error.to_string()))?;
    if header.streamgauge_server_metrics > VERSION {
        return Err(wrong(line, format!("a newer version wrote it ({})", header.streamgauge_server_metrics)));
    }
    let mut rows = Vec::new();
    while let Some((line, text)) = next()? {
        let row: Scrape = serde_json::from_slice(&text).map_err(|error| wrong(line, error.to_string()))?;
        if row.server >= header.servers.len() {
            return Err(wrong(line, format!("there is no server {}", row.server)));
        }
        if rows.len() == MAX_ROWS {
            return Err(wrong(line, format!("it has more than {MAX_ROWS} rows")));
        }
        rows.push(row);
    }
    Ok(Some((header, rows)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ScrapesHeader {
        ScrapesHeader {
            streamgauge_server_metrics: VERSION,
            started_unix_ns: 5,
            servers: vec!["http://h:1/metrics".to_owned()],
        }
    }

    fn written(folder: &Path) -> (std::path::PathBuf, Vec<Scrape>) {
        let path = folder.join(SERVER_METRICS_FILE);
        let mut writer = ScrapesWriter::create(&path, &header()).unwrap();
        let figures =
            [(ServerMetric::Waiting, 3.0), (ServerMetric::KvUsage, 0.25), (ServerMetric::PromptTokens, 1e12)].into();
        let rows = vec![
            Scrape { at: -7, took: 2, figures, ..Scrape::default() },
            Scrape { at: 9, failed: Some("answered 503".to_owned()), ..Scrape::default() },
        ];
        rows.iter().for_each(|row| writer.write(row).unwrap());
        writer.finish().unwrap();
        (path, rows)
    }

    #[test]
    fn what_was_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, rows) = written(folder.path());
        assert_eq!(read(&path).unwrap(), Some((header(), rows)));
        assert_eq!(read(&folder.path().join("none")).unwrap(), None);
    }

    #[test]
    fn a_torn_end_costs_its_row_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let (path, rows) = written(folder.path());
        let bytes = std::fs::read(&path).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for length in 0..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            if let Ok(Some((_, prefix))) = read(&path) {
                assert!(rows.starts_with(&prefix));
                seen.insert(prefix.len());
            }
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn what_is_no_such_file_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SERVER_METRICS_FILE);
        for (text, problem) in [
            ("", "line 1: there is no header"),
            ("{}\n", "line 1: missing field"),
            ("{\"streamgauge_server_metrics\":3,\"started_unix_ns\":0,\"servers\":[]}\n", "line 1: a newer version"),
            (
                "{\"streamgauge_server_metrics\":1,\"started_unix_ns\":0,\"servers\":[]}\n{\"at\":0,\"server\":0,\"took\":0}\n",
                "line 2: there is no server 0",
            ),
        ] {
            std::fs::write(&path, zstd::encode_all(text.as_bytes(), 0).unwrap()).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
