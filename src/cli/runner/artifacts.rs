//! The files beside a run's records: its histograms, and other tools' formats. All are derived from the records as
//! written, so they cannot differ from them.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;

use crate::measure::slo::{Slo, Slos};
use crate::report::accumulate::{Accumulator, AccumulatorSettings};
use crate::report::aiperf::{self, Aiperf};
use crate::report::definitions::Definitions;
use crate::report::hlog::{self, Hlog};
use crate::report::source_reader::{SourceReader, for_each_request};
use crate::report::vllm::{self, Vllm};

/// Output format of another tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ArtifactFormat {
    /// profile_export.jsonl, profile_export_aiperf.json and .csv
    Aiperf,
    /// The JSON of `vllm bench serve --save-result --save-detailed`, as vllm_bench_serve.json
    Vllm,
}

/// Writes the histograms and these formats into a run's folder.
pub(in crate::cli) fn write(folder: &Path, formats: &[ArtifactFormat], slos: &[Slo]) -> anyhow::Result<()> {
    let opened = SourceReader::open(folder)?;
    let zero = opened.source.started_unix_ns.unwrap_or(0);
    let slos = Slos::new(slos.to_vec()).map_err(anyhow::Error::msg)?;
    let judged = |definitions| {
        Accumulator::new(AccumulatorSettings { definitions, slos: slos.clone(), ..AccumulatorSettings::default() })
    };
    let mut hlog = Hlog::default();
    let mut vllm = formats.contains(&ArtifactFormat::Vllm).then(|| (Vllm::default(), judged(Definitions::Vllm)));
    let warmed_up = opened.source.warmed_up;
    let mut aiperf =
        formats.contains(&ArtifactFormat::Aiperf).then(|| (Aiperf::new(warmed_up), judged(Definitions::Aiperf)));
    let sources = for_each_request(vec![opened], |request, counts| {
        if let Some((aiperf, _)) = &mut aiperf {
            aiperf.add(&request, counts, zero);
        }
        if !counts {
            return Ok(());
        }
        hlog.add(&request);
        if let Some((vllm, judged)) = &mut vllm {
            vllm.add(&request);
            judged.add(&request)?;
        }
        if let Some((_, judged)) = &mut aiperf {
            judged.add(&request)?;
        }
        Ok(())
    })?;
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    let simulated = sources.iter().any(|source| source.simulated);
    put(hlog::FILE, &hlog.render(zero, simulated).context("cannot pack the histograms")?)?;
    if let Some((vllm, judged)) = vllm {
        put(vllm::FILE, vllm.render(&sources, &judged.total.goodput).as_bytes())?;
    }
    if let Some((aiperf, judged)) = aiperf {
        let files = aiperf.render(&sources, &judged.total.goodput);
        aiperf::FILES.iter().zip(&files).try_for_each(|(name, text)| put(name, text.as_bytes()))?;
    }
    Ok(())
}
