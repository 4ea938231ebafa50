//! Service level objectives: what is read is printed as it was read, and an error points into the text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streamgauge_fuzz::measure::glob::glob;
use streamgauge_fuzz::measure::slo::{Slo, Slos};
use streamgauge_fuzz::measure::time::Gap;

fuzz_target!(|text: &str| {
    match text.parse::<Slo>() {
        Ok(slo) => {
            assert_eq!(slo.to_string(), text.trim());
            assert_eq!(slo.to_string().parse().as_ref(), Ok(&slo));
            let slos = Slos::new(vec![slo.clone()]).expect("one SLO has no namesake");
            assert!(slos.gap_limits().is_sorted());
            assert!(Slos::new(vec![slo.clone(), slo]).is_err());
        }
        Err(error) => assert!(error.to_string().starts_with("expected ")),
    }
    if let Ok(gap) = text.parse::<Gap>() {
        assert!(!gap.to_string().is_empty());
    }
    let (pattern, text) = text.split_once('\n').unwrap_or((text, text));
    assert_eq!(glob(pattern, text), by_the_book(pattern.as_bytes(), text.as_bytes()), "{pattern:?} {text:?}");
});

/// A star stands for nothing, or for one byte and itself again.
fn by_the_book(pattern: &[u8], text: &[u8]) -> bool {
    let mut fits: Vec<bool> = (0..=text.len()).map(|at| at == 0).collect();
    for step in pattern {
        if *step == b'*' {
            for at in 1..fits.len() {
                fits[at] |= fits[at - 1];
            }
        } else {
            for at in (1..fits.len()).rev() {
                fits[at] = fits[at - 1] && text[at - 1] == *step;
            }
            fits[0] = false;
        }
    }
    fits[text.len()]
}
