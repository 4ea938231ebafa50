//! Selects requests: `model=llama-* isl>=1000 status!=200`.

use std::fmt;
use std::str::FromStr;

use super::request_view::RequestView;
use crate::measure::glob::glob;
use crate::measure::record::Outcome;

const EXPECTED: &str = "expected KEY, = or !=, and a text with `*` for anything, or a number key with =, !=, <=, <, >= or >; \
                        keys: model, server, dialect, outcome, session, class.NAME, status, isl, osl, cached, turn, \
                        in_flight";

/// Requirements that a request must all meet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestFilter(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq)]
struct Requirement {
    key: FilterKey,
    sign: FilterOperator,
    value: FilterValue,
}

#[derive(Clone, Debug, PartialEq)]
enum FilterValue {
    Pattern(String),
    Number(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FilterKey {
    Model,
    Server,
    Dialect,
    Outcome,
    Session,
    Status,
    Isl,
    Osl,
    Cached,
    Turn,
    InFlight,
    /// The value of a class of this name.
    Class(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilterOperator {
    Equal,
    Unequal,
    AtMost,
    AtLeast,
    Below,
    Above,
}

const KEYS: [(&str, FilterKey); 11] = [
    ("model", FilterKey::Model),
    ("server", FilterKey::Server),
    ("dialect", FilterKey::Dialect),
    ("outcome", FilterKey::Outcome),
    ("session", FilterKey::Session),
    ("status", FilterKey::Status),
    ("isl", FilterKey::Isl),
    ("osl", FilterKey::Osl),
    ("cached", FilterKey::Cached),
    ("turn", FilterKey::Turn),
    ("in_flight", FilterKey::InFlight),
];

/// Begins the key of a class, as in `class.tier=gold`.
const CLASS_PREFIX: &str = "class.";

/// Longer signs first: `<=` begins with `<`.
const SIGNS: [(&str, FilterOperator); 6] = [
    ("!=", FilterOperator::Unequal),
    ("<=", FilterOperator::AtMost),
    (">=", FilterOperator::AtLeast),
    ("=", FilterOperator::Equal),
    ("<", FilterOperator::Below),
    (">", FilterOperator::Above),
];

impl FilterKey {
    fn parse(name: &str) -> Option<Self> {
        let class = || name.strip_prefix(CLASS_PREFIX).filter(|name| !name.is_empty());
        let known = KEYS.into_iter().find(|(known, _)| *known == name).map(|(_, key)| key);
        known.or_else(|| Some(Self::Class(class()?.to_owned())))
    }

    const fn is_text(&self) -> bool {
        matches!(self, Self::Model | Self::Server | Self::Dialect | Self::Outcome | Self::Session | Self::Class(_))
    }

    fn text<'a>(&self, request: &'a RequestView) -> Option<&'a str> {
        match self {
            Self::Model => request.model.as_deref(),
            Self::Server => request.upstream.as_deref(),
            Self::Dialect => request.dialect.as_deref(),
            Self::Outcome => request.outcome.map(Outcome::name),
            Self::Session => request.session.as_ref().map(|(session, _)| session.as_str()),
            Self::Class(name) => request.classes.get(name).map(|value| &**value),
            _ => None,
        }
    }

    fn number(&self, request: &RequestView) -> Option<u64> {
        match self {
            Self::Status => request.status.map(u64::from),
            Self::Isl => request.input,
            Self::Osl => request.tokens.map(|count| count.tokens),
            Self::Cached => request.cached,
            Self::Turn => request.session.as_ref().map(|(_, turn)| u64::from(*turn)),
            Self::InFlight => request.in_flight.map(u64::from),
            _ => None,
        }
    }
}

impl Requirement {
    /// A request without the value meets `!=` alone.
    fn holds(&self, request: &RequestView) -> bool {
        match &self.value {
            FilterValue::Pattern(pattern) => {
                let equal = self.key.text(request).is_some_and(|text| glob(pattern, text));
                equal != (self.sign == FilterOperator::Unequal)
            }
            FilterValue::Number(limit) => match (self.sign, self.key.number(request)) {
                (FilterOperator::Unequal, number) => number != Some(*limit),
                (_, None) => false,
                (FilterOperator::Equal, Some(number)) => number == *limit,
                (FilterOperator::AtMost, Some(number)) => number <= *limit,
                (FilterOperator::AtLeast, Some(number)) => number >= *limit,
                (FilterOperator::Below, Some(number)) => number < *limit,
                (FilterOperator::Above, Some(number)) => number > *limit,
            },
        }
    }
}

impl RequestFilter {
    /// Returns `true` if the request meets every requirement.
    pub fn accepts(&self, request: &RequestView) -> bool {
        self.0.iter().all(|requirement| requirement.holds(request))
    }

    /// Returns `true` if every request is accepted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for RequestFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let requirements = text.split_whitespace().map(|word| {
            let wrong = || format!("{EXPECTED}, not `{}`", word.chars().take(60).collect::<String>().escape_debug());
            let at = word.find(['=', '!', '<', '>']).ok_or_else(wrong)?;
            let (name, rest) = word.split_at(at);
            let key = FilterKey::parse(name).ok_or_else(wrong)?;
            let found = SIGNS.iter().find_map(|(sign, meaning)| Some((*meaning, rest.strip_prefix(sign)?)));
            let (sign, value) = found.filter(|(_, value)| !value.is_empty()).ok_or_else(wrong)?;
            let value = if key.is_text() {
                if !matches!(sign, FilterOperator::Equal | FilterOperator::Unequal) {
                    return Err(wrong());
                }
                FilterValue::Pattern(value.to_owned())
            } else {
                FilterValue::Number(value.parse().map_err(|_| wrong())?)
            };
            Ok(Requirement { key, sign, value })
        });
        requirements.collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for RequestFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Requirement { key, sign, value }) in self.0.iter().enumerate() {
            let (prefix, name) = match key {
                FilterKey::Class(name) => (CLASS_PREFIX, &**name),
                key => ("", KEYS.iter().find(|(_, of)| of == key).map_or("", |(name, _)| name)),
            };
            let sign = SIGNS.iter().find(|(_, of)| of == sign).map_or("", |(sign, _)| sign);
            write!(f, "{}{prefix}", if number > 0 { " " } else { "" })?;
            match value {
                FilterValue::Pattern(pattern) => write!(f, "{name}{sign}{pattern}")?,
                FilterValue::Number(limit) => write!(f, "{name}{sign}{limit}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::row::{PromptShape, TraceEntry};

    fn request(model: Option<&str>, isl: Option<u64>) -> RequestView {
        let prompt = PromptShape { tokens: isl, ..PromptShape::default() };
        let row = TraceEntry {
            model: model.map(str::to_owned),
            prompt,
            status: Some(200),
            session: Some("ab".to_owned()),
            turn: Some(2),
            class: serde_json::from_str(r#"{"tier":"gold"}"#).unwrap(),
            ..TraceEntry::default()
        };
        RequestView::with_events(row, Vec::new(), 0, None)
    }

    #[test]
    fn all_requirements_must_hold_and_a_missing_value_meets_only_inequality() {
        let accepts = |text: &str, request: &RequestView| text.parse::<RequestFilter>().unwrap().accepts(request);
        let known = request(Some("llama-8b"), Some(1_000));
        for (text, expected) in [
            ("", true),
            ("model=llama-* isl>=1000", true),
            ("model=llama-* isl>1000", false),
            ("model!=llama-8b", false),
            ("isl<1000", false),
            ("isl<=1000 turn=2 status=200", true),
            ("status!=200", false),
            ("session=ab", true),
            ("class.tier=g*", true),
            ("class.tier!=gold", false),
            ("class.team=red", false),
            ("class.team!=red", true),
        ] {
            assert_eq!(accepts(text, &known), expected, "{text}");
        }
        let unknown = request(None, None);
        assert!(!accepts("model=*", &unknown) && !accepts("isl<=9", &unknown) && !accepts("isl>=0", &unknown));
        assert!(accepts("model!=a isl!=3", &unknown));
    }

    #[test]
    fn a_filter_is_displayed_as_it_was_written_and_a_wrong_word_is_named() {
        for text in ["model=llama-* isl>=1000 status!=200", "osl<5 turn>0", "class.tier=gold class.team!=red"] {
            assert_eq!(text.parse::<RequestFilter>().unwrap().to_string(), text);
        }
        for wrong in ["x=1", "model<a", "isl=", "isl=a", "isl", "=3"] {
            let error = wrong.parse::<RequestFilter>().unwrap_err();
            assert!(error.starts_with("expected KEY") && error.ends_with(&format!("not `{wrong}`")), "{error}");
        }
    }
}
