//! Content negotiation of the scrape: any `Accept` gives a format that it names. White space, case and unknown formats
//! change nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::export::prometheus::negotiate::{ScrapeFormat, negotiate};

fuzz_target!(|accept: &str| {
    let format = negotiate(accept);
    let named = match format {
        ScrapeFormat::Text => "",
        ScrapeFormat::OpenMetrics => "application/openmetrics-text",
        ScrapeFormat::Protobuf => "application/vnd.google.protobuf",
    };
    assert!(accept.to_ascii_lowercase().contains(named));
    assert_eq!(negotiate(&format!("image/png,{accept}")), format);
    assert_eq!(negotiate(&format!(" {} ", accept.replace(',', " ,\t"))), format);
    assert_eq!(negotiate(&format!("{accept},application/openmetrics-text;q=0")), format);
    if !accept.contains(';') {
        assert_eq!(negotiate(&accept.to_ascii_uppercase()), format);
    }
});
