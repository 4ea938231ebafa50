//! Build script: the commit and the target that `streamgauge --version` prints.
//!
//! Only a release names its commit: a development build would otherwise be compiled again after each commit. The commit
//! is that of STREAMGAUGE_COMMIT, of `.cargo_vcs_info.json` in a crate's archive, or of git; without any it is unknown.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Digits of a commit that are shown, as many as git shows for a large repository.
const SHOWN_DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=src/build.rs");
    println!("cargo::rerun-if-env-changed=STREAMGAUGE_COMMIT");
    println!("cargo::rustc-env=STREAMGAUGE_TARGET={}", variable("TARGET"));
    let build = match variable("PROFILE").as_str() {
        "release" => commit().unwrap_or_else(|| "unknown commit".to_owned()),
        _ => "development build".to_owned(),
    };
    println!("cargo::rustc-env=STREAMGAUGE_BUILD={build}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// The commit that is built, if it is known.
fn commit() -> Option<String> {
    let root = variable("CARGO_MANIFEST_DIR");
    let root = Path::new(&root);
    let commit = env::var("STREAMGAUGE_COMMIT").ok().or_else(|| of_archive(root)).or_else(|| of_git(root))?;
    let is_commit = commit.len() >= SHOWN_DIGITS && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then(|| commit[..SHOWN_DIGITS].to_owned())
}

/// The commit that `cargo package` wrote.
fn of_archive(root: &Path) -> Option<String> {
    let file = root.join(".cargo_vcs_info.json");
    let text = fs::read_to_string(&file).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    rest.split('"').nth(1).map(str::to_owned)
}

fn of_git(root: &Path) -> Option<String> {
    // A folder above this one may be another repository.
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    for file in ["HEAD", "logs/HEAD"] {
        let path = root.join(git(&["rev-parse", "--git-path", file])?);
        println!("cargo::rerun-if-changed={}", path.display());
    }
    git(&["rev-parse", "HEAD"])
}
