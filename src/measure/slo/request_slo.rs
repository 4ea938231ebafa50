//! Limits that a request sets for itself, in header fields of the Gateway API's endpoint pickers and of load generators.
//!
//! A limit is a decimal number of milliseconds, more than 0 and at most one hour, as in `x-slo-ttft-ms: 500`. Clients write
//! the fields, so every other value is ignored and counted.

use std::num::NonZeroU32;

use super::Metric;
use crate::measure::time::Gap;

/// Header fields of the limit on TTFT; the first one that is present counts.
const TTFT_HEADERS: [&str; 2] = ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"];
/// Header fields of the limit on TPOT.
const TPOT_HEADERS: [&str; 2] = ["x-slo-tpot-ms", "x-llm-d-slo-tpot-ms"];

const MAX_LIMIT_MICROS: f64 = 3_600.0 * 1e6;
const MAX_VALUE_BYTES: usize = 20;

/// Limits of one request. Microseconds, because every open stream holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSlo {
    ttft: Option<NonZeroU32>,
    tpot: Option<NonZeroU32>,
    is_ttft_invalid: bool,
    is_tpot_invalid: bool,
}

impl RequestSlo {
    /// Reads the limits of a request head. `header` reads one field.
    pub fn of_head<'h>(header: impl Fn(&str) -> Option<&'h [u8]>) -> Self {
        let read = |fields: [&str; 2]| fields.iter().find_map(|field| header(field)).map(micros);
        let (ttft, tpot) = (read(TTFT_HEADERS), read(TPOT_HEADERS));
        Self {
            ttft: ttft.flatten(),
            tpot: tpot.flatten(),
            is_ttft_invalid: ttft == Some(None),
            is_tpot_invalid: tpot == Some(None),
        }
    }

    /// Limits in nanoseconds, as a row has them. A value outside the bounds is dropped.
    pub fn of_nanos(ttft: Option<u64>, tpot: Option<u64>) -> Self {
        let micros = |nanos: u64| u32::try_from(nanos / 1_000).ok().and_then(NonZeroU32::new);
        Self { ttft: ttft.and_then(micros), tpot: tpot.and_then(micros), ..Self::default() }
    }

    /// Header fields that set these limits, with their values.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let fields = [(TTFT_HEADERS[0], self.ttft), (TPOT_HEADERS[0], self.tpot)];
        fields.into_iter().filter_map(|(field, micros)| Some((field, (f64::from(micros?.get()) / 1e3).to_string())))
    }

    /// The limit on a metric.
    pub fn limit(&self, metric: Metric) -> Option<Gap> {
        let micros = match metric {
            Metric::Ttft => self.ttft,
            Metric::Tpot => self.tpot,
            Metric::Ttfo | Metric::Itl(_) | Metric::E2e => None,
        };
        micros.map(|micros| Gap::from_nanos(u64::from(micros.get()) * 1_000))
    }

    /// Metrics whose header field has an invalid value.
    pub fn invalid(&self) -> impl Iterator<Item = Metric> {
        let fields = [(self.is_ttft_invalid, Metric::Ttft), (self.is_tpot_invalid, Metric::Tpot)];
        fields.into_iter().filter(|(is_invalid, _)| *is_invalid).map(|(_, metric)| metric)
    }
}

/// Parses milliseconds; `None` if the value is invalid.
fn micros(value: &[u8]) -> Option<NonZeroU32> {
    let value = value.trim_ascii();
    let is_decimal = value.len() <= MAX_VALUE_BYTES && value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    let millis: f64 = std::str::from_utf8(value).ok().filter(|_| is_decimal)?.parse().ok()?;
    let micros = (millis * 1e3).round();
    (micros <= MAX_LIMIT_MICROS).then(|| NonZeroU32::new(micros as u32)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(head: &[(&str, &'static [u8])]) -> RequestSlo {
        RequestSlo::of_head(|name| head.iter().find(|(field, _)| *field == name).map(|(_, value)| *value))
    }

    #[test]
    fn the_limits_of_both_families_of_header_fields_are_read() {
        let limits = |slo: RequestSlo| [Metric::Ttft, Metric::Tpot].map(|metric| slo.limit(metric));
        let slo = of(&[("x-slo-ttft-ms", b"500"), ("x-slo-tpot-ms", b" 12.5 ")]);
        assert_eq!(limits(slo), [Some(Gap::from_millis(500)), Some(Gap::from_nanos(12_500_000))]);
        let slo = of(&[("x-llm-d-slo-tpot-ms", b"3600000"), ("other", b"1")]);
        assert_eq!(limits(slo), [None, Some(Gap::from_millis(3_600_000))]);
        assert_eq!((slo.limit(Metric::E2e), slo.invalid().count()), (None, 0));
        assert_eq!(RequestSlo::of_nanos(None, Some(3_600_000_000_000)), slo);
        assert_eq!(RequestSlo::of_nanos(Some(0), Some(u64::MAX)), RequestSlo::default());
        let fields: Vec<_> = of(&[("x-slo-ttft-ms", b"500"), ("x-slo-tpot-ms", b"12.50")]).fields().collect();
        assert_eq!(fields, [("x-slo-ttft-ms", "500".to_owned()), ("x-slo-tpot-ms", "12.5".to_owned())]);
        assert_eq!(size_of::<RequestSlo>(), 12);
    }

    #[test]
    fn a_hostile_value_is_no_limit_and_is_told() {
        let hostile: [&[u8]; 14] = [
            b"",
            b"0",
            b"-5",
            b"+5",
            b"1e3",
            b"inf",
            b"nan",
            b"3600000.1",
            b"0.0004",
            b"1.2.3",
            b".",
            b"500ms",
            b"\xff\x00",
            b"000000000000000000001",
        ];
        for value in hostile {
            let slo = of(&[("x-slo-ttft-ms", value), ("x-slo-tpot-ms", b"9")]);
            assert_eq!(
                (slo.limit(Metric::Ttft), slo.limit(Metric::Tpot)),
                (None, Some(Gap::from_millis(9))),
                "{value:?}"
            );
            assert_eq!(slo.invalid().collect::<Vec<_>>(), [Metric::Ttft], "{value:?}");
        }
    }
}
