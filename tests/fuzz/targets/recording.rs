//! `streamgauge inspect --timed`: whatever was recorded, times do not go back and nothing is there that was not read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::inspect::recording::RecordedResponse;

fuzz_target!(|text: &[u8]| {
    let Ok(recording) = RecordedResponse::parse(text) else { return };
    assert!(recording.reads.is_sorted_by_key(|(at, _)| *at));
    let body: usize = recording.reads.iter().map(|(_, read)| read.len()).sum();
    assert!(body <= text.len());
    assert!(recording.head <= recording.ended);
    assert!(recording.reads.last().is_none_or(|(at, _)| *at <= recording.ended));
});
