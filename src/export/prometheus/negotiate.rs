//! Selects the scrape format by `Accept`, with text as the fallback.

/// A scrape format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrapeFormat {
    /// Text 0.0.4.
    Text,
    /// OpenMetrics text 1.0.
    OpenMetrics,
    /// Length-delimited `io.prometheus.client.MetricFamily` messages.
    Protobuf,
}

/// Selects the format for an `Accept` header.
pub fn negotiate(accept: &str) -> ScrapeFormat {
    let mut best = (0, ScrapeFormat::Text);
    for range in accept.split(',') {
        let (media, parameters) = range.split_once(';').unwrap_or((range, ""));
        let parameter = |name| parameter(parameters, name);
        let format = match media.trim().to_ascii_lowercase().as_str() {
            "application/vnd.google.protobuf"
                if parameter("proto") == Some("io.prometheus.client.MetricFamily")
                    && parameter("encoding") == Some("delimited") =>
            {
                ScrapeFormat::Protobuf
            }
            "application/openmetrics-text" if parameter("version").is_none_or(|version| version == "1.0.0") => {
                ScrapeFormat::OpenMetrics
            }
            "text/plain" if parameter("version").is_none_or(|version| version == "0.0.4") => ScrapeFormat::Text,
            "text/*" | "*/*" => ScrapeFormat::Text,
            _ => continue,
        };
        // Of equal weights the first one wins.
        let weight = weight(parameter("q"));
        if weight > best.0 {
            best = (weight, format);
        }
    }
    best.1
}

/// Finds a parameter by its case-insensitive name.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = parameters.split(';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
    Some(value.trim().trim_matches('"'))
}

/// Parses a q-value in thousandths: 1000 if absent, 0 if invalid.
fn weight(quality: Option<&str>) -> u32 {
    let Some(quality) = quality else { return 1_000 };
    let value = quality.parse().ok().filter(|value| (0.0..=1.0).contains(value)).unwrap_or(0.0);
    (value * 1_000.0f64).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scraper_gets_what_it_prefers() {
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let native = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7";
        for (accept, expected) in [
            ("", ScrapeFormat::Text),
            ("*/*", ScrapeFormat::Text),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", ScrapeFormat::Text),
            (prometheus_3, ScrapeFormat::OpenMetrics),
            (&format!("{native},{prometheus_3}"), ScrapeFormat::Protobuf),
            (&format!("{},{prometheus_3}", native.replace("q=0.7", "q=0")), ScrapeFormat::OpenMetrics),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
                ScrapeFormat::Text,
            ),
            ("application/vnd.google.protobuf", ScrapeFormat::Text),
            ("application/openmetrics-text;version=0.0.1", ScrapeFormat::Text),
            ("Application/OpenMetrics-Text; version=\"1.0.0\" ; q=0.5 , text/plain ; q=0.4", ScrapeFormat::OpenMetrics),
            ("text/plain,application/openmetrics-text", ScrapeFormat::Text),
            ("application/openmetrics-text;q=nan,text/plain;q=0.1", ScrapeFormat::Text),
            ("application/json", ScrapeFormat::Text),
        ] {
            assert_eq!(negotiate(accept), expected, "{accept}");
        }
    }
}
