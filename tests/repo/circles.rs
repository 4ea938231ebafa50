//! Circles of imports between files.
//!
//! A file has an arrow to every file that defines a name which it uses; a re-export leads on to the definition. A use
//! of its own folder's front page is no arrow: a folder may define there the common items of its files.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, module};

/// Re-exports that are followed from one name.
const MAX_RE_EXPORTS: usize = 4;

/// The paths of the files of each circle.
pub(crate) fn circles(files: &[Source]) -> BTreeSet<BTreeSet<&str>> {
    let modules = Modules(files.iter().map(|file| (module(&file.path), file)).collect());
    let arrows: BTreeMap<&str, BTreeSet<&str>> =
        files.iter().map(|file| (&*file.path, modules.arrows(file).collect())).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = arrows.keys().map(|from| (*from, reach(&arrows, from))).collect();
    let circle = |from: &str| -> BTreeSet<&str> {
        reached[from].iter().copied().filter(|to| reached[to].contains(from)).collect()
    };
    reached.keys().map(|from| circle(from)).filter(|circle| !circle.is_empty()).collect()
}

fn reach<'a>(arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        open.extend(arrows[at].iter().filter(|to| reached.insert(**to)));
    }
    reached
}

/// The file of each module, by its path from the root of the crate.
struct Modules<'a>(BTreeMap<Vec<String>, &'a Source>);

impl<'a> Modules<'a> {
    fn arrows(&self, file: &Source) -> impl Iterator<Item = &'a str> {
        let (own, paths) = (module(&file.path), file.named.iter().filter_map(|(path, _)| self.absolute(file, path)));
        let used = paths.filter_map(|path| self.definer(&path, MAX_RE_EXPORTS));
        let used: BTreeSet<&str> =
            used.map(|used| &*used.path).filter(|used| !own.starts_with(&module(used))).collect();
        used.into_iter()
    }

    /// The path from the root of the crate. `None` unless it begins there, at the file's own module, or at a module
    /// that the file declares or imports.
    fn absolute(&self, file: &Source, path: &[String]) -> Option<Vec<String>> {
        let own = module(&file.path);
        let start = match &*path[0] {
            "crate" => Vec::new(),
            "self" => own,
            root => {
                let declared = [&own[..], &path[..1]].concat();
                let imported =
                    || file.named.iter().find(|(path, _)| path[0] == "crate" && path.ends_with(&[root.to_owned()]));
                if self.0.contains_key(&declared) { declared } else { imported()?.0[1..].to_vec() }
            }
        };
        Some([&start, &path[1..]].concat())
    }

    /// The file that defines what a path names; `None` if that is a module or nothing of ours.
    fn definer(&self, path: &[String], re_exports: usize) -> Option<&'a Source> {
        if self.0.contains_key(path) {
            return None;
        }
        let (file, length) = (1..path.len()).rev().find_map(|length| Some((*self.0.get(&path[..length])?, length)))?;
        let name = &path[length];
        let imports = file.named.iter().filter(|(path, _)| re_exports > 0 && path.last() == Some(name));
        let elsewhere = imports
            .filter_map(|(import, _)| self.absolute(file, import))
            .filter(|import| import != path)
            .find_map(|import| self.definer(&import, re_exports - 1));
        Some(elsewhere.filter(|_| !defines(file, name)).unwrap_or(file))
    }
}

fn defines(file: &Source, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "const", "static", "trait", "type", "union"];
    kinds.iter().any(|kind| file.find(&[kind, name]).next().is_some())
}
