//! Decides which model names become attribute values.
//!
//! A client can request any model name. A name is admitted once the server answers such a request with a 2xx or streams
//! tokens for it. Until then, and above the configured limit, requests count under [`OVERFLOW_MODEL`]. A client with
//! invented names therefore creates series only if the server accepts them, and at most up to the limit. A name that is
//! a path is shortened to its last segment.
//!
//! Invisible or misleading characters are escaped as in Rust (`\u{200b}`): control characters, direction marks and
//! zero-width characters. A model that is really named `_other` is escaped too.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::AHashMap;

use super::interner::{Interner, LabelValue, Symbol};
use crate::capture::model_names::shorten;
use crate::measure::request_class::OTHER;

/// Name that collects all models that were not admitted.
pub(in crate::export) const OVERFLOW_MODEL: &str = OTHER;

/// Set of admitted names.
#[derive(Debug)]
pub(in crate::export) struct AdmittedModels {
    admitted: AHashMap<Arc<str>, Symbol>,
    max_models: usize,
}

impl AdmittedModels {
    /// Creates a set of at most `most` names.
    pub(in crate::export) fn new(most: usize) -> Self {
        Self { admitted: AHashMap::new(), max_models: most }
    }

    /// Changes the limit to `most`; admitted names stay admitted.
    pub(in crate::export) fn set_limit(&mut self, most: usize) {
        self.max_models = most;
    }

    /// Returns the attribute value of a requested model. `answered` is `true` if the server responded under that name.
    pub(in crate::export) fn admit(&mut self, model: Option<&str>, answered: bool, symbols: &mut Interner) -> Symbol {
        let Some(model) = model.filter(|model| !model.is_empty()) else { return Symbol::default() };
        if let Some(sym) = self.admitted.get(model) {
            return *sym;
        }
        if !answered || self.admitted.len() >= self.max_models {
            return symbols.text(OVERFLOW_MODEL);
        }
        let sym = symbols.text(&escape_invisible(shorten(model)));
        self.admitted.insert(model.into(), sym);
        sym
    }

    /// Returns the exported name of a model.
    pub(in crate::export) fn display_name(&self, model: &str, symbols: &Interner) -> Arc<str> {
        match self.admitted.get(model).and_then(|sym| symbols.value(*sym)) {
            Some(LabelValue::Text(shown)) => Arc::clone(shown),
            _ => OVERFLOW_MODEL.into(),
        }
    }
}

/// Escapes the invisible characters of a name.
pub(in crate::export) fn escape_invisible(name: &str) -> Cow<'_, str> {
    if name == OVERFLOW_MODEL {
        return Cow::Borrowed(r"\u{5f}other");
    }
    if !name.contains(is_invisible) {
        return Cow::Borrowed(name);
    }
    let mut escaped = String::with_capacity(name.len() + 16);
    for letter in name.chars() {
        if is_invisible(letter) { escaped.extend(letter.escape_unicode()) } else { escaped.push(letter) }
    }
    Cow::Owned(escaped)
}

/// Returns `true` for control characters, line separators and Unicode format characters, which have no width or set the
/// text direction (UAX #9).
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_admitted_by_an_answer_and_the_rest_is_other() {
        let mut symbols = Interner::default();
        let mut models = AdmittedModels::new(2);
        let other = symbols.text(OVERFLOW_MODEL);
        for made_up in 0..1_000 {
            assert_eq!(models.admit(Some(&format!("made-up-{made_up}")), false, &mut symbols), other);
        }
        let tiny = models.admit(Some("tiny"), true, &mut symbols);
        assert_ne!(tiny, other);
        assert_eq!(models.admit(Some("tiny"), false, &mut symbols), tiny, "admitted before");
        models.admit(Some("small"), true, &mut symbols);
        assert_eq!(models.admit(Some("large"), true, &mut symbols), other, "the table is full");
        for none in [None, Some("")] {
            assert_eq!(models.admit(none, true, &mut symbols), Symbol::default());
        }
        let shown = ["tiny", "large"].map(|model| models.display_name(model, &symbols));
        assert_eq!(shown, ["tiny".into(), OVERFLOW_MODEL.into()]);
        assert!(symbols.value(tiny).is_some());
    }

    #[test]
    fn what_cannot_be_seen_of_a_name_is_escaped() {
        for (name, shown) in [
            ("qwen3 8b \u{e9}\u{6a21}\u{578b}", "qwen3 8b \u{e9}\u{6a21}\u{578b}"),
            ("a\u{200b}b", r"a\u{200b}b"),
            ("a\u{202e}b\u{2066}", r"a\u{202e}b\u{2066}"),
            ("a\n\u{1b}[31m\u{85}", r"a\u{a}\u{1b}[31m\u{85}"),
            ("\u{feff}a\u{ad}\u{e0041}", r"\u{feff}a\u{ad}\u{e0041}"),
        ] {
            assert_eq!(escape_invisible(name), shown);
        }
    }

    #[test]
    fn a_model_called_as_the_overflow_is_not_counted_with_it() {
        let (mut symbols, mut models) = (Interner::default(), AdmittedModels::new(2));
        let overflow = models.admit(Some("unknown"), false, &mut symbols);
        let called_so = models.admit(Some(OVERFLOW_MODEL), true, &mut symbols);
        assert_ne!(called_so, overflow);
        assert_eq!(&*models.display_name(OVERFLOW_MODEL, &symbols), r"\u{5f}other");
        assert_eq!(models.admit(Some("/models/_other"), true, &mut symbols), called_so);
    }

    #[test]
    fn where_a_model_lies_is_not_told() {
        let (mut symbols, mut models) = (Interner::default(), AdmittedModels::new(9));
        let llama = models.admit(Some("/data/alice/llama"), true, &mut symbols);
        assert_eq!(llama, models.admit(Some("llama"), true, &mut symbols));
        let hub = models.admit(Some("org/llama"), true, &mut symbols);
        assert!(hub != llama);
        let shown =
            ["/data/alice/llama", "/data/alice/typed", "org/llama"].map(|model| models.display_name(model, &symbols));
        assert_eq!(shown, ["llama".into(), OVERFLOW_MODEL.into(), "org/llama".into()]);
    }
}
