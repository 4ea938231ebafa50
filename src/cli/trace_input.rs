//! Trace files named on the command line.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::config::StorageUrl;

/// Rejects a pipe, because a trace is read once before the run and again during it.
pub(super) fn ensure_rereadable(trace: &Path) -> anyhow::Result<()> {
    let once = one_shot_input(trace);
    once.map_or(Ok(()), |pipe| {
        anyhow::bail!("{pipe} can be read once, and the trace is read several times; write it to a file first")
    })
}

/// Rejects the name of a page among the runs: `--html` takes no value.
pub(super) fn ensure_no_page<'a>(runs: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    let is_page = |path: &&PathBuf| path.extension().is_some_and(|of| of == "html" || of == "md") && !path.exists();
    let page = runs.into_iter().find(is_page);
    page.map_or(Ok(()), |page| {
        let page = page.display();
        anyhow::bail!("{page}: no such run; remedy: a page goes to stdout, so put `> {page}` at the end")
    })
}

/// Digest of the trace's bytes, or `None` for a folder and for object storage.
pub(super) fn digest(trace: &Path) -> anyhow::Result<Option<String>> {
    if trace.is_dir() || StorageUrl::of_path(trace).is_some() {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    let read = File::open(trace).and_then(|mut file| io::copy(&mut file, &mut hasher));
    read.with_context(|| format!("cannot read {}", trace.display()))?;
    Ok(Some(format!("blake3:{}", hasher.finalize().to_hex())))
}

/// Names an input that can be read only once: stdin, or a pipe by its path.
pub(super) fn one_shot_input(path: &Path) -> Option<String> {
    if path == Path::new("-") {
        return Some("stdin".to_owned());
    }
    let pipe = fs::metadata(path).is_ok_and(|path| !path.is_file() && !path.is_dir());
    pipe.then(|| path.display().to_string())
}
