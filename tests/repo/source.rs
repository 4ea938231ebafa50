//! A Rust file as tokens, without comments, text and code for tests.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// One file of `src`.
pub(crate) struct Source {
    /// From the top of the repository.
    pub(crate) path: String,
    /// As it stands.
    pub(crate) text: String,
    tokens: Vec<Token>,
    /// Every path that is named, `use` of many taken apart, with its line. Those into this crate begin with `crate`.
    pub(crate) named: Vec<(Vec<String>, usize)>,
    /// Modules that are declared here for tests only.
    pub(crate) test_modules: Vec<String>,
}

/// A word, a punctuation mark or a literal, and its line.
struct Token {
    text: String,
    line: usize,
}

impl Source {
    /// Reads a file.
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        let module = module(&path);
        let mut source = Self { path, text, tokens: Vec::new(), named: Vec::new(), test_modules: Vec::new() };
        source.walk(&stream.into_iter().collect::<Vec<_>>(), &module);
        source
    }

    /// The first folder or file below `src`: what the arrows speak of.
    pub(crate) fn folder(&self) -> &str {
        let below = self.path.strip_prefix("src/").unwrap_or(&self.path);
        below.split('/').next().and_then(|first| first.split('.').next()).unwrap_or_default()
    }

    /// Where these tokens stand in a row, by line.
    pub(crate) fn find<'a>(&'a self, sequence: &'a [&str]) -> impl Iterator<Item = usize> + 'a {
        let stands =
            |at: &usize| sequence.iter().zip(&self.tokens[*at..]).all(|(expected, token)| token.text == *expected);
        (0..(self.tokens.len() + 1).saturating_sub(sequence.len())).filter(stands).map(|at| self.tokens[at].line)
    }

    /// The text between the quotes of every string, with its line.
    pub(crate) fn strings(&self) -> impl Iterator<Item = (&str, usize)> {
        self.tokens.iter().filter_map(|token| {
            let literal = token.text.trim_start_matches(['b', 'r', 'c']).trim_matches('#');
            Some((literal.strip_prefix('"')?.strip_suffix('"')?, token.line))
        })
    }

    fn walk(&mut self, trees: &[TokenTree], module: &[String]) {
        let mut at = 0;
        while at < trees.len() {
            if is_test_attribute(&trees[at..]) {
                let length = item_length(&trees[at..]);
                self.leave_out(&trees[at..at + length]);
                at += length;
                continue;
            }
            let line = trees[at].span().start().line;
            match &trees[at] {
                TokenTree::Group(group) => {
                    let inside: Vec<_> = group.stream().into_iter().collect();
                    match inner_module(&trees[..at]) {
                        Some(name) => self.walk(&inside, &[module, &[name]].concat()),
                        None => self.walk(&inside, module),
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && punct.spacing() == Spacing::Joint => {
                    self.tokens.push(Token { text: "::".to_owned(), line });
                    at += 1;
                }
                tree => {
                    if !matches!(&trees[..at], [.., a, b] if is(a, ":") && is(b, ":")) {
                        self.named.extend(path_of(&trees[at..], module));
                    }
                    self.tokens.push(Token { text: tree.to_string(), line });
                }
            }
            at += 1;
        }
    }

    fn leave_out(&mut self, item: &[TokenTree]) {
        let name = item.windows(3).find(|three| is(&three[0], "mod") && is(&three[2], ";"));
        self.test_modules.extend(name.map(|three| three[1].to_string()));
    }
}

/// The modules that a file's `super` counts from.
pub(crate) fn module(path: &str) -> Vec<String> {
    let below = path.strip_prefix("src/").unwrap_or(path).trim_end_matches(".rs");
    below.split('/').filter(|part| !["mod", "lib", "main"].contains(part)).map(str::to_owned).collect()
}

fn is(tree: &TokenTree, text: &str) -> bool {
    !matches!(tree, TokenTree::Group(_)) && tree.to_string() == text
}

/// `mod name` before a block.
fn inner_module(before: &[TokenTree]) -> Option<String> {
    match before {
        [.., keyword, name] if is(keyword, "mod") => Some(name.to_string()),
        _ => None,
    }
}

/// `#[cfg(test)]`.
fn is_test_attribute(trees: &[TokenTree]) -> bool {
    match trees {
        [hash, TokenTree::Group(attribute), ..] if is(hash, "#") => {
            attribute.stream().to_string().replace(' ', "") == "cfg(test)"
        }
        _ => false,
    }
}

/// How many trees an item with its attributes has: it ends with a block or a semicolon.
fn item_length(trees: &[TokenTree]) -> usize {
    let ends = |tree: &TokenTree| match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        tree => is(tree, ";"),
    };
    trees.iter().position(ends).map_or(trees.len(), |end| end + 1)
}

/// The paths that begin with this word, if any do; several if it is a `use` of many.
fn path_of(trees: &[TokenTree], module: &[String]) -> Vec<(Vec<String>, usize)> {
    let supers = trees.iter().step_by(3).take_while(|tree| is(tree, "super")).count();
    let own = vec!["crate".to_owned()];
    let start = match &trees[0] {
        TokenTree::Ident(root) if root == "crate" || root == "streamgauge" => own,
        TokenTree::Ident(_) if supers > module.len() => return Vec::new(),
        TokenTree::Ident(_) if supers > 0 => [&own, &module[..module.len() - supers]].concat(),
        TokenTree::Ident(root) => vec![root.to_string()],
        _ => return Vec::new(),
    };
    let mut found = Vec::new();
    branch(&trees[1 + 3 * supers.saturating_sub(1)..], start, trees[0].span().start().line, &mut found);
    found.retain(|(path, _)| path.len() > 1);
    found
}

/// Follows `::name` and `::{…}`.
fn branch(trees: &[TokenTree], mut path: Vec<String>, line: usize, found: &mut Vec<(Vec<String>, usize)>) {
    match trees {
        [a, b, TokenTree::Ident(name), rest @ ..] if is(a, ":") && is(b, ":") => {
            path.push(name.to_string());
            branch(rest, path, line, found);
        }
        [a, b, TokenTree::Group(group), ..] if is(a, ":") && is(b, ":") && group.delimiter() == Delimiter::Brace => {
            let inside: Vec<_> = group.stream().into_iter().collect();
            for one in inside.split(|tree| is(tree, ",")).filter(|one| !one.is_empty()) {
                let path = [&path[..], &[one[0].to_string()]].concat();
                branch(&one[1..], path, one[0].span().start().line, found);
            }
        }
        _ => found.push((path, line)),
    }
}
