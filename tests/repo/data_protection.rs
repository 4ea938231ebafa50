//! The chapter on data protection has every field that the program can write, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use proc_macro2::{TokenStream, TokenTree};
use serde_json::Value;
use streamgauge::capture::live_sessions::LiveSessionRow;
use streamgauge::capture::manifest::HourManifest;
use streamgauge::export::admin::requests::RequestsResponse;
use streamgauge::export::registry::catalog::{TABLE, attribute};
use streamgauge::trace_file::header;

use crate::metric_names::files;

fn read(path: &str) -> String {
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The quoted names in the first cells of the tables under a heading, and above its subheadings, whose header begins with
/// this word.
fn listed(heading: &str, header: &str) -> BTreeSet<String> {
    names_in(section(heading).split("\n### ").next().unwrap(), header, heading)
}

/// Names listed below one subheading.
fn listed_in(heading: &str, below: &str, header: &str) -> BTreeSet<String> {
    let section = section(heading);
    let (_, part) = section.split_once(&format!("\n### {below}\n")).unwrap();
    names_in(part.split("\n### ").next().unwrap(), header, below)
}

fn section(heading: &str) -> String {
    let chapter = read("src/export/README.md");
    let (_, section) = chapter.split_once(&format!("\n## {heading}\n")).unwrap();
    section.split("\n## ").next().unwrap().to_owned()
}

fn names_in(section: &str, header: &str, heading: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for table in section.split("\n\n").filter(|table| table.trim_start().starts_with(&format!("| {header} |"))) {
        for cell in table.trim().lines().skip(2).map(|row| row.split('|').nth(1).unwrap()) {
            for name in cell.split('`').skip(1).step_by(2) {
                assert!(names.insert(name.to_owned()), "`{name}` is twice under {heading}");
            }
        }
    }
    names
}

fn assert_same(listed: &BTreeSet<String>, written: &BTreeSet<String>, what: &str) {
    let missing: Vec<&String> = written.difference(listed).collect();
    let unknown: Vec<&String> = listed.difference(written).collect();
    assert!(missing.is_empty(), "src/export/README.md lacks {what}: {missing:?}; say what each can reveal");
    assert!(unknown.is_empty(), "src/export/README.md has {what} that nothing writes: {unknown:?}");
}

/// The paths of all properties of a schema, as `prompt.blocks`.
fn properties(schema: &Value, of: &Value, prefix: &str, names: &mut BTreeSet<String>) {
    if let Some(reference) = of["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap();
        return properties(schema, &schema["$defs"][name], prefix, names);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        of[key].as_array().into_iter().flatten().for_each(|of| properties(schema, of, prefix, names));
    }
    if of["items"].is_object() {
        properties(schema, &of["items"], prefix, names);
    }
    for (key, property) in of["properties"].as_object().into_iter().flatten() {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        properties(schema, property, &name, names);
        names.insert(name);
    }
}

#[test]
fn every_field_of_a_capture_is_on_the_page() {
    let schema = header::schema().to_value();
    let mut written = BTreeSet::new();
    properties(&schema, &schema, "", &mut written);
    assert!(written.contains("prompt.blocks") && written.contains("blocks.key"), "{written:?}");
    assert_same(&listed("Captures", "field"), &written, "fields of a capture");
}

#[test]
fn every_field_of_the_manifest_of_an_hour_is_on_the_page() {
    let schema = schemars::SchemaGenerator::default().into_root_schema_for::<HourManifest>().to_value();
    let mut written = BTreeSet::new();
    properties(&schema, &schema, "", &mut written);
    assert!(written.contains("files.blake3"), "{written:?}");
    assert_same(&listed_in("Captures", "In a bucket", "field"), &written, "fields of a manifest");
}

#[test]
fn every_instrument_and_every_label_is_on_the_page() {
    let instruments = TABLE.iter().map(|instrument| instrument.name.to_owned()).collect();
    assert_same(&listed("Metrics", "instrument"), &instruments, "instruments");
    let labels = TABLE.iter().flat_map(|instrument| instrument.attributes).copied().chain([attribute::OVERFLOW]);
    assert_same(&listed("Metrics", "label"), &labels.map(str::to_owned).collect(), "labels");
}

/// The attribute that an expression of the encoder names: a string, or a constant of the catalog.
fn attribute_name(catalog: &str, expression: &str) -> String {
    match expression.strip_prefix("attribute::") {
        Some(constant) => {
            let (_, rest) = catalog.split_once(&format!("pub const {constant}: &str = \"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        }
        None => expression.trim_matches('"').to_owned(),
    }
}

#[test]
fn every_attribute_of_a_span_is_on_the_page() {
    let (encoder, catalog) = (read("src/export/otlp/traces.rs"), read("src/export/registry/catalog.rs"));
    let encoder = encoder.split("#[cfg(test)]").next().unwrap();
    let mut written = BTreeSet::new();
    // Each attribute is written by one of these methods, whose first argument is its name.
    for method in ["text", "texts", "number", "real", "truth"] {
        for call in encoder.split(&format!("attributes.{method}(")).skip(1) {
            written.insert(attribute_name(&catalog, call.trim_start().split([',', '\n']).next().unwrap()));
        }
    }
    let others = encoder.matches("attributes::begin(").count();
    assert_eq!(others, 5, "an attribute is written in another way, which this test has to read too");
    assert!(written.contains("gen_ai.response.id") && written.contains("server.port"), "{written:?}");
    assert_same(&listed("Spans", "attribute"), &written, "attributes of spans");
}

#[test]
fn every_field_of_a_recent_request_is_on_the_page() {
    let schema = schemars::SchemaGenerator::default().into_root_schema_for::<RequestsResponse>().to_value();
    let mut written = BTreeSet::new();
    properties(&schema, &schema, "", &mut written);
    let requests = written.iter().filter_map(|name| name.strip_prefix("requests.").map(str::to_owned)).collect();
    assert!(written.contains("requests.phases_ms.first_token"), "{written:?}");
    assert_same(&listed("Recent requests", "field"), &requests, "fields of a recent request");
}

#[test]
fn every_field_of_a_session_is_on_the_page() {
    let schema = schemars::SchemaGenerator::default().into_root_schema_for::<LiveSessionRow>().to_value();
    let mut written = BTreeSet::new();
    properties(&schema, &schema, "", &mut written);
    assert!(written.contains("session") && written.contains("missed_slos"), "{written:?}");
    assert_same(&listed("Sessions", "field"), &written, "fields of a session");
}

#[test]
fn every_field_of_the_access_log_is_on_the_page() {
    let requests = read("src/export/control/recent_requests.rs");
    let (_, event) = requests.split_once("target: ACCESS_LOG_TARGET,").unwrap();
    let (event, _) = event.split_once("\"request\"").unwrap();
    let lines = event.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let written = lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.to_owned()).collect();
    assert_same(&listed("Access log", "field"), &written, "fields of the access log");
}

/// The names before the text of an event of the log.
fn event_fields(event: TokenStream) -> BTreeSet<String> {
    let trees: Vec<TokenTree> = event.into_iter().collect();
    let is_comma = |tree: &TokenTree| matches!(tree, TokenTree::Punct(punct) if punct.as_char() == ',');
    let fields = trees.split(is_comma).take_while(|part| !matches!(part, [TokenTree::Literal(_), ..]));
    let name =
        |part: &[TokenTree]| part.iter().find(|tree| matches!(tree, TokenTree::Ident(_))).map(ToString::to_string);
    fields.filter_map(name).collect()
}

/// The fields of all events of the log in these tokens.
fn log_fields(tokens: TokenStream, names: &mut BTreeSet<String>, events: &mut usize) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        let TokenTree::Group(group) = tree else { continue };
        let before: String = trees[at.saturating_sub(5)..at].iter().map(ToString::to_string).collect();
        let levels = ["error", "warn", "info", "debug", "trace"];
        if !levels.iter().any(|level| before == format!("tracing::{level}!")) {
            log_fields(group.stream(), names, events);
        } else if !group.stream().to_string().contains("ACCESS_LOG_TARGET") {
            *events += 1;
            names.extend(event_fields(group.stream()));
        }
    }
}

#[test]
fn every_field_of_the_proxys_own_log_is_on_the_page() {
    let (mut written, mut events) = (BTreeSet::new(), 0);
    for path in files(&PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|of| of == "rs"))
    {
        let text = fs::read_to_string(&path).unwrap();
        if path.components().all(|part| part.as_os_str() != "tests") {
            log_fields(text.split("#[cfg(test)]").next().unwrap().parse().unwrap(), &mut written, &mut events);
        }
    }
    assert!(events > 50 && written.contains("spool") && written.contains("unmentioned"), "{events}: {written:?}");
    assert_same(&listed("The proxy's own log", "field"), &written, "fields of the proxy's own log");
}
