//! Encodes a snapshot as text 0.0.4 or OpenMetrics 1.0.

use std::fmt::{self, Write};

use super::name;
use crate::export::registry::catalog::{Instrument, InstrumentKind};
use crate::export::registry::interner::{Label, LabelValue};
use crate::export::registry::snapshot::{BucketExemplar, DataPoint, FamilySnapshot, PointValue, Snapshot};
use crate::measure::histogram::Histogram;

pub(super) fn encode(snapshot: &Snapshot, openmetrics: bool) -> String {
    let mut writer = ExpositionWriter { out: String::with_capacity(1 << 16), openmetrics };
    for family in &snapshot.families {
        // Writing to a string cannot fail.
        let _written = writer.family(family).is_ok();
    }
    if openmetrics {
        writer.out.push_str("# EOF\n");
    }
    writer.out
}

struct ExpositionWriter {
    out: String,
    openmetrics: bool,
}

impl ExpositionWriter {
    fn family(&mut self, family: &FamilySnapshot) -> fmt::Result {
        let instrument = family.id.instrument();
        let sample = name::sample(instrument);
        self.metadata(instrument, &sample)?;
        for point in &family.points {
            match &point.data {
                PointValue::Count(count) => self.line(&sample, &point.labels, None, count)?,
                PointValue::Gauge(level) => self.line(&sample, &point.labels, None, level)?,
                PointValue::Number(seconds) => self.line(&sample, &point.labels, None, seconds)?,
                PointValue::Histogram(histogram, exemplars) => self.histogram(&sample, point, histogram, exemplars)?,
            }
            if self.openmetrics
                && (name::is_counter(instrument) || matches!(instrument.kind, InstrumentKind::Histogram(_)))
            {
                let created = format!("{}_created", name::family(instrument));
                self.line(&created, &point.labels, None, UnixSeconds(point.created))?;
            }
        }
        Ok(())
    }

    fn metadata(&mut self, instrument: &Instrument, sample: &str) -> fmt::Result {
        let kind = match instrument.kind {
            InstrumentKind::Counter | InstrumentKind::ObservedCounter => "counter",
            InstrumentKind::UpDownCounter | InstrumentKind::Gauge => "gauge",
            InstrumentKind::Info if self.openmetrics => "info",
            InstrumentKind::Info => "gauge",
            InstrumentKind::Histogram(_) => "histogram",
        };
        let family = name::family(instrument);
        let family = match instrument.kind {
            _ if !self.openmetrics => sample,
            InstrumentKind::Info => family.trim_end_matches("_info"),
            _ => &family,
        };
        writeln!(self.out, "# TYPE {family} {kind}")?;
        if let Some(unit) = name::unit(instrument).filter(|_| self.openmetrics) {
            writeln!(self.out, "# UNIT {family} {unit}")?;
        }
        write!(self.out, "# HELP {family} ")?;
        self.write_escaped(instrument.description)?;
        self.out.write_char('\n')
    }

    fn histogram(
        &mut self,
        name: &str,
        point: &DataPoint,
        histogram: &Histogram,
        exemplars: &[(usize, BucketExemplar)],
    ) -> fmt::Result {
        let bounds = histogram.layout().bounds().iter().copied().chain([f64::INFINITY]);
        let bucket = format!("{name}_bucket");
        for ((at, bound), count) in bounds.enumerate().zip(histogram.cumulative()) {
            let exemplar = exemplars.iter().find(|(bucket, _)| *bucket == at).map(|(_, exemplar)| exemplar);
            let bound = BucketBound { bound, openmetrics: self.openmetrics };
            self.sample(&bucket, &point.labels, Some(bound), count)?;
            if let Some(exemplar) = exemplar.filter(|_| self.openmetrics) {
                let BucketExemplar { value, unix, trace_id, span_id } = exemplar;
                let at = UnixSeconds(*unix);
                write!(self.out, " # {{trace_id=\"{trace_id}\",span_id=\"{span_id}\"}} {value} {at}")?;
            }
            self.out.write_char('\n')?;
        }
        self.line(&format!("{name}_count"), &point.labels, None, histogram.count())?;
        self.line(&format!("{name}_sum"), &point.labels, None, histogram.sum())
    }

    fn line(
        &mut self,
        name: &str,
        labels: &[Label],
        bound: Option<BucketBound>,
        value: impl fmt::Display,
    ) -> fmt::Result {
        self.sample(name, labels, bound, value)?;
        self.out.write_char('\n')
    }

    fn sample(
        &mut self,
        name: &str,
        labels: &[Label],
        bound: Option<BucketBound>,
        value: impl fmt::Display,
    ) -> fmt::Result {
        self.out.push_str(name);
        let mut opening = '{';
        for Label { name, value } in labels {
            self.out.push(std::mem::replace(&mut opening, ','));
            self.out.extend(name.chars().map(name::sanitize_char));
            self.out.push_str("=\"");
            match value {
                LabelValue::Text(text) => self.write_escaped(text)?,
                LabelValue::Int(number) => write!(self.out, "{number}")?,
                LabelValue::Bool(truth) => write!(self.out, "{truth}")?,
            }
            self.out.push('"');
        }
        if let Some(bound) = bound {
            write!(self.out, "{}le=\"{bound}\"", std::mem::replace(&mut opening, ','))?;
        }
        if opening == ',' {
            self.out.push('}');
        }
        write!(self.out, " {value}")
    }

    /// Escapes characters that would end a string or a line. A 0.0.4 `HELP` does not escape quotes; our texts contain
    /// none.
    fn write_escaped(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '"' => self.out.push_str("\\\""),
                '\n' => self.out.push_str("\\n"),
                c => self.out.push(c),
            }
        }
        Ok(())
    }
}

/// Formats nanoseconds since 1970 in seconds, truncated to milliseconds.
struct UnixSeconds(u64);

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1_000)
    }
}

/// Formats a bucket's bound as the Prometheus libraries do, because labels are compared as text.
struct BucketBound {
    bound: f64,
    openmetrics: bool,
}

impl fmt::Display for BucketBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bound.is_infinite() {
            return f.write_str("+Inf");
        }
        // Go's %g: exponents below 1e-4 and from 1e6 on, with at least two digits.
        let scientific = format!("{:e}", self.bound);
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if self.bound != 0.0 && !(-4..6).contains(&exponent) {
            let sign = if exponent < 0 { '-' } else { '+' };
            return write!(f, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
        }
        let point = if self.openmetrics && self.bound.fract() == 0.0 { ".0" } else { "" };
        write!(f, "{}{point}", self.bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::otlp::Sampler;
    use crate::export::fixtures::{NOW, record, shape};
    use crate::export::registry::aggregate::{Aggregate, AggregateSettings};
    use crate::export::registry::catalog::Id;
    use crate::export::trace_context::RequestTrace;

    fn lines(text: &str, name: &str) -> Vec<String> {
        text.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    }

    fn snapshot(model: &str, trace: Option<&RequestTrace>) -> Snapshot {
        let mut aggregate = Aggregate::new(AggregateSettings::default());
        let mut record = record();
        record.shape = std::sync::Arc::new(shape(model));
        aggregate.record_finished(&record, trace, NOW);
        aggregate.snapshot(NOW)
    }

    #[test]
    fn a_histogram_is_cumulative_and_a_counter_ends_in_total() {
        let text = encode(&snapshot("tiny", None), false);
        let ttft = "gen_ai_server_time_to_first_token_seconds";
        let labels = "gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"openai\",gen_ai_request_model=\"tiny\",\
            server_address=\"llm.local\",server_port=\"8000\"";
        assert_eq!(lines(&text, &format!("# TYPE {ttft}")), [format!("# TYPE {ttft} histogram")]);
        let buckets = lines(&text, &format!("{ttft}_bucket"));
        assert_eq!(buckets.len(), 23);
        assert_eq!(buckets[7], format!("{ttft}_bucket{{{labels},le=\"0.1\"}} 0"));
        assert_eq!(buckets[8], format!("{ttft}_bucket{{{labels},le=\"0.25\"}} 1"));
        assert_eq!(buckets[11], format!("{ttft}_bucket{{{labels},le=\"1\"}} 1"));
        assert_eq!(buckets[22], format!("{ttft}_bucket{{{labels},le=\"+Inf\"}} 1"));
        assert_eq!(lines(&text, &format!("{ttft}_count")), [format!("{ttft}_count{{{labels}}} 1")]);
        assert_eq!(lines(&text, &format!("{ttft}_sum")), [format!("{ttft}_sum{{{labels}}} 0.2")]);
        let tokens = "streamgauge_stream_output_tokens_total";
        assert_eq!(lines(&text, &format!("# TYPE {tokens}")), [format!("# TYPE {tokens} counter")]);
        let expected = format!("{tokens}{{gen_ai_request_model=\"tiny\",source=\"usage\"}} 6");
        assert_eq!(lines(&text, tokens), [expected]);
        assert!(!text.contains("_created") && !text.contains("# EOF") && !text.contains("# UNIT"));
    }

    #[test]
    fn openmetrics_has_units_start_times_exemplars_and_an_end() {
        let trace = RequestTrace::begin(&Sampler::default(), None, None);
        let text = encode(&snapshot("tiny", Some(&trace)), true);
        let ttft = name::family(Id::TimeToFirstToken.instrument());
        assert_eq!(lines(&text, &format!("# UNIT {ttft}")), [format!("# UNIT {ttft} seconds")]);
        let buckets = lines(&text, &format!("{ttft}_bucket"));
        let exemplar =
            format!(" 1 # {{trace_id=\"{}\",span_id=\"{}\"}} 0.2 1750000001.305", trace.trace_id, trace.server_span);
        assert!(buckets[8].ends_with(&format!("le=\"0.25\"}}{exemplar}")), "{}", buckets[8]);
        assert!(buckets[11].ends_with("le=\"1.0\"} 1"), "{}", buckets[11]);
        assert!(lines(&text, &format!("{ttft}_created"))[0].ends_with("} 1750000060.000"));
        assert_eq!(
            lines(&text, "# TYPE streamgauge_stream_output_tokens"),
            ["# TYPE streamgauge_stream_output_tokens counter"]
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn an_information_is_a_type_of_its_own_only_in_openmetrics() {
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        snapshot.observe(Id::BuildInfo, ["1.0".into()], 0, PointValue::Gauge(1));
        let help = "The program that exports this.";
        let text = format!("# TYPE streamgauge_build_info gauge\n# HELP streamgauge_build_info {help}\n");
        assert_eq!(encode(&snapshot, false), format!("{text}streamgauge_build_info{{version=\"1.0\"}} 1\n"));
        let text = format!("# TYPE streamgauge_build info\n# HELP streamgauge_build {help}\n");
        assert_eq!(encode(&snapshot, true), format!("{text}streamgauge_build_info{{version=\"1.0\"}} 1\n# EOF\n"));
    }

    #[test]
    fn a_hostile_value_stays_in_its_quotes() {
        let mut snapshot = Snapshot { unix: 0, families: Vec::new() };
        let hostile = "\"} 1\nfake_total{a=\\\"\u{2028}\u{0}é";
        snapshot.observe(Id::BuildInfo, [hostile.into()], 0, PointValue::Gauge(1));
        let text = encode(&snapshot, true);
        assert!(lines(&text, "fake").is_empty());
        let expected = "version=\"\\\"} 1\\nfake_total{a=\\\\\\\"\u{2028}\u{0}é\"";
        assert!(lines(&text, "streamgauge_build_info")[0].contains(expected));
    }

    #[test]
    fn bounds_are_written_as_in_go() {
        let written = |bound, openmetrics| BucketBound { bound, openmetrics }.to_string();
        for (bound, text, openmetrics) in [
            (0.00001, "1e-05", "1e-05"),
            (0.000025, "2.5e-05", "2.5e-05"),
            (0.0001, "0.0001", "0.0001"),
            (0.0, "0", "0.0"),
            (1.0, "1", "1.0"),
            (2.5, "2.5", "2.5"),
            (262_144.0, "262144", "262144.0"),
            (1_048_576.0, "1.048576e+06", "1.048576e+06"),
            (f64::INFINITY, "+Inf", "+Inf"),
        ] {
            assert_eq!((written(bound, false).as_str(), written(bound, true).as_str()), (text, openmetrics));
        }
    }
}
