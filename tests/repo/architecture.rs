//! The law of the house, rule by rule: what each part may use, and what may stand in one place only.
//!
//! A rule is a function from files to sentences about its breaches. Each is tried on a sample that breaks it, and then
//! on the repository.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use streamgauge::export::registry::catalog;

use super::circles::circles;
use super::source::Source;

/// The arrows, as they stand on the front page of `src/lib.rs`: each folder may use what stands to its right.
const ARROWS: &str = "\
main       -> cli
cli        -> proxy, replay, report, inspect, twin, sim, engine, trace, export, capture, trace_file, storage, net, config, stats, measure, clock
proxy      -> export, capture, storage, net, config, measure, clock
replay     -> trace, trace_file, net, stats, measure, clock
report     -> inspect, trace_file, stats, measure
export     -> capture, net, config, measure, clock
trace      -> trace_file, storage, config::StorageUrl, stats, measure
inspect    -> net, stats, measure
capture    -> trace_file, storage, config::StorageUrl, stats, measure, clock
twin       -> engine, trace_file, stats, measure
sim        -> engine, stats, measure, clock
engine     -> stats, measure
trace_file -> storage, config::StorageUrl, stats, measure
storage    -> config::StorageUrl, config::StorageScheme, net, measure, clock
net        -> measure::time, measure::record::StampSource, clock
config     -> measure
clock      -> measure::time, measure::calendar
stats      -> nothing of ours
measure    -> nothing of ours";

/// Dependencies of `measure` outside of it. It is pure (no I/O, runtime, lock or clock), so that a proxy, a replay and
/// a test get equal numbers.
const MEASURE_MAY_USE: [(&str, &str); 8] = [
    ("serde", "values to be skipped, and names as they are written"),
    ("schemars", "the schema of what is written"),
    ("serde_json", "escapes undone, and whether a last event is whole"),
    ("memchr", "the next line end, the next quote"),
    ("flate2", "gzip and deflate, undone on the observer's copy"),
    ("brotli_decompressor", "brotli, likewise"),
    ("zstd", "zstd, likewise"),
    ("smallvec", "the one choice of most replies in its place"),
];

/// Limits on circles of imports between files.
const MAX_CIRCLES: usize = 6;
const MAX_CIRCLE_FILES: usize = 8;

/// The parts of `std` that do something to the world or wait for it.
const IMPURE: [&str; 6] = ["env", "fs", "net", "os", "process", "thread"];
const LOCKS_AND_CLOCKS: [&str; 6] = ["Mutex", "RwLock", "Condvar", "mpsc", "Instant", "SystemTime"];

const TOP_LEVEL: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", "LICENSE", "README.md", "src", "dashboards", "deploy", "tests"];

/// Hosts of package registries, in two parts, so that this file does not name them.
const REGISTRIES: [(&str, &str); 8] = [
    ("crates", "io"),
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("deb.debian", "org"),
    ("npmjs", "org"),
    ("npmjs", "com"),
    ("proxy.golang", "org"),
    ("rubygems", "org"),
];

// ---------------------------------------------------------------------------------------------------------- the rules

fn arrows(files: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| file.path != "src/lib.rs") {
        let folder = file.folder();
        let Some(line) = ARROWS.lines().find(|line| line.split_whitespace().next() == Some(folder)) else {
            broken
                .push(format!("{}: no arrow says what `{folder}` may use; draw one in src/lib.rs and here", file.path));
            continue;
        };
        let allowed: Vec<&str> = line.split("->").nth(1).unwrap_or_default().split(',').map(str::trim).collect();
        for (path, at) in file.named.iter().filter(|(path, _)| path[0] == "crate") {
            let used = path[1..].join("::");
            let fits = |allowed: &&str| used == **allowed || used.starts_with(&format!("{allowed}::"));
            if path[1] != folder && !allowed.iter().any(fits) {
                broken.push(format!("{}:{at}: uses crate::{used}, but {}", file.path, one_space(line)));
            }
        }
    }
    broken
}

fn few_and_small_circles(files: &[Source]) -> Vec<String> {
    let remedy = "move what both ends of an arrow use into a file of its own, named by the noun";
    let circles = circles(files);
    let list = |circle: &BTreeSet<&str>| circle.iter().copied().collect::<Vec<_>>().join(", ");
    let large = circles.iter().filter(|circle| circle.len() > MAX_CIRCLE_FILES);
    let mut broken: Vec<String> = large
        .map(|circle| {
            format!("{}: {} files import each other, {MAX_CIRCLE_FILES} at most; {remedy}", list(circle), circle.len())
        })
        .collect();
    if circles.len() > MAX_CIRCLES {
        let all: Vec<String> = circles.iter().map(list).collect();
        broken.push(format!("{}: {} circles of imports, {MAX_CIRCLES} at most; {remedy}", all.join(" | "), all.len()));
    }
    broken
}

fn one_space(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn front_page(lib: &str) -> Vec<String> {
    let drawn: Vec<&str> =
        lib.lines().filter_map(|line| line.strip_prefix("//! ")).filter(|line| line.contains(" -> ")).collect();
    if drawn == ARROWS.lines().collect::<Vec<_>>() {
        return Vec::new();
    }
    vec!["src/lib.rs: its arrows are not those of tests/repo/architecture.rs; draw them alike".to_owned()]
}

fn pure_rooms(files: &[Source], dependencies: &BTreeSet<String>) -> Vec<String> {
    let mut broken = Vec::new();
    for file in files.iter().filter(|file| ["measure", "stats"].contains(&file.folder())) {
        let folder = file.folder();
        for (path, at) in &file.named {
            let root = &path[0];
            let impure = root == "std" && IMPURE.contains(&&*path[1])
                || path.iter().any(|part| LOCKS_AND_CLOCKS.contains(&&**part));
            if impure {
                broken.push(format!(
                    "{}:{at}: uses {}; {folder} is pure: it is handed stamps, bytes and numbers",
                    file.path,
                    path.join("::")
                ));
            }
            if folder == "measure" && dependencies.contains(root) && MEASURE_MAY_USE.iter().all(|(may, _)| may != root)
            {
                let rule = "measure uses std and what MEASURE_MAY_USE lists with its reason";
                broken.push(format!("{}:{at}: uses {root}; {rule}", file.path));
            }
        }
        let waits = file.find(&["async"]).chain(file.find(&["await"]));
        broken.extend(waits.map(|at| format!("{}:{at}: waits; {folder} is pure and never does", file.path)));
    }
    broken
}

/// Tokens that may stand in some files only.
fn only_in(files: &[Source], places: &[&str], sequences: &[&[&str]], rule: &str) -> Vec<String> {
    let elsewhere = files.iter().filter(|file| !places.iter().any(|place| file.path.starts_with(place)));
    let found = elsewhere.flat_map(|file| {
        let lines = sequences.iter().flat_map(|tokens| file.find(tokens));
        lines.map(|at| format!("{}:{at}: {rule}", file.path)).collect::<Vec<_>>()
    });
    found.collect()
}

fn os_time(files: &[Source]) -> Vec<String> {
    let asking: [&[&str]; 8] = [
        &["Instant", "::", "now"],
        &["SystemTime", "::", "now"],
        &["UNIX_EPOCH"],
        &[".", "elapsed"],
        &["clock_gettime"],
        &["TimerFd"],
        &["tokio", "::", "time"],
        &["thread", "::", "sleep"],
    ];
    only_in(files, &["src/clock.rs"], &asking, "only src/clock.rs asks the operating system for time, or waits")
}

fn exits(files: &[Source]) -> Vec<String> {
    let exits: [&[&str]; 2] = [&["process", "::", "exit"], &["process", "::", "abort"]];
    only_in(files, &["src/main.rs"], &exits, "only src/main.rs ends the process; hand back an error")
}

fn prints(files: &[Source]) -> Vec<String> {
    let prints: [&[&str]; 7] = [
        &["println", "!"],
        &["print", "!"],
        &["eprintln", "!"],
        &["eprint", "!"],
        &["dbg", "!"],
        &["io", "::", "stdout"],
        &["io", "::", "stderr"],
    ];
    only_in(
        files,
        &["src/cli/", "src/report/"],
        &prints,
        "only cli and report print; log with tracing, or hand back a value",
    )
}

fn metric_names(files: &[Source], names: &BTreeSet<String>) -> Vec<String> {
    strings_only_in(
        files,
        &["src/export/registry/catalog.rs"],
        names,
        "only src/export/registry/catalog.rs names metrics; read the catalog",
    )
}

/// `sim` speaks the protocol from the other side, the demo's clients and a replay from ours. Public traces and other
/// tools' results have some names in common.
fn field_names(files: &[Source]) -> Vec<String> {
    let dialects = files.iter().filter(|file| file.path.starts_with("src/measure/dialect/"));
    let names = dialects.flat_map(|file| file.strings().flat_map(|(text, _)| text.split(['.', '[', ']'])));
    // One word alone (`model`, `error`) is anybody's.
    let is_name =
        |name: &&str| name.contains('_') && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let names: BTreeSet<String> = names.filter(is_name).map(str::to_owned).collect();
    let places = [
        "src/measure/dialect/",
        "src/sim/",
        "src/trace/",
        "src/trace_file/parquet/columns.rs",
        "src/cli/demo/load.rs",
        "src/replay/request/body.rs",
        "src/report/peer_files/",
        "src/report/llmd.rs",
    ];
    strings_only_in(files, &places, &names, "only measure/dialect knows the servers' JSON fields")
}

fn strings_only_in(files: &[Source], places: &[&str], names: &BTreeSet<String>, rule: &str) -> Vec<String> {
    let elsewhere = files.iter().filter(|file| !places.iter().any(|place| file.path.starts_with(place)));
    let found = elsewhere.flat_map(|file| {
        let named = file.strings().filter(|(text, _)| names.contains(*text));
        named.map(|(text, at)| format!("{}:{at}: \"{text}\": {rule}", file.path)).collect::<Vec<_>>()
    });
    found.collect()
}

fn unsafe_code(files: &[Source]) -> Vec<String> {
    let roots = files.iter().filter(|file| ["src/lib.rs", "src/main.rs"].contains(&&*file.path));
    let open = roots.filter(|file| !file.text.contains("#![forbid(unsafe_code)]"));
    open.map(|file| format!("{}: does not forbid unsafe code: #![forbid(unsafe_code)]", file.path)).collect()
}

fn top_level(paths: &[String]) -> Vec<String> {
    let first: BTreeSet<&str> = paths.iter().filter_map(|path| path.split('/').next()).collect();
    let strange = first.into_iter().filter(|name| !name.starts_with('.') && !TOP_LEVEL.contains(name));
    strange.map(|name| format!("{name}: the top level holds {} and dot-files", TOP_LEVEL.join(" "))).collect()
}

/// Another machine has other folders, and perhaps other registries.
fn machines(path: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    for (line, at) in text.lines().zip(1..) {
        for folder in ["/work", "/root", "/home"] {
            let folder = format!("{folder}/");
            let begins = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.}/)~*".contains(c));
            if line.match_indices(&folder).any(|(at, _)| begins(at)) {
                broken.push(format!("{path}:{at}: names a folder of one machine ({folder})"));
            }
        }
        let cargos_own = path.ends_with("Cargo.lock") && line.starts_with("source = \"registry+");
        for (name, domain) in REGISTRIES.iter().filter(|_| !cargos_own) {
            if line.contains(&format!("{name}.{domain}")) {
                broken.push(format!("{path}:{at}: names the host of a registry; whoever builds this has their own"));
            }
        }
    }
    broken
}

/// Lines of the dependencies of a manifest.
fn dependency_lines(manifest: &str) -> Vec<String> {
    let section =
        manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap_or_default();
    section.lines().filter(|line| line.contains(" = ")).map(str::to_owned).collect()
}

/// The fuzzers have a manifest of their own, and must fuzz the libraries that ship.
fn fuzzed_libraries(ours: (&str, &str), fuzzers: (&str, &str)) -> Vec<String> {
    let versions = |lock: &str, name: &str| -> BTreeSet<String> {
        let packages =
            lock.split("[[package]]\n").filter_map(|package| package.strip_prefix(&format!("name = \"{name}\"\n")));
        packages.filter_map(|package| package.lines().next()).map(str::to_owned).collect()
    };
    let known = dependency_lines(ours.0);
    let mut broken = Vec::new();
    for line in dependency_lines(fuzzers.0).into_iter().filter(|line| !line.starts_with("libfuzzer-sys = ")) {
        let name = line.split(' ').next().unwrap_or_default();
        if !known.contains(&line) {
            broken.push(format!("tests/fuzz/Cargo.toml: `{line}` is not a line of Cargo.toml; fuzz what ships"));
        } else if !versions(fuzzers.1, name).is_subset(&versions(ours.1, name)) {
            broken.push(format!(
                "tests/fuzz/Cargo.lock: {name} is not at the version of Cargo.lock; copy that file over it, and build"
            ));
        }
    }
    broken
}

/// Libraries that a fuzzed folder uses are dependencies of the fuzzers too: without one they do not compile.
fn libraries_of_fuzzed_folders(files: &[Source], fuzz_lib: &str, ours: &str, fuzzers: &str) -> Vec<String> {
    let folders: Vec<&str> = fuzz_lib
        .lines()
        .filter_map(|line| line.strip_prefix("#[path = \"../../../")?.strip_suffix("mod.rs\"]"))
        .collect();
    let fuzzed = |file: &&Source| folders.iter().any(|folder| file.path.starts_with(folder));
    // The fuzzers are built without features.
    let required = |manifest| -> BTreeSet<String> {
        let lines = dependency_lines(manifest).into_iter().filter(|line| !line.contains("optional = true"));
        lines.filter_map(|line| Some(line.split_once(" = ")?.0.replace('-', "_"))).collect()
    };
    let missing = &required(ours) - &required(fuzzers);
    let mut broken = BTreeSet::new();
    for file in files.iter().filter(fuzzed) {
        for (path, at) in &file.named {
            if missing.contains(&path[0]) {
                let name = &path[0];
                broken.insert(format!(
                    "tests/fuzz/Cargo.toml: no `{name}`, which {}:{at} uses; copy its line from Cargo.toml",
                    file.path
                ));
            }
        }
    }
    broken.into_iter().collect()
}

// ----------------------------------------------------------------------------------------------------- the repository

fn read(path: &str) -> String {
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    String::from_utf8_lossy(&text.unwrap_or_else(|error| panic!("{path}: {error}"))).into_owned()
}

/// Files in git's view: tracked, or new and not ignored.
fn paths() -> Vec<String> {
    let git = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("git lists the files of the repository");
    assert!(git.status.success(), "git ls-files: {}", String::from_utf8_lossy(&git.stderr));
    let listed = String::from_utf8_lossy(&git.stdout);
    let exists = |path: &&str| Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_file();
    listed.lines().filter(exists).map(str::to_owned).collect()
}

/// Every file of `src` that is part of the program. They are parsed once, which takes seconds.
static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let paths = paths();
    // Cargo runs the build script, which is no part of the program and talks to Cargo by printing.
    let of_program = |path: &&String| path.starts_with("src/") && path.ends_with(".rs") && *path != "src/build.rs";
    let in_src = paths.iter().filter(of_program);
    let mut files: Vec<Source> = in_src.map(|path| Source::new(path, read(path))).collect();
    let for_tests: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let folder = file.path.trim_end_matches(".rs").trim_end_matches("mod").trim_end_matches('/').to_owned();
            file.test_modules.iter().map(move |name| format!("{folder}/{name}"))
        })
        .collect();
    files.retain(|file| {
        !for_tests
            .iter()
            .any(|module| file.path == format!("{module}.rs") || file.path.starts_with(&format!("{module}/")))
    });
    assert!(files.len() > 100, "the program has more than {} files", files.len());
    files
});

/// The crates that may be named in code.
fn dependencies() -> BTreeSet<String> {
    let manifest = read("Cargo.toml");
    let sections = manifest
        .split("\n[")
        .filter(|section| section.starts_with("dependencies]") || section.starts_with("dev-dependencies]"));
    let names = sections
        .flat_map(|section| section.lines().filter_map(|line| line.split_once(" = ")))
        .map(|(name, _)| name.replace('-', "_"));
    names.collect()
}

/// The names under which metrics leave: OpenTelemetry's and Prometheus's.
fn names_of_metrics() -> BTreeSet<String> {
    let names = catalog::TABLE.iter().flat_map(|row| {
        [Some(row.name.to_owned()), Some(row.name.replace('.', "_")), row.prometheus.map(str::to_owned)]
    });
    names.flatten().collect()
}

fn holds(broken: Vec<String>) {
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

#[test]
fn the_arrows_are_kept() {
    let sample = |text: &str| arrows(&[Source::new("src/net/io.rs", text)]);
    for breach in [
        "use crate::export::gauges::Gauges;",
        "use crate::{clock, measure::{time::Stamp, slo::Slo}};",
        "use super::super::config;",
        "fn f() -> crate::proxy::Proxy { todo!() }",
        "mod inner { use super::super::super::sim; }",
    ] {
        assert_eq!(sample(breach).len(), 1, "{breach}: {:?}", sample(breach));
    }
    assert_eq!(
        sample("\nuse crate::config;"),
        ["src/net/io.rs:2: uses crate::config, but net -> measure::time, measure::record::StampSource, clock"]
    );
    let allowed = "// use crate::export;\n/// [`crate::export`]\nuse crate::{clock, measure::time::Stamp};\nuse super::tls;\n\
        const TEXT: &str = \"crate::sim\";\n#[cfg(test)]\nmod tests { use crate::export; }";
    assert_eq!(sample(allowed), Vec::<String>::new());
    assert_eq!(arrows(&[Source::new("src/zoo/mod.rs", "")]).len(), 1, "a folder without an arrow");
    holds(arrows(&SOURCES));
}

#[test]
fn circles_of_imports_are_few_and_small() {
    let found = |files: &[(&str, &str)]| -> Vec<String> {
        let files: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(format!("src/net/{path}"), *text)).collect();
        let found = circles(&files).into_iter();
        found.map(|circle| circle.into_iter().collect::<Vec<_>>().join(" ").replace("src/net/", "")).collect()
    };
    let (a, b) = (("a.rs", "use super::b::B; struct A;"), ("b.rs", "fn f(a: super::a::A) {} struct B;"));
    assert_eq!(found(&[a, b]), ["a.rs b.rs"]);
    let page = ("mod.rs", "mod a; mod b; pub use a::A; pub use b::B;");
    let through_page = [page, ("a.rs", "use super::B; struct A;"), ("b.rs", "use super::A; struct B;")];
    assert_eq!(found(&through_page), ["a.rs b.rs"], "a re-export is no definition");
    let by_module = [page, ("a.rs", "use super::b; fn f() { b::g() }"), ("b.rs", "use super::a; fn g() -> a::A {}")];
    assert_eq!(found(&by_module), ["a.rs b.rs"], "a module's name stands for its file");
    for allowed in [
        &[a, ("b.rs", "// super::a::A\nstruct B; #[cfg(test)]\nmod tests { use super::super::a::A; }")],
        &[("mod.rs", "mod a; struct B; fn f() { a::g() }"), ("a.rs", "use super::B; fn g() {}")],
        &[("a.rs", "use super::b::B; struct A;"), ("b.rs", "use crate::config::a::A; struct B;")],
    ] {
        assert_eq!(found(allowed), Vec::<String>::new(), "{allowed:?}");
    }
    let ring = |name: &str, files: usize| -> Vec<Source> {
        let text = |at: usize| format!("use super::{name}{}::T; struct T;", (at + 1) % files);
        (0..files).map(|at| Source::new(format!("src/net/{name}{at}.rs"), text(at))).collect()
    };
    let rings = |count: usize| -> Vec<Source> {
        ["a", "b", "c", "d", "e", "f", "g"][..count].iter().flat_map(|name| ring(name, 2)).collect()
    };
    assert_eq!(few_and_small_circles(&ring("a", 8)), Vec::<String>::new());
    assert_eq!(few_and_small_circles(&rings(6)), Vec::<String>::new());
    let [large] = &few_and_small_circles(&ring("a", 9))[..] else { panic!("nine files are more than eight") };
    assert!(large.contains("src/net/a8.rs: 9 files import each other, 8 at most; move what both ends"), "{large}");
    let [many] = &few_and_small_circles(&rings(7))[..] else { panic!("seven circles are more than six") };
    assert!(many.contains(" | src/net/g0.rs, src/net/g1.rs: 7 circles of imports, 6 at most; move"), "{many}");
    holds(few_and_small_circles(&SOURCES));
}

#[test]
fn the_front_page_draws_the_arrows() {
    let page: String = ARROWS.lines().map(|line| format!("//! {line}\n")).collect();
    assert!(front_page(&page).is_empty());
    assert_eq!(front_page(&page.replace("config     -> measure", "config     -> measure, clock")).len(), 1);
    assert_eq!(front_page(&format!("{page}//! zoo        -> clock\n")).len(), 1);
    holds(front_page(&read("src/lib.rs")));
}

#[test]
fn measure_and_stats_are_pure_and_measure_names_what_it_uses() {
    let of = |path: &str, text: &str| pure_rooms(&[Source::new(path, text)], &dependencies());
    let sample = |text: &str| of("src/measure/a.rs", text);
    for breach in [
        "use tokio::sync::Notify;",
        "fn f() { tracing::warn!(\"x\"); }",
        "use std::{fmt, fs::File};",
        "use std::sync::Mutex;",
        "async fn f() {}",
        "fn f() -> std::time::Instant { todo!() }",
    ] {
        assert_eq!(sample(breach).len(), 1, "{breach}: {:?}", sample(breach));
    }
    assert!(
        sample("use std::{fmt, io::Write, sync::Arc, time::Duration}; use memchr::memchr; fn f() { super::g() }")
            .is_empty()
    );
    assert_eq!(of("src/stats/a.rs", "use std::sync::Mutex; use rand_pcg::Pcg64Mcg;").len(), 1);
    holds(pure_rooms(&SOURCES, &dependencies()));
}

#[test]
fn only_the_clock_reads_the_time() {
    for breach in ["fn f() { let _ = Instant::now(); }", "fn f(t: Instant) { t.elapsed(); }", "use tokio::time::sleep;"]
    {
        assert_eq!(os_time(&[Source::new("src/sim/engine_driver.rs", breach)]).len(), 1, "{breach}");
        assert!(os_time(&[Source::new("src/clock.rs", breach)]).is_empty());
    }
    holds(os_time(&SOURCES));
}

#[test]
fn only_main_ends_the_process() {
    assert_eq!(exits(&[Source::new("src/cli/mod.rs", "fn f() { std::process::exit(1) }")]).len(), 1);
    assert!(exits(&[Source::new("src/cli/mod.rs", "fn f() -> std::process::ExitCode { todo!() }")]).is_empty());
    holds(exits(&SOURCES));
}

#[test]
fn only_cli_and_report_print() {
    for breach in
        ["fn f() { println!(\"x\"); }", "fn f() { eprint!(\"x\"); }", "fn f() { write!(io::stderr(), \"x\"); }"]
    {
        assert_eq!(prints(&[Source::new("src/proxy/a.rs", breach)]).len(), 1, "{breach}");
        assert!(prints(&[Source::new("src/cli/a.rs", breach)]).is_empty());
    }
    holds(prints(&SOURCES));
}

#[test]
fn only_the_catalog_names_metrics() {
    for breach in ["\"gen_ai.server.request.duration\"", "b\"process_open_fds\"", "r#\"streamgauge_stream_stalls\"#"] {
        let file = |path: &str| [Source::new(path, format!("const X: &str = {breach};"))];
        assert_eq!(metric_names(&file("src/export/otlp/a.rs"), &names_of_metrics()).len(), 1, "{breach}");
        assert!(metric_names(&file("src/export/registry/catalog.rs"), &names_of_metrics()).is_empty());
    }
    holds(metric_names(&SOURCES, &names_of_metrics()));
}

#[test]
fn only_dialects_know_the_fields_of_servers() {
    let dialect =
        || Source::new("src/measure/dialect/a.rs", "const X: &[&str] = &[\"usage.prompt_tokens\", \"model\"];");
    let breach = |path: &str| Source::new(path, "fn f(v: Value) { v[\"prompt_tokens\"]; v[\"model\"]; }");
    assert_eq!(field_names(&[dialect(), breach("src/proxy/a.rs")]).len(), 1);
    assert!(field_names(&[dialect(), breach("src/sim/a.rs")]).is_empty());
    holds(field_names(&SOURCES));
}

#[test]
fn unsafe_code_is_forbidden() {
    assert_eq!(unsafe_code(&[Source::new("src/lib.rs", "#![deny(unsafe_code)]")]).len(), 1);
    holds(unsafe_code(&SOURCES));
}

#[test]
fn the_top_level_holds_what_a_newcomer_expects() {
    let strange = top_level(&["src/a.rs", "Makefile", "docs/a.md", ".ci/run"].map(str::to_owned));
    assert_eq!(strange.len(), 2, "{strange:?}");
    holds(top_level(&paths()));
}

#[test]
fn nothing_names_a_machine_or_a_registry() {
    let folder = format!("{}/x", "/root");
    assert_eq!(
        machines("a", &format!("\ncd {folder}")),
        [format!("a:2: names a folder of one machine ({}/)", "/root")]
    );
    assert!(machines("a", &format!("https://host{folder} $HOME{folder}")).is_empty());
    let host = format!("{}.{}", REGISTRIES[0].0, REGISTRIES[0].1);
    let cargos = format!("source = \"registry+https://github.com/rust-lang/{host}-index\"");
    assert_eq!(machines("README.md", &cargos).len(), 1);
    assert!(machines("Cargo.lock", &cargos).is_empty());
    holds(paths().iter().flat_map(|path| machines(path, &read(path))).collect());
}

#[test]
fn the_libraries_that_are_fuzzed_are_those_that_ship() {
    let manifest = "[package]\n\n[dependencies]\nhttp = \"1\"\nrand = { version = \"1\" }\n\n[x]\n";
    let lock = "[[package]]\nname = \"http\"\nversion = \"1.2.0\"\n";
    let fuzzers = "\n[dependencies]\nlibfuzzer-sys = \"0.4\"\n\n# Ours.\nhttp = \"1\"\n";
    assert!(fuzzed_libraries((manifest, lock), (fuzzers, lock)).is_empty());
    assert_eq!(fuzzed_libraries((manifest, lock), (&fuzzers.replace('1', "2"), lock)).len(), 1);
    assert_eq!(fuzzed_libraries((manifest, lock), (fuzzers, &lock.replace("1.2", "1.3"))).len(), 1);
    let (ours, theirs) =
        ((read("Cargo.toml"), read("Cargo.lock")), (read("tests/fuzz/Cargo.toml"), read("tests/fuzz/Cargo.lock")));
    holds(fuzzed_libraries((&ours.0, &ours.1), (&theirs.0, &theirs.1)));
}

#[test]
fn the_fuzzers_have_every_library_that_a_fuzzed_folder_uses() {
    let lib = "#[path = \"../../../src/stats/mod.rs\"]\npub mod stats;\n";
    let ours =
        "[package]\n\n[dependencies]\nhash-lib = \"1\"\nhttp = \"1\"\ncolumns = { version = \"1\", optional = true }\n";
    let fuzzed = [Source::new("src/stats/a.rs", "use http::Uri; use hash_lib::Map; use columns::Row; use std::mem;")];
    let elsewhere = [Source::new("src/net/a.rs", "use hash_lib::Map;")];
    assert_eq!(libraries_of_fuzzed_folders(&fuzzed, lib, ours, "\n[dependencies]\nhttp = \"1\"\n").len(), 1);
    assert!(
        libraries_of_fuzzed_folders(&fuzzed, lib, ours, "\n[dependencies]\nhttp = \"1\"\nhash-lib = \"1\"\n")
            .is_empty()
    );
    assert!(libraries_of_fuzzed_folders(&elsewhere, lib, ours, "\n[dependencies]\nhttp = \"1\"\n").is_empty());
    let (lib, ours, fuzzers) = (read("tests/fuzz/src/lib.rs"), read("Cargo.toml"), read("tests/fuzz/Cargo.toml"));
    holds(libraries_of_fuzzed_folders(&SOURCES, &lib, &ours, &fuzzers));
}
