//! Result files of other tools, in every format. A file is read to its end or is an error, memory is bounded, and times
//! of a request are in order.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::memory::within;
use streamgauge_fuzz::report::peer_files::detect::PeerFormat;
use streamgauge_fuzz::report::peer_files::input::PeerInput;
use streamgauge_fuzz::report::peer_files::{PeerContent, read};

/// Buffers of readers and decoders, whatever the input.
const FIXED_BYTES: usize = 64 << 10;
/// Memory per byte of input: `{}` of a sparse value becomes a struct.
const BYTES_PER_BYTE: usize = 64;

fuzz_target!(|data: &[u8]| {
    PeerFormat::detect(data);
    // Each format reads what is taken for any of them.
    for format in PeerFormat::ALL {
        let input = PeerInput::bytes(Path::new("fuzz"), data.to_vec());
        within(FIXED_BYTES + BYTES_PER_BYTE * data.len(), || match read(format, &input, Some(1)) {
            Err(error) => assert!(error.to_string().contains("; remedy: ")),
            Ok(PeerContent::Summary(summary)) => {
                serde_json::to_string(&summary).expect("numbers and names");
            }
            Ok(PeerContent::Run(run)) => {
                for request in run.requests {
                    let Ok(request) = request else { break };
                    let others = run.in_flight.others_at(request.at);
                    let view = request.view(0, run.facts.model.as_deref(), run.facts.dialect, Some(others));
                    assert!(view.ended.is_none_or(|ended| ended >= view.sent));
                    assert!(view.first.is_none_or(|first| first >= view.sent));
                }
            }
        });
    }
});
