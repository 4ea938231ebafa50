//! The trace file: a round trip loses nothing, and a torn or damaged file loses only the damaged frames.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use streamgauge::capture::block_chunker::BlockChunking;
use streamgauge::capture::key::CaptureKey;
use streamgauge::capture::prompt_hasher::PromptHasher;
use streamgauge::measure::dialect::named;
use streamgauge::measure::dialect::prompt::RequestBody;
use streamgauge::measure::record::Outcome;
use streamgauge::measure::time::Gap;
use streamgauge::measure::timeline::TokenEvent;
use streamgauge::trace_file::frame::{FRAME_HEAD_BYTES, FrameHead};
use streamgauge::trace_file::gaps;
use streamgauge::trace_file::header::{BlockIds, BlockScheme, BlockScope, BlockUnit, LastBlock, TraceHeader};
use streamgauge::trace_file::reader::{ReadError, TraceReader};
use streamgauge::trace_file::row::{PromptShape, Timing, TraceEntry};
use streamgauge::trace_file::writer::TraceWriter;
use tempfile::TempDir;

fn entry(at: u64) -> TraceEntry {
    // Noise keeps zstd from packing all rows into one small frame.
    let session = blake3::hash(&at.to_le_bytes()).to_hex().repeat(8);
    TraceEntry { at, model: Some("m".to_owned()), session: Some(session), ..TraceEntry::default() }
}

/// A file of these rows, in frames.
fn packed(header: &TraceHeader, rows: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new(), header).unwrap();
    rows.into_iter().for_each(|at| writer.write(&entry(at)).unwrap());
    writer.finish().unwrap()
}

fn file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Output of `trace info` for a file.
fn info(path: &Path) -> serde_json::Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
    let done = command.args(["trace", "info", "--json"]).arg(path).env_clear().output().unwrap();
    serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)))
}

/// The times of the rows that can be read, and what is missing.
fn read(path: &Path) -> (Vec<u64>, Vec<String>) {
    let mut reader = TraceReader::open(path).unwrap();
    let rows = reader.by_ref().map(|row| row.unwrap().at).collect();
    let name = path.display().to_string();
    (rows, reader.damage().iter().map(|damage| damage.to_string().replace(&name, "FILE")).collect())
}

fn refused(path: &Path) -> String {
    let error = TraceReader::open(path).map(|mut reader| reader.find_map(Result::err));
    let error = error.unwrap_or_else(Some).expect("an error");
    error.to_string().replace(&path.display().to_string(), "FILE")
}

/// A capture by version 1 of a conversation whose second turn has an image, and of a request for an unknown model.
const VERSION_1: &str = "tests/data/traces/streamgauge/version-1.jsonl.zst";
/// Content of its `capture.key`.
const KEY_1: &str = "2a47fb8fa8307286ef524a0aa2b7c61424e8abca111fb34f5e506d5b565734e5";

#[test]
fn what_version_1_wrote_is_read_and_its_ids_are_made_again_for_the_same_prompts() {
    let folder = TempDir::new().unwrap();
    let key = CaptureKey::load_or_create(folder.path(), Some(&file(&folder, "key", KEY_1))).unwrap();
    let mut reader = TraceReader::open(Path::new(VERSION_1)).unwrap();
    let (header, blocks) = (reader.header().clone(), reader.header().blocks.clone().unwrap());
    assert_eq!((header.streamgauge_trace, blocks.size, blocks.unit), (1, 512, BlockUnit::Bytes));
    assert_eq!(blocks.key, Some(key.id()));
    let rows: Vec<TraceEntry> = reader.by_ref().map(Result::unwrap).collect();
    assert!(reader.damage().is_empty());
    let ends = rows.iter().map(|row| (row.status, row.outcome, row.output_tokens, row.turn));
    let expected = [
        (Some(200), Some(Outcome::Success), Some(6), Some(0)),
        (Some(200), Some(Outcome::Success), Some(3), Some(0)),
        (Some(404), Some(Outcome::Refused), None, Some(1)),
    ];
    assert_eq!(ends.collect::<Vec<_>>(), expected);
    assert_eq!(gaps::unpack(rows[0].timing.gaps.as_ref().unwrap()).unwrap().len(), 5);

    let system = json!({"role": "system", "content": "Be plain and short. ".repeat(60)});
    let one = json!([system, {"role": "user", "content": "one"}]);
    let image = "data:image/gif;base64,R0lGODlhAgADAPAAAAAAAP///yH5BAAAAAAALAAAAAACAAMAAAICRF4AOw==";
    let three = json!([{"type": "text", "text": "three"}, {"type": "image_url", "image_url": {"url": image}}]);
    let two = json!({"role": "assistant", "content": "two"});
    let three = json!([one[0], one[1], two, {"role": "user", "content": three}]);
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": {}}}]);
    let bodies = [json!({"messages": one}), json!({"messages": three, "tools": tools}), json!({"messages": three})];
    for (body, row) in bodies.iter().zip(&rows) {
        let mut hasher = PromptHasher::new(&key, BlockChunking::Bytes(512));
        let body = body.to_string();
        RequestBody::read(body.as_bytes()).unwrap().prompt(named("openai.chat").unwrap(), &mut hasher);
        let made = hasher.finish();
        assert_eq!(made.blocks, row.prompt.blocks);
        // A content that begins with a part which is nothing but text was 20 bytes longer.
        let longer = if made.parts.is_empty() { 0 } else { 20 };
        assert_eq!((Some(made.bytes + longer), &made.parts), (row.prompt.bytes, &row.prompt.parts));
    }
}

#[test]
fn what_is_written_is_read_again_from_frames_from_zstd_and_from_plain_text() {
    let folder = TempDir::new().unwrap();
    let header = TraceHeader { started_unix_ns: Some(7), ..TraceHeader::new("test 1") };
    let frames = packed(&header, 0..2_000);
    let plain = zstd::stream::decode_all(&frames[..]).unwrap();
    let path = file(&folder, "frames.jsonl.zst", &frames);
    assert!(frames.windows(4).filter(|bytes| *bytes == b"SGF1").count() > 3, "several frames");
    let mut reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.header(), &header);
    let rows: Vec<TraceEntry> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(rows, (0..2_000).map(entry).collect::<Vec<_>>());
    let zstd = file(&folder, "one.zst", zstd::stream::encode_all(&plain[..], 1).unwrap());
    let text = file(&folder, "text", &plain);
    for path in [path, zstd, text] {
        assert_eq!(read(&path), ((0..2_000).collect(), vec![]), "{}", path.display());
    }
}

#[test]
fn a_torn_end_loses_its_frame_and_is_reported() {
    let folder = TempDir::new().unwrap();
    let frames = packed(&TraceHeader::new("test"), 0..2_000);
    let starts: Vec<usize> =
        (8..frames.len() - 4).filter(|&at| &frames[at..at + 4] == b"SGF1").map(|at| at - 8).collect();
    let whole = |frames: usize| {
        let torn = packed(&TraceHeader::new("test"), 0..2_000);
        let end = starts.get(frames).copied().unwrap_or(torn.len());
        zstd::stream::decode_all(&torn[..end]).unwrap().iter().filter(|byte| **byte == b'\n').count() - 1
    };
    let (second, last) = (starts[1], *starts.last().unwrap());
    for (cut, intact_frames, frame) in [
        (second + 1, 1, 1),
        (second + 57, 1, 1),
        (starts[2] - 1, 1, 1),
        (last + 60, starts.len() - 1, starts.len() - 1),
        (frames.len() - 1, starts.len() - 1, starts.len() - 1),
    ] {
        let path = file(&folder, "torn.jsonl.zst", &frames[..cut]);
        let damage = vec![format!("FILE, frame {frame}: its end is torn off")];
        assert_eq!(read(&path), ((0..whole(intact_frames) as u64).collect(), damage), "cut at {cut}");
        // `trace` guesses a format from what can be read of it.
        assert_eq!(info(&path)["requests"], whole(intact_frames), "cut at {cut}");
    }
    let path = file(&folder, "torn.jsonl.zst", &frames[..second]);
    assert_eq!(read(&path).1, [""; 0], "an end between two frames is clean");
}

#[test]
fn a_damaged_frame_loses_itself_and_is_reported() {
    let folder = TempDir::new().unwrap();
    let mut frames = packed(&TraceHeader::new("test"), 0..2_000);
    let second = (60..).find(|&at| &frames[at..at + 4] == b"SGF1").unwrap() - 8;
    frames[second + 100] ^= 1;
    let (rows, damage) = read(&file(&folder, "damaged.jsonl.zst", &frames));
    assert!(rows.len() < 2_000 && rows.contains(&0) && rows.contains(&1_999));
    assert_eq!(damage, ["FILE, frame 1: the frame's bytes are not those that were written"]);
}

#[test]
fn a_torn_stream_of_text_or_zstd_costs_what_is_torn() {
    let folder = TempDir::new().unwrap();
    let plain = zstd::stream::decode_all(&packed(&TraceHeader::new("test"), 0..2_000)[..]).unwrap();
    let (rows, damage) = read(&file(&folder, "text", &plain[..plain.len() - 5]));
    assert_eq!((rows.len(), &damage[..]), (1_999, &["FILE: its last line is torn".to_owned()][..]));
    let zstd = zstd::stream::encode_all(&plain[..], 1).unwrap();
    let (rows, damage) = read(&file(&folder, "zstd", &zstd[..zstd.len() / 2]));
    assert!((100..1_900).contains(&rows.len()), "{} rows", rows.len());
    assert_eq!(damage, ["FILE: its end is torn off"]);
}

#[test]
fn what_is_no_trace_is_refused_with_a_remedy() {
    let folder = TempDir::new().unwrap();
    let mooncake = file(&folder, "m", r#"{"timestamp": 0, "input_length": 6758, "hash_ids": [0]}"#);
    assert_eq!(
        refused(&mooncake),
        "FILE is no trace of Streamgauge's: its first line is no header. `streamgauge trace convert` reads the public \
         formats"
    );
    let newer = file(&folder, "n", r#"{"streamgauge_trace":2,"source":{"of":"tomorrow"}}"#);
    assert_eq!(
        refused(&newer),
        "FILE is a trace of version 2, and this Streamgauge reads them up to 1: use a newer one"
    );
    let wrong =
        file(&folder, "w", "{\"streamgauge_trace\":1,\"source\":\"t\"}\n{\"at\":1}\n\n{\"at\":-1}\n{\"at\":2}\n");
    assert_eq!(
        refused(&wrong),
        "FILE, line 4: not a row of a trace: it makes no sense from column 8 on. Take the line out, or write the trace \
         again"
    );
    let good = TraceReader::open(&wrong).unwrap().filter_map(Result::ok).map(|row| row.at).collect::<Vec<_>>();
    assert_eq!(good, [1, 2], "reading goes on after it");
    assert_eq!(refused(&file(&folder, "e", "")), "no row can be read: FILE: it has no whole row");
    let two = "{\"streamgauge_trace\":1,\"source\":\"t\"}\n{\"at\":1}\n".repeat(2);
    assert_eq!(
        refused(&file(&folder, "t", two)),
        "FILE, line 3: another trace begins here. Put each into a file of its own, in one folder"
    );
    let nothing = TempDir::new().unwrap();
    assert_eq!(
        refused(nothing.path()),
        "FILE has no trace in it: expected files that end in .jsonl, .jsonl.zst or .parquet"
    );
    let error = TraceReader::open(&folder.path().join("absent")).err().unwrap();
    assert!(matches!(&error, ReadError::Io { .. }) && error.to_string().contains("absent"), "{error}");
}

#[test]
fn a_whole_number_may_be_written_as_a_float_as_data_frames_do() {
    let folder = TempDir::new().unwrap();
    let of = |row: &str| file(&folder, "f", format!("{{\"streamgauge_trace\":1,\"source\":\"t\"}}\n{row}\n"));
    let row = |row: &str| TraceReader::open(&of(row)).unwrap().next().unwrap().unwrap();
    let floats =
        r#"{"at":3.0,"status":2e2,"output_tokens":10.0,"params":{"temperature":0.7},"prompt":{"blocks":[1.0,7]}}"#;
    let wholes = r#"{"at":3,"status":200,"output_tokens":10,"params":{"temperature":0.7},"prompt":{"blocks":[1,7]}}"#;
    assert_eq!(row(floats), row(wholes));
    assert_eq!((row(floats).output_tokens, row(floats).params.temperature), (Some(10), Some(0.7)));
    for cut in ["{\"at\":3.5}", "{\"at\":-1.0}", "{\"at\":1e300}"] {
        assert!(refused(&of(cut)).contains("line 2: not a row of a trace"), "{cut}");
    }
}

#[test]
fn a_folder_is_one_trace_on_the_line_of_its_first_segment() {
    let folder = TempDir::new().unwrap();
    let header_at = |nanos| TraceHeader { started_unix_ns: Some(nanos), ..TraceHeader::new("test") };
    file(&folder, "00000002.jsonl.zst", packed(&header_at(1_500), [1, 2]));
    file(&folder, "00000001.jsonl.zst", packed(&header_at(1_000), [10, 20]));
    file(&folder, "00000003.jsonl.zst", "");
    file(&folder, "capture.key", "not a segment");
    let mut reader = TraceReader::open(folder.path()).unwrap();
    assert_eq!(reader.header().started_unix_ns, Some(1_000));
    assert_eq!(reader.by_ref().map(|row| row.unwrap().at).collect::<Vec<_>>(), [10, 20, 501, 502]);
    assert!(reader.damage()[0].to_string().ends_with("00000003.jsonl.zst: it has no whole row"));
}

#[test]
fn a_segment_that_starts_before_the_first_because_the_clock_was_set_back_is_reported() {
    let folder = TempDir::new().unwrap();
    for (number, started) in [(0, 1_000_000), (1, 999_990)] {
        let header = TraceHeader { started_unix_ns: Some(started), ..TraceHeader::new("test") };
        file(&folder, &format!("{number}.jsonl.zst"), packed(&header, [5, 30]));
    }
    let (rows, damage) = read(folder.path());
    assert_eq!(rows, [5, 30, 0, 20]);
    let message = "it began before the first segment: rows from before that are put at zero";
    assert_eq!(damage, [format!("FILE/1.jsonl.zst, frame 1: {message}")]);
}

#[test]
fn a_folder_whose_blocks_change_their_meaning_is_read_as_far_as_they_agree() {
    let folder = TempDir::new().unwrap();
    let blocks = |size| TraceHeader {
        blocks: Some(BlockScheme {
            size,
            unit: BlockUnit::Tokens,
            last: LastBlock::Dropped,
            ids: BlockIds::Chained,
            scope: BlockScope::Trace,
            key: Some(size.to_string()),
        }),
        ..TraceHeader::new("test")
    };
    file(&folder, "1.jsonl.zst", packed(&blocks(16), [1]));
    let second = file(&folder, "2.jsonl.zst", packed(&blocks(32), [2]));
    let rows: Vec<_> = TraceReader::open(folder.path()).unwrap().collect();
    assert_eq!(rows[0].as_ref().unwrap().at, 1);
    assert_eq!(
        rows[1].as_ref().unwrap_err().to_string(),
        format!(
            "{} has other blocks than the segments before it (--capture-block was changed): read the segments one by \
             one",
            second.display()
        )
    );
}

#[test]
fn a_request_of_two_hundred_tokens_with_jitter_takes_less_than_its_share_of_disk() {
    // No two blocks and no two gaps are alike, so that nothing but what is random anyway is measured.
    let noise = |seed: u64| u64::from_le_bytes(blake3::hash(&seed.to_le_bytes()).as_bytes()[..8].try_into().unwrap());
    let mut writer = TraceWriter::new(Vec::new(), &TraceHeader::new("test")).unwrap();
    let (mut packed, requests) = (0, 500);
    for n in 0..requests {
        let gap = |i: u64| TokenEvent::new(Gap::from_nanos(18_000_000 + noise(n << 10 | i) % 4_000_000), Some(1));
        let gaps = gaps::pack(&(1..200).map(gap).collect::<Vec<_>>());
        packed += gaps.len();
        let blocks = (300..310).map(|i| noise(n << 10 | i)).collect();
        let prompt = PromptShape { bytes: Some(5_200), blocks, ..PromptShape::default() };
        let timing =
            Timing { sent: Some(noise(n)), first_token: Some(noise(n)), gaps: Some(gaps), ..Timing::default() };
        writer.write(&TraceEntry { prompt, timing, ..entry(n) }).unwrap();
    }
    let bytes = writer.finish().unwrap().len();
    let per_token = packed as f64 / (requests * 199) as f64;
    assert!(per_token <= 3.0, "{per_token} bytes of gaps per token");
    assert!(bytes as u64 / requests <= 1_200, "{} bytes per request", bytes as u64 / requests);
}

/// Where the frames of a file begin.
fn frames(bytes: &[u8]) -> Vec<usize> {
    (8..bytes.len() - 4).filter(|&at| &bytes[at..at + 4] == b"SGF1").map(|at| at - 8).collect()
}

#[test]
fn a_time_is_found_without_unpacking_what_is_not_of_it() {
    let folder = TempDir::new().unwrap();
    let mut bytes = packed(&TraceHeader::new("test"), 0..4_000);
    let starts = frames(&bytes);
    assert!(starts.len() > 8, "{} frames", starts.len());
    let head = |frame: usize| FrameHead::read(bytes[starts[frame]..].first_chunk().unwrap()).unwrap();
    let (target, after) = (head(4), head(5));
    let times = target.first + 3..after.first + 2;
    // Damages the other frames, so that a read of one of them fails.
    for (frame, start) in starts.iter().enumerate().filter(|(frame, _)| ![0, 4, 5].contains(frame)) {
        bytes[start + FRAME_HEAD_BYTES + 20] ^= 1;
        assert!(frame != 0);
    }
    let path = file(&folder, "frames.jsonl.zst", &bytes);
    let only = |times: Range<u64>| {
        let mut reader = TraceReader::open(&path).unwrap();
        reader.set_time_range(times);
        (reader.by_ref().map(|row| row.unwrap().at).collect::<Vec<_>>(), reader.damage().len())
    };
    assert_eq!(only(times.clone()), (times.collect(), 0));
    assert_eq!(only(0..u64::MAX).1, starts.len() - 3, "all of it is damaged where all is read");
    assert_eq!(only(5_000..u64::MAX), (vec![], 0));
    // A torn end is found even where it is passed over.
    let path = file(&folder, "torn.jsonl.zst", &bytes[..starts[8] + FRAME_HEAD_BYTES + 5]);
    let mut reader = TraceReader::open(&path).unwrap();
    reader.set_time_range(0..10);
    assert_eq!(reader.by_ref().count(), 10);
    assert_eq!(reader.damage().len(), 1);
}

#[test]
fn a_time_of_a_folder_is_found_in_the_segments_that_have_it() {
    let folder = TempDir::new().unwrap();
    // The second segment's zero is 10,000 ns later.
    for (number, started) in [(0, 1_000_000), (1, 1_010_000)] {
        let header = TraceHeader { started_unix_ns: Some(started), ..TraceHeader::new("test") };
        file(&folder, &format!("{number}.jsonl.zst"), packed(&header, 0..2_000));
    }
    let only = |times: Range<u64>| {
        let mut reader = TraceReader::open(folder.path()).unwrap();
        reader.set_time_range(times);
        reader.map(|row| row.unwrap().at).collect::<Vec<_>>()
    };
    assert_eq!(only(1_998..10_003), [1_998, 1_999, 10_000, 10_001, 10_002]);
    assert_eq!(only(11_500..u64::MAX), (11_500..12_000).collect::<Vec<_>>());
}

#[test]
fn a_cut_of_a_trace_reads_what_it_keeps() {
    let folder = TempDir::new().unwrap();
    let second = 1_000_000_000;
    let mut bytes = packed(&TraceHeader::new("test"), (0..3_000).map(|at| at * second));
    let last = *frames(&bytes).last().unwrap();
    bytes[last + FRAME_HEAD_BYTES + 20] ^= 1;
    let path = file(&folder, "trace.jsonl.zst", &bytes);
    let cut = |times: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamgauge"));
        let done = command.args(["trace", "cut"]).args(times).arg(&path).env_clear().output().unwrap();
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    assert!(cut(&["--from=10s"]).1.contains("bytes are not those that were written"));
    let (rows, stderr) = cut(&["--from=10s", "--to=13s"]);
    assert_eq!(rows.lines().skip(1).filter(|row| row.starts_with("{\"at\":")).count(), 3, "{rows}");
    assert!(rows.contains("{\"at\":2000000000,") && !stderr.contains("bytes are not those"), "{stderr}");
}
