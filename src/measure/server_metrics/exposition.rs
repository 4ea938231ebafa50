//! Parses samples of the Prometheus text format. Pure and infallible: invalid lines are skipped.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>. The parser ignores comments,
//! types, timestamps and exemplars. It does not support quoted metric names, which servers send only on request.

/// One sample line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Metric name.
    pub name: &'a str,
    /// The text between the braces, or empty.
    labels: &'a str,
    /// Value; may be infinite or NaN.
    pub value: f64,
}

/// The page's samples, in order.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_start_matches(BLANK);
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':').unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let rest = rest.trim_start_matches(BLANK);
    let (labels, rest) = match rest.strip_prefix('{') {
        None => ("", rest),
        Some(rest) => rest.split_at_checked(find_closing_brace(rest)?).map(|(labels, rest)| (labels, &rest[1..]))?,
    };
    let value = rest.split(BLANK).find(|word| !word.is_empty())?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// Separators; `\r` accepts lines with Windows endings.
const BLANK: [char; 3] = [' ', '\t', '\r'];

/// The offset of the brace that closes a label list, outside quotes.
fn find_closing_brace(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        let plain = !std::mem::take(&mut escaped);
        match byte {
            b'\\' if quoted && plain => escaped = true,
            b'"' if plain => quoted = !quoted,
            b'}' => return !quoted,
            _ => {}
        }
        false
    })
}

impl<'a> Sample<'a> {
    /// A label's value as written: escapes are not decoded.
    pub fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        loop {
            let (key, after) = rest.split_once('=')?;
            let after = after.trim_start_matches(BLANK).strip_prefix('"')?;
            let mut escaped = false;
            let end = after.bytes().position(|byte| {
                let plain = !std::mem::take(&mut escaped);
                escaped = byte == b'\\' && plain;
                byte == b'"' && plain
            })?;
            if key.trim_matches(|c| c == ',' || BLANK.contains(&c)) == name {
                return Some(&after[..end]);
            }
            rest = &after[end + 1..];
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn only(line: &str) -> Option<(&str, f64)> {
        sample(line).map(|sample| (sample.name, sample.value))
    }

    #[test]
    fn a_sample_has_a_name_and_a_value() {
        assert_eq!(only("up 1"), Some(("up", 1.0)));
        assert_eq!(only("  vllm:x_total{engine=\"0\"}\t2.5e3 1750000000000"), Some(("vllm:x_total", 2_500.0)));
        assert_eq!(only("a{b=\"} \\\" }\",c=\"\\\\\"} 3 # {trace_id=\"x\"} 1"), Some(("a", 3.0)));
        assert_eq!(only("a{} +Inf"), Some(("a", f64::INFINITY)));
        assert_eq!(samples("a 1\r\nb 2\r").map(|sample| sample.value).collect::<Vec<_>>(), [1.0, 2.0]);
        assert!(only("a NaN").unwrap().1.is_nan());
        for nothing in
            ["", "# HELP up 1", "# TYPE a gauge", "a", "a{", "a{b=\"}\" 1", "a} 1", "1a 1", "a one", "{\"a\"} 1"]
        {
            assert_eq!(only(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_label_is_found_by_its_name_and_not_in_a_value() {
        let sample = sample(r#"a{x="priority=\"9\"", priority = "3",y=""} 1"#).unwrap();
        assert_eq!((sample.label("priority"), sample.label("y"), sample.label("z")), (Some("3"), Some(""), None));
        assert_eq!(sample.label("x"), Some(r#"priority=\"9\""#));
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_again(
            name in "[a-zA-Z_:][a-zA-Z0-9_:]{0,20}",
            labels in prop::collection::vec(("[a-zA-Z_][a-zA-Z0-9_]{0,8}", "\\PC{0,12}"), 0..4),
            value: f64,
            around in "[ \t]{0,3}",
        ) {
            let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
            let list: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
            let page = format!("# HELP x y\n{around}{name}{around}{{{}}}{around} {value}{around}\nlast 7", list.join(","));
            let read: Vec<Sample<'_>> = samples(&page).collect();
            prop_assert_eq!(read.len(), 2, "{}", page);
            prop_assert_eq!((read[0].name, read[0].value.to_bits()), (&*name, value.to_bits()));
            prop_assert_eq!((read[1].name, read[1].value), ("last", 7.0));
            if let Some((key, value)) = labels.first() {
                prop_assert_eq!(read[0].label(key), Some(&*escaped(value)));
            }
        }

        #[test]
        fn nonsense_is_passed_over(page in "\\PC{0,200}") {
            for sample in samples(&page) {
                prop_assert!(page.contains(sample.name));
                let _any = sample.label("a");
            }
        }
    }
}
