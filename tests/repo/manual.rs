//! The manual: its examples print the shown output, and its flags, settings and tables are those of the program.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use streamgauge::measure::dialect::TABLE;
use streamgauge::trace::format;

/// The front page and the chapters of the manual.
const MANUAL: [&str; 17] = [
    "README.md",
    "dashboards/README.md",
    "deploy/README.md",
    "deploy/prometheus/README.md",
    "src/README.md",
    "src/capture/README.md",
    "src/cli/README.md",
    "src/config/README.md",
    "src/export/README.md",
    "src/measure/README.md",
    "src/measure/dialect/README.md",
    "src/proxy/README.md",
    "src/report/README.md",
    "src/trace/format/README.md",
    "src/twin/README.md",
    "tests/README.md",
    "tests/benches/README.md",
];

/// Flags of other programs in commands of the manual.
const OTHER_PROGRAMS_FLAGS: [&str; 34] = [
    "--bench",
    "--bins",
    "--build",
    "--build-arg",
    "--detach",
    "--dport",
    "--dports",
    "--drill",
    "--enable-feature",
    "--enable-per-request-metrics",
    "--file",
    "--isl-block-size",
    "--locked",
    "--now",
    "--peers",
    "--port",
    "--previous",
    "--profile",
    "--quick",
    "--real",
    "--release",
    "--repo",
    "--rounds",
    "--rows",
    "--save-detailed",
    "--save-result",
    "--set",
    "--strip-components",
    "--tag",
    "--test",
    "--to-ports",
    "--uid-owner",
    "--ulimit",
    "--values",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn manual() -> String {
    MANUAL.map(read).concat()
}

/// The fenced blocks of that language.
fn blocks(language: &str) -> Vec<String> {
    let manual = manual();
    let mut blocks = Vec::new();
    let mut rest = &*manual;
    while let Some((_, after)) = rest.split_once("\n```") {
        let (block, after) = after.split_once("\n```").unwrap();
        let (name, text) = block.split_once('\n').unwrap();
        if name == language {
            blocks.push(text.to_owned() + "\n");
        }
        rest = after;
    }
    blocks
}

/// Runs a command line as a shell in `folder` would that finds the program, and gives what its terminal shows.
fn shown(line: &str, folder: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_streamgauge"));
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let line = format!("exec 2>&1\n{line}");
    let output = Command::new("sh").args(["-c", &line]).env_clear().env("PATH", path).current_dir(folder).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// A folder with what the examples name.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    symlink(root().join("tests"), folder.path().join("tests")).unwrap();
    for text in blocks("yaml") {
        if let Some(name) = text.lines().next().and_then(|line| line.strip_prefix("# streamgauge.yaml")) {
            fs::write(folder.path().join("streamgauge.yaml"), &text).unwrap();
            assert_eq!(name, "");
        }
    }
    folder
}

/// True if `text` matches `expected`. There, a line `…` stands for any number of lines, and a line that ends with `…`
/// for any with its beginning.
fn fits(text: &[&str], expected: &[&str]) -> bool {
    match (expected.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((&"…", after)), _) => (0..=text.len()).any(|skipped| fits(&text[skipped..], after)),
        (Some((line, after)), Some((first, rest))) => {
            let alike = line == first || line.strip_suffix('…').is_some_and(|start| first.starts_with(start));
            alike && fits(rest, after)
        }
        _ => false,
    }
}

#[test]
fn examples_print_what_the_manual_says() {
    let folder = place();
    let mut verbs = BTreeSet::new();
    for block in blocks("console") {
        for example in block.strip_prefix("$ ").unwrap().split("\n$ ") {
            let (command, expected) = example.split_once('\n').unwrap_or((example, ""));
            verbs.insert(command.split(' ').nth(1).unwrap().to_owned());
            let shown = shown(command, folder.path());
            let (text, expected): (Vec<_>, Vec<_>) = (shown.lines().collect(), expected.lines().collect());
            assert!(fits(&text, &expected), "$ {command}\n{shown}");
        }
    }
    for verb in ["proxy", "inspect", "report", "plan", "trace", "twin", "config", "top", "completions"] {
        assert!(verbs.contains(verb), "no example of {verb}");
    }
}

/// The help of a verb, every flag of it in one line.
fn help(verb: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(verb.split(' ')).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The flags in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_flag =
        |word: &&str| word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
    words.filter(is_flag).map(str::to_owned).collect()
}

#[test]
fn every_flag_in_the_manual_exists() {
    let verbs = [
        "",
        "demo",
        "proxy",
        "inspect",
        "replay",
        "load",
        "sweep",
        "report",
        "compare",
        "plan",
        "twin",
        "twin fit",
        "twin run",
        "twin schema",
        "sim",
        "config",
        "config schema",
        "config slo",
        "doctor",
        "schema",
        "top",
        "completions",
        "help",
    ];
    let of_trace = [
        "",
        " info",
        " convert",
        " cut",
        " scale",
        " shift",
        " merge",
        " anonymize",
        " spread",
        " diff",
        " reuse",
        " schema",
    ];
    let of_trace = of_trace.map(|verb| help(&format!("trace{verb}")));
    let all = flags(&[verbs.map(help).concat(), of_trace.concat()].concat());
    let named = flags(&manual());
    let unknown: Vec<&String> =
        named.difference(&all).filter(|flag| !OTHER_PROGRAMS_FLAGS.contains(&&***flag)).collect();
    assert_eq!(unknown, [""; 0], "in the manual and no flags");
}

#[test]
fn the_chapter_of_the_code_draws_the_arrows_of_the_library() {
    let (library, chapter) = (read("src/lib.rs"), read("src/README.md"));
    let arrows = library.lines().filter_map(|line| line.strip_prefix("//! ")).filter(|line| line.contains(" -> "));
    let missing: Vec<&str> = arrows.filter(|arrow| !chapter.lines().any(|line| line == *arrow)).collect();
    assert_eq!(missing, [""; 0], "src/README.md has other arrows than src/lib.rs");
}

#[test]
fn every_dependency_has_a_reason() {
    let (manifest, chapter) = (read("Cargo.toml"), read("src/README.md"));
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let names = section.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    let missing: Vec<&str> =
        names.map(|(name, _)| name).filter(|name| !chapter.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, [""; 0], "not in the tables of src/README.md");
}

#[test]
fn help_prints_every_chapter_and_the_help_of_every_verb() {
    let overview = shown("streamgauge help", &root());
    for path in MANUAL {
        let row = overview.lines().find(|line| line.ends_with(&format!("({path})")));
        let topic = row.and_then(|row| row.split_whitespace().next()).unwrap_or_else(|| panic!("no topic has {path}"));
        assert_eq!(shown(&format!("streamgauge help {topic}"), &root()), read(path), "help {topic}");
    }
    for verb in ["proxy", "trace", "trace info", "config schema"] {
        let line = overview.lines().any(|line| line.trim_start().starts_with(verb.split(' ').next().unwrap()));
        assert!(line, "{verb} is not listed");
        assert_eq!(shown(&format!("streamgauge help {verb}"), &root()), help(verb), "help {verb}");
    }
    let unknown = Command::new(env!("CARGO_BIN_EXE_streamgauge")).args(["help", "metric"]).output().unwrap();
    let stderr = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(unknown.stdout.is_empty() && stderr.contains("metrics, "), "{stderr}");
}

#[test]
fn the_dialects_are_those_of_the_table() {
    let chapter = read("src/measure/dialect/README.md");
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let names: BTreeSet<&str> =
        rows.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|name| !name.is_empty()).collect();
    assert_eq!(names, TABLE.iter().map(|dialect| dialect.name).collect());
}

#[test]
fn the_formats_of_traces_are_those_of_the_table() {
    let can = |can: bool| if can { "yes" } else { "" };
    for format in format::FORMATS {
        let (reads, writes) = (can(format.read.is_some()), can(format.write.is_some()));
        let row = format!("| `{}` | {reads} | {writes} | {} | {} |", format.name, format.time_unit, format.about);
        assert!(read("src/trace/format/README.md").lines().any(|line| line == row), "it should say\n{row}");
    }
}

#[test]
fn the_settings_are_those_of_the_schema() {
    let schema: Value = serde_json::from_str(&shown("streamgauge config schema", &root())).unwrap();
    let proxy = flags(&help("proxy"));
    let row = |(key, property): (&String, &Value)| {
        let singular = [key.trim_end_matches('s'), key.trim_end_matches("es")].map(str::to_owned);
        let mut flag = [key.replace('_', "-")].into_iter().chain(singular).map(|name| format!("--{name}"));
        let flag = flag.find(|flag| proxy.contains(flag)).unwrap();
        let default = match &property["default"] {
            Value::Null => String::new(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let (variable, about) = (key.to_uppercase(), property["description"].as_str().unwrap());
        format!("| `{key}` | `{flag}` | `STREAMGAUGE_{variable}` | {default} | {about} |")
    };
    let expected: Vec<String> = schema["properties"].as_object().unwrap().iter().map(row).collect();
    let chapter = read("src/config/README.md");
    let rows: Vec<&str> = chapter.lines().filter(|line| line.contains(" | `STREAMGAUGE_")).collect();
    let sorted: BTreeSet<&str> = rows.iter().copied().collect();
    assert_eq!(sorted, expected.iter().map(|row| &**row).collect(), "it should say\n{}", expected.join("\n"));
    assert_eq!(rows.len(), sorted.len(), "each once");
}

/// The headings of a page as the anchors of its links.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let headings = page.lines().filter(|line| {
        is_code ^= line.starts_with("```");
        line.starts_with('#') && !is_code
    });
    let names = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    names
        .map(|name| name.replace(|c: char| !(c.is_alphanumeric() || " -_".contains(c)), "").replace(' ', "-"))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    for path in MANUAL {
        let (page, folder) = (read(path), root().join(path).parent().unwrap().to_owned());
        for target in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let linked = if file.is_empty() { root().join(path) } else { folder.join(file) };
            assert!(linked.exists(), "{target} in {path}");
            if !anchor.is_empty() {
                assert!(anchors(&fs::read_to_string(&linked).unwrap()).contains(anchor), "{target} in {path}");
            }
        }
    }
}

#[test]
fn the_front_page_is_short_and_leads_to_every_chapter() {
    let front = read("README.md");
    assert!(front.lines().count() <= 250, "{} lines", front.lines().count());
    assert!(front.split_whitespace().count() <= 2_500, "{} words", front.split_whitespace().count());
    assert!(front.contains("](tests/pictures/demo.svg)"), "the picture");
    for path in &MANUAL[1..] {
        assert!(front.contains(&format!("]({path})")), "no link to {path}");
    }
}

#[test]
fn a_wildcard_matches_lines_or_a_rest_and_no_more() {
    assert!(fits(&["a", "b", "c"], &["a", "…"]) && fits(&["a", "b", "c"], &["…", "c"]) && fits(&["abc"], &["ab…"]));
    assert!(!fits(&["a", "b"], &["a"]) && !fits(&["a"], &["a", "b"]) && !fits(&["a", "b"], &["…", "c"]));
    assert!(!fits(&["ab"], &["a"]) && !fits(&[], &["a…"]));
}
