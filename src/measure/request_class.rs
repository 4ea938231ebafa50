//! Classes: attributes of requests, such as a tier or a tenant, that an operator turns into labels.
//!
//! A class has a name and a source in the request. Its values reach metrics, captures and SLOs, so each value is
//! checked: up to 64 letters, digits and `-_.:/@+`. Any other value counts as [`OTHER`]. A request without the
//! attribute has no value.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::json_scanner::Scalar;

/// Maximum number of classes: the series of every instrument multiply by the values of each.
pub const MAX_CLASSES: usize = 4;
/// Value of requests whose own value is malformed, or above the limit of an export.
pub const OTHER: &str = "_other";

/// Longer values count as [`OTHER`].
pub const MAX_VALUE_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 32;

/// Names that mean something else: labels of our own series, labels that Prometheus adds, and keys of SLO filters.
const RESERVED_NAMES: [&str; 24] = [
    "answered_by",
    "exporter",
    "fault",
    "first_token",
    "instance",
    "job",
    "le",
    "method",
    "model",
    "objective",
    "outcome",
    "phase",
    "quantile",
    "reason",
    "result",
    "route",
    "slo",
    "source",
    "stage",
    "state",
    "status_class",
    "target",
    "traffic",
    "version",
];

/// First words of attributes in the semantic conventions, and of labels that Prometheus adds.
const RESERVED_PREFIXES: [&str; 8] =
    ["error_", "exported_", "gen_ai_", "http_", "otel_", "server_", "service_", "url_"];

/// Classes with a name of their own: attributes that gateways and servers define.
const KNOWN_CLASSES: [(&str, &str); 4] = [
    ("inference_objective", "header:x-gateway-inference-objective"),
    ("fairness_id", "header:x-gateway-inference-fairness-id,x-llm-d-inference-fairness-id"),
    ("endpoint", "header:x-gateway-destination-endpoint"),
    ("adapter", "body:lora_path"),
];

/// Header fields of API keys, with the scheme before the key.
const KEY_HEADERS: [(&str, &str); 4] =
    [("authorization", "Bearer "), ("x-api-key", ""), ("api-key", ""), ("x-goog-api-key", "")];

/// The configured classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestClasses(Vec<RequestClass>);

/// One class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestClass {
    name: Arc<str>,
    source: ClassSource,
}

/// Where a class's value stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClassSource {
    /// The first of these header fields that is present, in lower case.
    Header(Vec<String>),
    /// A scalar of the JSON body, as in `metadata.tier`.
    Body(String),
    /// A keyed digest of the API key. The key itself is not kept.
    KeyDigest,
    /// A member of the W3C `baggage` header.
    Baggage(String),
}

impl FromStr for RequestClass {
    type Err = String;

    /// Parses `NAME=SOURCE`, or the name of a known class.
    fn from_str(text: &str) -> Result<Self, String> {
        let known = || KNOWN_CLASSES.iter().find(|(name, _)| *name == text).copied();
        let Some((name, source)) = text.split_once('=').or_else(known) else {
            let names = KNOWN_CLASSES.map(|(name, _)| name).join(", ");
            return Err(format!("expected NAME=SOURCE, as in tier=header:x-tier, or one of {names}"));
        };
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let is_name = name.len() <= MAX_NAME_BYTES && name.bytes().all(fits);
        if !is_name || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
            let expected = "expected a name of lower-case letters, digits and `_` that begins with a letter";
            return Err(format!("{expected} ({MAX_NAME_BYTES} at most), then `=`"));
        }
        if RESERVED_NAMES.contains(&name) || RESERVED_PREFIXES.iter().any(|begin| name.starts_with(begin)) {
            return Err(format!("the name `{name}` is a label of our own series; choose another one"));
        }
        Ok(Self { name: name.into(), source: source.parse()? })
    }
}

impl FromStr for ClassSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("header", names)) if names.split(',').all(is_plain_name) => {
                Ok(Self::Header(names.split(',').map(str::to_ascii_lowercase).collect()))
            }
            Some(("body", path)) if is_plain_name(path) => Ok(Self::Body(path.to_owned())),
            Some(("baggage", member)) if is_plain_name(member) => Ok(Self::Baggage(member.to_owned())),
            Some(("key", "sha")) => Ok(Self::KeyDigest),
            _ => Err(
                "expected header:NAME, body:FIELD (as in body:metadata.tier), baggage:MEMBER or key:sha, the digest \
                      of the API key"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for RequestClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, source } = self;
        match source {
            ClassSource::Header(names) => write!(f, "{name}=header:{}", names.join(",")),
            ClassSource::Body(path) => write!(f, "{name}=body:{path}"),
            ClassSource::KeyDigest => write!(f, "{name}=key:sha"),
            ClassSource::Baggage(member) => write!(f, "{name}=baggage:{member}"),
        }
    }
}

impl RequestClasses {
    /// Combines classes.
    ///
    /// # Errors
    /// If there are more than [`MAX_CLASSES`], or two with one name.
    pub fn new(classes: Vec<RequestClass>) -> Result<Self, String> {
        if classes.len() > MAX_CLASSES {
            return Err(format!("expected at most {MAX_CLASSES} classes, but found {}", classes.len()));
        }
        for (at, class) in classes.iter().enumerate() {
            if classes[..at].iter().any(|other| other.name == class.name) {
                return Err(format!("two classes are named `{}`; give each a name of its own", class.name));
            }
        }
        Ok(Self(classes))
    }

    /// Iterates over the classes.
    pub fn iter(&self) -> impl Iterator<Item = &RequestClass> {
        self.0.iter()
    }

    /// True if no class is configured.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if a class has this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|class| &*class.name == name)
    }

    /// True if a class may have its value in the body.
    pub(super) fn reads_body(&self) -> bool {
        self.body_paths().next().is_some()
    }

    /// True if a class needs the digest of the API key.
    pub fn needs_key(&self) -> bool {
        self.0.iter().any(|class| class.source == ClassSource::KeyDigest)
    }

    /// Reads the values in a request head. `header` reads one field; `digest` makes the keyed digest of an API key.
    pub fn of_head<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>, digest: impl Fn(&[u8]) -> u64) -> ClassValues {
        let mut values = ClassValues::default();
        for RequestClass { name, source } in &self.0 {
            match source {
                ClassSource::Header(fields) => {
                    if let Some(value) = fields.iter().find_map(|field| header(field)) {
                        values.insert(name, value);
                    }
                }
                ClassSource::Baggage(member) => {
                    if let Some(value) = header("baggage").and_then(|baggage| baggage_member(baggage, member)) {
                        values.insert(name, value);
                    }
                }
                ClassSource::KeyDigest => {
                    if let Some(key) = api_key(&header) {
                        values.insert(name, format!("{:016x}", digest(key)).as_bytes());
                    }
                }
                ClassSource::Body(_) => {}
            }
        }
        values
    }

    /// True if a class wants the scalar at this path of the body.
    pub(super) fn wants(&self, path: &[u8]) -> bool {
        self.body_paths().any(|(_, body_path)| body_path == path)
    }

    /// True if a wanted scalar may be inside the container at this path.
    pub(super) fn leads(&self, path: &[u8]) -> bool {
        self.body_paths().any(|(_, body_path)| {
            path.is_empty() || body_path.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"."))
        })
    }

    /// Stores a scalar of the body.
    pub(super) fn note(&self, values: &mut ClassValues, path: &[u8], scalar: Scalar<'_>) {
        let Some((name, _)) = self.body_paths().find(|(_, body_path)| *body_path == path) else { return };
        match scalar {
            Scalar::String(_) => values.insert(name, scalar.to_text().unwrap_or_default().as_bytes()),
            Scalar::Number(number) => values.insert(name, number.as_bytes()),
            Scalar::Bool(truth) => values.insert(name, if truth { b"true" } else { b"false" }),
            Scalar::Null => {}
        }
    }

    fn body_paths(&self) -> impl Iterator<Item = (&Arc<str>, &[u8])> {
        self.0.iter().filter_map(|class| match &class.source {
            ClassSource::Body(path) => Some((&class.name, path.as_bytes())),
            _ => None,
        })
    }
}

impl RequestClass {
    /// Name of the class.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }
}

/// True if a text is the name of a header field, a body field or a provider: at most 64 letters, digits, `-`, `_` and
/// `.`.
pub fn is_plain_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_VALUE_BYTES).contains(&text.len()) && text.bytes().all(fits)
}

fn api_key<'h>(header: &impl Fn(&str) -> Option<&'h [u8]>) -> Option<&'h [u8]> {
    KEY_HEADERS.iter().find_map(|(field, scheme)| {
        let value = header(field)?;
        let (begin, key) = value.split_at_checked(scheme.len())?;
        (begin.eq_ignore_ascii_case(scheme.as_bytes()) && !key.is_empty()).then_some(key)
    })
}

/// Finds a member of a `baggage` header (W3C Baggage, section 3.2); its properties are dropped.
fn baggage_member<'h>(baggage: &'h [u8], member: &str) -> Option<&'h [u8]> {
    baggage.split(|byte| *byte == b',').find_map(|pair| {
        let pair = pair.split(|byte| *byte == b';').next()?;
        let at = pair.iter().position(|byte| *byte == b'=')?;
        (pair[..at].trim_ascii() == member.as_bytes()).then(|| pair[at + 1..].trim_ascii())
    })
}

/// The class values of one request, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::box_collection, reason = "most requests have none, and a pointer is a third of a vector")]
pub struct ClassValues(Option<Box<Vec<ClassValue>>>);

/// Name and value.
type ClassValue = (Arc<str>, Arc<str>);

impl ClassValues {
    /// Sets a value, which is checked. An empty one is absent; the first value of a class stays.
    pub fn insert(&mut self, name: &Arc<str>, value: &[u8]) {
        let value = value.trim_ascii();
        if value.is_empty() {
            return;
        }
        let values = self.0.get_or_insert_default();
        if let Err(at) = values.binary_search_by(|(other, _)| other.cmp(name))
            && values.len() < MAX_CLASSES
        {
            values.insert(at, (Arc::clone(name), check(value).into()));
        }
    }

    /// The value of a class.
    pub fn get(&self, name: &str) -> Option<&Arc<str>> {
        self.iter().find(|(other, _)| ***other == *name).map(|(_, value)| value)
    }

    /// All values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().flat_map(|values| values.iter()).map(|(name, value)| (name, value))
    }

    /// True if the request has no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for ClassValues {
    /// Writes `team=red tier=gold`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().enumerate().try_for_each(|(at, (name, value))| {
            let space = if at > 0 { " " } else { "" };
            write!(f, "{space}{name}={value}")
        })
    }
}

impl Serialize for ClassValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, value)| (&**name, &**value)))
    }
}

impl<'de> Deserialize<'de> for ClassValues {
    /// Checks every value, as [`insert`](Self::insert) does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut values = Self::default();
        for (name, value) in BTreeMap::<String, String>::deserialize(deserializer)? {
            values.insert(&name.into(), value.as_bytes());
        }
        Ok(values)
    }
}

/// Returns the value, or [`OTHER`] if it is malformed.
fn check(value: &[u8]) -> &str {
    let fits =
        |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/' | b'@' | b'+');
    let is_fit = value.len() <= MAX_VALUE_BYTES && value.iter().all(fits);
    str::from_utf8(value).ok().filter(|_| is_fit).unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(texts: &[&str]) -> RequestClasses {
        RequestClasses::new(texts.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
    }

    fn values_of(classes: &RequestClasses, head: &[(&str, &'static str)]) -> Vec<(String, String)> {
        let header = |name: &str| head.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_bytes());
        let values = classes.of_head(header, |key| key.len() as u64);
        values.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_class_reads_as_it_is_written() {
        for text in ["tier=header:x-tier", "tier=body:metadata.tier", "tenant=key:sha", "tier=baggage:tier"] {
            assert_eq!(text.parse::<RequestClass>().unwrap().to_string(), text);
        }
        for (name, source) in KNOWN_CLASSES {
            let class: RequestClass = name.parse().unwrap();
            assert_eq!((class.to_string(), class.to_string().parse()), (format!("{name}={source}"), Ok(class)));
        }
    }

    #[test]
    fn a_class_that_cannot_be_is_refused_with_the_reason() {
        for (text, problem) in [
            ("tier", "expected NAME=SOURCE"),
            ("Tier=header:x", "lower-case letters"),
            ("1=header:x", "begins with a letter"),
            ("model=header:x", "a label of our own series"),
            ("tier=cookie:x", "expected header:NAME"),
            ("tier=header:", "expected header:NAME"),
            ("tier=header:a b", "expected header:NAME"),
            ("tenant=key:md5", "expected header:NAME"),
        ] {
            let error = text.parse::<RequestClass>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
        let of = |names: &[&str]| {
            let classes = names.iter().map(|name| format!("{name}=header:x").parse().unwrap());
            RequestClasses::new(classes.collect()).map_err(|error| error.contains("class"))
        };
        assert_eq!((of(&["a", "b", "c", "d", "e"]), of(&["a", "a"])), (Err(true), Err(true)));
    }

    #[test]
    fn values_come_from_the_place_that_a_class_names() {
        let all = classes(&["tier=header:x-tier", "team=baggage:team", "tenant=key:sha", "fairness_id"]);
        let head = [
            ("x-tier", " gold "),
            ("baggage", "a=b, team = red;public, team=blue"),
            ("authorization", "bearer sk-secret"),
            ("x-llm-d-inference-fairness-id", "7"),
        ];
        let expected = [("fairness_id", "7"), ("team", "red"), ("tenant", "0000000000000009"), ("tier", "gold")];
        assert_eq!(values_of(&all, &head), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(values_of(&all, &[("x-tier", ""), ("authorization", "Basic abc")]), []);
    }

    #[test]
    fn the_adapter_is_the_one_that_the_body_names() {
        let adapter = classes(&["adapter"]);
        let of = |path: &[u8], scalar: Scalar<'_>| {
            let mut values = ClassValues::default();
            if adapter.wants(path) {
                adapter.note(&mut values, path, scalar);
            }
            values.get("adapter").map(|value| value.to_string())
        };
        assert_eq!(of(b"lora_path", Scalar::String(b"sql-lora")), Some("sql-lora".to_owned()));
        assert_eq!(of(b"lora_path", Scalar::String(b"/adapters/sql v2")), Some(OTHER.to_owned()));
        assert_eq!(of(b"lora_path", Scalar::Null), None);
        assert_eq!(of(b"model", Scalar::String(b"sql-lora")), None, "vLLM's adapter is the model");
    }

    #[test]
    fn a_value_of_another_shape_is_other() {
        let tier = classes(&["tier=header:x-tier"]);
        let long = "x".repeat(64);
        let tell = |value: &'static str| values_of(&tier, &[("x-tier", value)]).pop().unwrap().1;
        assert_eq!(tell("a/b:c@1.2+3_-"), "a/b:c@1.2+3_-");
        assert_eq!(tell("two words"), OTHER);
        assert_eq!(tell("caf\u{e9}"), OTHER);
        assert_eq!(tell(Box::leak(long.clone().into_boxed_str())), long);
        assert_eq!(tell(Box::leak((long + "x").into_boxed_str())), OTHER);
    }
}
