//! Counts the losses of a conversion by name, so that they can be reported.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum distinct names. Further names share one count, so hostile input cannot fill memory.
const MAX_NAMES: usize = 64;
const MAX_NAME_CHARS: usize = 90;

/// Counts by name. Clones share the same counts.
#[derive(Clone, Debug, Default)]
pub struct ConversionLosses(Rc<RefCell<BTreeMap<String, u64>>>);

impl ConversionLosses {
    /// Adds 1 to the count of `name`.
    pub fn count(&self, name: &str) {
        self.add(name, 1);
    }

    /// Adds `n` to the count of `name`.
    pub fn add(&self, name: &str, n: u64) {
        if n == 0 {
            return;
        }
        let mut counts = self.0.borrow_mut();
        if let Some(count) = counts.get_mut(name) {
            *count = count.saturating_add(n);
            return;
        }
        let printable = |c: &char| !c.is_control();
        let name: String = name.chars().filter(printable).take(MAX_NAME_CHARS).collect();
        let name = if counts.len() < MAX_NAMES { name } else { "(others)".to_owned() };
        let count = counts.entry(name).or_default();
        *count = count.saturating_add(n);
    }

    /// Names and counts, sorted by name.
    pub fn list(&self) -> Vec<(String, u64)> {
        self.0.borrow().iter().map(|(name, count)| (name.clone(), *count)).collect()
    }

    /// A line that lists the losses in a conversion to `to`; `None` if there are none.
    pub fn summary(&self, to: &str) -> Option<String> {
        let list: Vec<String> = self.list().iter().map(|(name, count)| format!("{name} ({count})")).collect();
        (!list.is_empty()).then(|| format!("note: {to}: {}", list.join(", ")))
    }

    /// A line that lists input fields that a row cannot hold or that could not be read.
    pub fn unconverted_note(&self) -> Option<String> {
        self.summary("not converted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_their_number_are_bounded() {
        let losses = ConversionLosses::default();
        for name in 0..1_000 {
            losses.count(&format!("\u{1b}{name:0>100}"));
        }
        let list = losses.list();
        assert_eq!(list.len(), MAX_NAMES.min(list.len()));
        assert!(list.iter().all(|(name, _)| name.chars().count() <= MAX_NAME_CHARS && !name.contains('\u{1b}')));
        assert_eq!(list.iter().map(|(_, count)| count).sum::<u64>(), 1_000);
    }
}
