//! Properties of every trace: what formats keep, and what slicing, scaling, merging and respacing leave unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

use proptest::prelude::*;
use streamgauge::measure::record::FinishReason;
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::trace::blocks::prompt_tokens;
use streamgauge::trace::conversion_loss::ConversionLosses;
use streamgauge::trace::format::{self, FORMATS, ReadOptions, TraceFormat};
use streamgauge::trace::input::{InputSource, InputStream};
use streamgauge::trace::merge::{ClockAlignment, merge};
use streamgauge::trace::respace::respace;
use streamgauge::trace::scale::{RateScale, scale_rate};
use streamgauge::trace::selection::TraceSelection;
use streamgauge::trace::slice::{TraceSlice, slice};
use streamgauge::trace::{Trace, output};
use streamgauge::trace_file::gaps;
use streamgauge::trace_file::header::{
    BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, TraceHeader, TurnContent,
};
use streamgauge::trace_file::row::TraceEntry;

const MS: u64 = 1_000_000;
const BLOCK: u64 = 512;

fn header() -> TraceHeader {
    let blocks = BlockScheme {
        size: BLOCK as u32,
        unit: BlockUnit::Tokens,
        last: LastBlock::Kept,
        ids: BlockIds::Chained,
        scope: BlockScope::Trace,
        key: None,
    };
    TraceHeader { blocks: Some(blocks), turns: TurnContent::Full, ..TraceHeader::new("test") }
}

/// Prompts of a tree: each row goes down one of its branches, so that prefixes are shared in every way.
fn rows() -> impl Strategy<Value = Vec<TraceEntry>> {
    let row = (0_u64..4, prop::collection::vec(0_u64..2, 1..6), 1..=BLOCK, 1_u64..900, prop::option::of(0_u8..3));
    prop::collection::vec(row, 1..40).prop_map(|rows| {
        // From zero on: formats with wall-clock times begin with their first row.
        let mut at = 0;
        let first = rows[0].0;
        let row = |(pause, path, of_last, output, session): (u64, Vec<u64>, u64, u64, Option<u8>)| {
            // Whole seconds, which every format can hold; batches where there is no pause.
            at += pause * 1_000 * MS;
            let mut entry =
                TraceEntry { at: at - first * 1_000 * MS, output_tokens: Some(output), ..TraceEntry::default() };
            entry.prompt.tokens = Some((path.len() as u64 - 1) * BLOCK + of_last);
            entry.prompt.blocks = path
                .iter()
                .scan(1, |id, branch| {
                    *id = *id * 2 + branch;
                    Some(*id)
                })
                .collect();
            entry.session = session.map(|session| format!("s{session}"));
            entry
        };
        rows.into_iter().map(row).collect()
    })
}

fn trace(rows: &[TraceEntry]) -> Trace {
    let entries: Vec<_> = rows.iter().cloned().map(Ok).collect();
    Trace { header: header(), entries: Box::new(entries.into_iter()), losses: ConversionLosses::default() }
}

fn read(trace: Trace) -> Vec<TraceEntry> {
    trace.entries.collect::<Result<_, _>>().unwrap()
}

/// Written in a format, and read again.
fn through(format: &TraceFormat, trace: &mut Trace) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    format::convert(trace, format, output::create(&path).unwrap()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let source = InputSource::Stream(InputStream::new("trace", Box::new(Cursor::new(bytes))).unwrap());
    // Rows of these formats have no block size, so their readers get it.
    let needs_size = ["timed_trace", "ragpulse"].contains(&format.name);
    let block_size = trace.header.blocks.as_ref().filter(|_| needs_size).map(|blocks| blocks.size);
    (format.read.unwrap())(source, &ReadOptions { block_size, ..ReadOptions::default() }).unwrap()
}

/// How many leading blocks each row shares with each row before it: the structure, whatever the ids are called.
fn shared(rows: &[TraceEntry]) -> Vec<Vec<usize>> {
    let common = |a: &TraceEntry, b: &TraceEntry| {
        a.prompt.blocks.iter().zip(&b.prompt.blocks).take_while(|(a, b)| a == b).count()
    };
    rows.iter().enumerate().map(|(at, row)| rows[..at].iter().map(|before| common(row, before)).collect()).collect()
}

/// A row without its time and its names.
fn shape(row: &TraceEntry) -> (Option<u64>, Option<u64>, usize) {
    (prompt_tokens(row), row.output_tokens, row.prompt.blocks.len())
}

fn in_order(rows: &[TraceEntry]) -> bool {
    rows.windows(2).all(|pair| pair[0].at <= pair[1].at)
}

/// How many leading blocks rows share once their blocks are `split` in so many, and only full ones have an id.
fn shared_when_full(rows: &[TraceEntry], split: u64) -> Vec<Vec<usize>> {
    let full = |row: &TraceEntry| row.prompt.tokens.unwrap() / (BLOCK / split);
    let less = |at: usize, before: usize, whole: usize| {
        (whole as u64 * split).min(full(&rows[at])).min(full(&rows[before])) as usize
    };
    let of_row = |(at, row): (usize, Vec<usize>)| {
        row.into_iter().enumerate().map(|(before, whole)| less(at, before, whole)).collect()
    };
    shared(rows).into_iter().enumerate().map(of_row).collect()
}

/// The rows of each session together, in the order of their first; what has none is one of its own.
fn by_session(rows: &[TraceEntry]) -> Vec<Vec<TraceEntry>> {
    let mut sessions: Vec<Vec<TraceEntry>> = Vec::new();
    for row in rows {
        match sessions.iter_mut().find(|session| row.session.is_some() && session[0].session == row.session) {
            Some(session) => session.push(row.clone()),
            None => sessions.push(vec![row.clone()]),
        }
    }
    sessions
}

/// These rows with answers that came at some time, one or two tokens at once.
fn answered(mut rows: Vec<TraceEntry>, mut seed: u64) -> Vec<TraceEntry> {
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for row in &mut rows {
        let (mut left, mut events) = (row.output_tokens.unwrap() - 1, Vec::new());
        while left > 0 {
            let tokens = (1 + next(2)).min(left);
            events.push(TokenEvent::new(Gap::from_nanos(next(90_000) * 1_000), Some(tokens as u32)));
            left -= tokens;
        }
        row.timing.first_token = Some(next(5_000_000) * 1_000);
        row.timing.first_tokens = Some(1);
        row.timing.gaps = (!events.is_empty()).then(|| gaps::pack(&events));
        (row.in_flight, row.prompt.cached) = (Some(next(9) as u32), Some(next(row.prompt.tokens.unwrap() + 1)));
        row.finish = Some([FinishReason::Stop, FinishReason::Length, FinishReason::Abort][next(3) as usize]);
        row.model = Some("m".to_owned());
    }
    rows
}

/// Formats whose rows are read back one for one, in the order of the file; the others have tests of their own below.
fn of_rows() -> impl Iterator<Item = &'static TraceFormat> {
    let other = ["weka", "vllm-vcr", "multi_turn"];
    FORMATS
        .iter()
        .copied()
        .filter(move |format| format.read.is_some() && format.write.is_some() && !other.contains(&format.name))
}

proptest! {
    // Each case is a hundred conversions.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn every_format_becomes_every_other_with_all_lengths(rows in rows(), seed: u64) {
        let rows = by_session(&answered(rows, seed)).concat();
        let lengths = |rows: &[TraceEntry]| {
            let mut lengths: Vec<_> = rows.iter().map(|row| (prompt_tokens(row), row.output_tokens)).collect();
            lengths.sort_unstable();
            lengths
        };
        // A turn of multi_turn is only what it adds.
        let both = || FORMATS.iter().copied().filter(|format| {
            format.read.is_some() && format.write.is_some() && format.name != "multi_turn"
        });
        for from in both() {
            let once = through(from, &mut trace(&rows));
            let (header, once) = (once.header.clone(), read(once));
            prop_assert_eq!(lengths(&once), lengths(&rows), "{}", from.name);
            // A recording is of answers: it takes only what has the gaps of its tokens.
            let has_gaps = once.iter().all(|row| row.timing.gaps.is_some() == (row.output_tokens > Some(1)));
            let has_gaps = has_gaps && once.iter().all(|row| row.timing.first_token.is_some());
            for to in both().filter(|to| to.name != "vllm-vcr" || has_gaps) {
                let mut once = Trace { header: header.clone(), ..trace(&once) };
                prop_assert_eq!(lengths(&read(through(to, &mut once))), lengths(&rows), "{} to {}", from.name, to.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_format_gives_back_what_it_holds(rows in rows()) {
        for format in of_rows() {
            let back = through(format, &mut trace(&rows));
            let same_size = back.header.blocks.as_ref().is_some_and(|blocks| u64::from(blocks.size) == BLOCK);
            let back = read(back);
            prop_assert_eq!(back.len(), rows.len(), "{}", format.name);
            for (row, back) in rows.iter().zip(&back) {
                prop_assert_eq!(row.output_tokens, back.output_tokens, "{}", format.name);
                prop_assert_eq!(row.prompt.tokens, prompt_tokens(back), "{}", format.name);
                prop_assert_eq!(row.at, back.at, "{}", format.name);
            }
            // The structure of prefixes stays where ids are of blocks of the same size.
            if same_size && back[0].prompt.blocks.len() == rows[0].prompt.blocks.len() {
                prop_assert_eq!(shared(&back), shared(&rows), "{}", format.name);
            }
        }
    }

    #[test]
    fn writing_what_was_read_loses_nothing_any_more(rows in rows()) {
        for format in of_rows() {
            let once = through(format, &mut trace(&rows));
            let header = once.header.clone();
            let once = read(once);
            let again = Trace { header, ..trace(&once) };
            let again = through(format, &mut { again });
            let header = again.header.clone();
            let again = read(again);
            // Formats whose ids have to be of a kind of their own name them anew; which are alike does not change.
            let but_names = |row: &TraceEntry| (row.at, shape(row), row.session.is_some(), row.turn, row.think);
            let all = |rows: &[TraceEntry]| rows.iter().map(but_names).collect::<Vec<_>>();
            prop_assert_eq!(all(&again), all(&once), "{}", format.name);
            prop_assert!(shared(&again) == shared(&once) || header.blocks.is_none(), "{}", format.name);
        }
    }

    #[test]
    fn sessions_of_weka_keep_their_turns_lengths_times_and_prefixes(rows in rows()) {
        let mut sessions = by_session(&rows);
        // A row without a session is written at once.
        sessions.sort_by_key(|rows| rows[0].session.is_some());
        let together = sessions.concat();
        let back = read(through(format::by_name("weka").unwrap(), &mut trace(&together)));
        prop_assert_eq!(back.len(), rows.len());
        // A session's times count from its first request, and blocks are of 64 tokens that are full.
        let mut read = back.iter();
        for session in &sessions {
            for (turn, (row, back)) in session.iter().zip(read.by_ref()).enumerate() {
                prop_assert_eq!(back.at, row.at - session[0].at);
                prop_assert_eq!(back.turn, Some(turn as u32));
                prop_assert!(row.session.is_none() || back.session == row.session);
                prop_assert_eq!((back.prompt.tokens, back.output_tokens), (row.prompt.tokens, row.output_tokens));
                prop_assert_eq!(back.prompt.blocks.len() as u64, row.prompt.tokens.unwrap() / 64);
            }
        }
        prop_assert_eq!(shared(&back), shared_when_full(&together, BLOCK / 64));
    }

    #[test]
    fn chunks_of_ragpulse_share_what_blocks_do(rows in rows()) {
        let back = read(through(format::by_name("ragpulse").unwrap(), &mut trace(&rows)));
        // Read as blocks of 16 tokens that are full.
        prop_assert_eq!(shared(&back), shared_when_full(&rows, BLOCK / 16));
        prop_assert!(back.iter().zip(&rows).all(|(back, row)| row.session.is_none() || back.session == row.session));
    }

    #[test]
    fn turns_of_multi_turn_come_to_the_prompts_that_they_are_of(rows in rows()) {
        let back = read(through(format::by_name("multi_turn").unwrap(), &mut trace(&rows)));
        prop_assert_eq!(back.len(), rows.len());
        let mut histories: BTreeMap<Option<String>, u64> = BTreeMap::new();
        for (row, back) in rows.iter().zip(&back) {
            prop_assert_eq!((back.at, back.output_tokens), (row.at, row.output_tokens));
            // The prompt is the session's history and the new text.
            let before =
                back.turn.filter(|turn| *turn > 0 && row.session.is_some()).map_or(0, |_| histories[&back.session]);
            let whole = before + prompt_tokens(back).unwrap();
            prop_assert_eq!(Some(whole), row.prompt.tokens);
            histories.insert(back.session.clone(), whole + row.output_tokens.unwrap());
        }
    }

    #[test]
    fn recordings_of_vcr_keep_every_gap_and_what_they_hold_besides(rows in rows(), seed: u64) {
        let rows = answered(rows, seed);
        let back = read(through(format::by_name("vllm-vcr").unwrap(), &mut trace(&rows)));
        prop_assert_eq!(back.len(), rows.len());
        for (row, back) in rows.iter().zip(&back) {
            prop_assert_eq!((back.at, &back.model, back.finish), (row.at, &row.model, row.finish));
            prop_assert_eq!((back.prompt.tokens, back.output_tokens), (row.prompt.tokens, row.output_tokens));
            prop_assert_eq!((back.prompt.cached, back.in_flight), (row.prompt.cached, row.in_flight));
            prop_assert_eq!(back.prompt.blocks.len() as u64, row.prompt.tokens.unwrap() / BLOCK);
            prop_assert_eq!(back.timing.first_token, row.timing.first_token);
            prop_assert_eq!(&back.timing.gaps, &row.timing.gaps);
            prop_assert!(row.timing.gaps.is_none() || back.timing.first_tokens == row.timing.first_tokens);
        }
        prop_assert_eq!(shared(&back), shared_when_full(&rows, 1));
    }

    #[test]
    fn a_cut_has_the_rows_of_its_time_and_no_others(rows in rows(), from in 0_u64..60, length in 0_u64..60) {
        let (from, to) = (from * 1_000 * MS, (from + length) * 1_000 * MS);
        let cut = read(slice(trace(&rows), TraceSlice { from, to: Some(to), selection: TraceSelection::default() }));
        let expected: Vec<TraceEntry> = rows.iter().filter(|row| (from..to).contains(&row.at)).cloned().collect();
        prop_assert_eq!(cut.iter().map(shape).collect::<Vec<_>>(), expected.iter().map(shape).collect::<Vec<_>>());
        prop_assert_eq!(shared(&cut), shared(&expected));
        prop_assert!(cut.iter().zip(&expected).all(|(cut, row)| cut.at == row.at - from));
    }

    #[test]
    fn twice_the_traffic_is_two_copies_that_share_nothing_and_are_alike_inside(rows in rows(), seed: u64) {
        let of = RateScale { factor: 2.0, offset: 1_000 * MS, seed };
        let twice = read(scale_rate(of, || Ok::<_, ()>(trace(&rows))).unwrap());
        prop_assert_eq!(twice.len(), 2 * rows.len());
        prop_assert!(in_order(&twice));
        // The first copy has the ids of the trace, and no row of the other has one of them.
        let ours: BTreeSet<u64> = rows.iter().flat_map(|row| row.prompt.blocks.iter().copied()).collect();
        let (first, second): (Vec<TraceEntry>, Vec<TraceEntry>) =
            twice.into_iter().partition(|row| row.prompt.blocks.iter().all(|id| ours.contains(id)));
        for copy in [&first, &second] {
            prop_assert_eq!(copy.iter().map(shape).collect::<Vec<_>>(), rows.iter().map(shape).collect::<Vec<_>>());
            prop_assert_eq!(shared(copy), shared(&rows));
        }
        prop_assert!(second.iter().all(|row| row.prompt.blocks.iter().all(|id| !ours.contains(id))));
    }

    #[test]
    fn less_traffic_has_whole_sessions_or_none_of_them(rows in rows(), factor in 0.05_f64..0.95, seed: u64) {
        let subset = read(scale_rate(RateScale { factor, offset: 0, seed }, || Ok::<_, ()>(trace(&rows))).unwrap());
        let count = |rows: &[TraceEntry]| {
            let mut turns: BTreeMap<String, usize> = BTreeMap::new();
            rows.iter().filter_map(|row| row.session.clone()).for_each(|session| *turns.entry(session).or_default() += 1);
            turns
        };
        let all = count(&rows);
        prop_assert!(count(&subset).iter().all(|(session, turns)| all[session] == *turns));
        // The selected rows are unchanged and in order.
        let mut left = rows.iter();
        prop_assert!(subset.iter().all(|row| left.any(|before| before == row)));
    }

    #[test]
    fn merged_traces_have_every_row_once_in_order(one in rows(), other in rows()) {
        let both = vec![("one".to_owned(), trace(&one)), ("other".to_owned(), trace(&other))];
        let merged = read(merge(both, ClockAlignment::Start).unwrap());
        prop_assert!(in_order(&merged));
        let sorted = |rows: Vec<_>| { let mut rows: Vec<_> = rows; rows.sort(); rows };
        let of = |rows: &[TraceEntry]| rows.iter().map(|row| (row.at, shape(row))).collect::<Vec<_>>();
        prop_assert_eq!(sorted(of(&merged)), sorted([of(&one), of(&other)].concat()));
        let ours: BTreeSet<u64> = one.iter().flat_map(|row| row.prompt.blocks.iter().copied()).collect();
        let (first, second): (Vec<TraceEntry>, Vec<TraceEntry>) =
            merged.into_iter().partition(|row| row.prompt.blocks.iter().all(|id| ours.contains(id)));
        prop_assert_eq!((shared(&first), shared(&second)), (shared(&one), shared(&other)));
    }

    #[test]
    fn spreading_keeps_every_row_and_the_order_and_leaves_no_batch(rows in rows(), grid in 1_u64..3_000, seed: u64) {
        let grid = grid * MS;
        let (spread, _) = respace(trace(&rows), "t", Some(grid), seed).unwrap();
        let spread = read(spread);
        prop_assert!(in_order(&spread));
        prop_assert_eq!(spread.len(), rows.len());
        for (row, spread) in rows.iter().zip(&spread) {
            // Batches that are closer than a hundredth of the grid are one.
            prop_assert!(spread.at >= row.at && spread.at < row.at + grid);
            prop_assert_eq!(&TraceEntry { at: row.at, ..spread.clone() }, row);
        }
    }
}
