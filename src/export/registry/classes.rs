//! Decides which class values become attribute values.
//!
//! As with [models](super::models), a value is admitted once the server answers such a request with a 2xx, up to a limit
//! per class. Other values count as [`OTHER`]. The admitted values of one request are one [`ClassSet`], a single part of
//! a series' key.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::interner::{Label, LabelValue};
use crate::measure::request_class::{ClassValues, OTHER};

/// Maximum number of combinations of values. Each instrument's limit on series is reached before.
const MAX_SETS: usize = 2_000;

/// Returns the most combinations that classes of `max_values` values make: each class adds `_other` and none. Above
/// [`MAX_SETS`], every value counts as `_other`, in one more set for each group of classes that a request has.
pub(super) fn max_sets(classes: usize, max_values: usize) -> u64 {
    let (classes, limit) = (classes as u32, MAX_SETS as u64);
    (max_values as u64 + 2).saturating_pow(classes).min(limit.saturating_add(2_u64.saturating_pow(classes)))
}

/// Represents the admitted class values of a request; the default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::export) struct ClassSet(u32);

/// The admitted values and their combinations.
#[derive(Debug)]
pub(in crate::export) struct AdmittedClasses {
    values: AHashMap<Arc<str>, AHashSet<Arc<str>>>,
    sets: AHashMap<ClassValues, ClassSet>,
    /// Attributes of each set after the default one.
    labels: Vec<Arc<[Label]>>,
    max_values: usize,
}

impl AdmittedClasses {
    /// Admits at most `most` values per class.
    pub(in crate::export) fn new(most: usize) -> Self {
        Self { values: AHashMap::new(), sets: AHashMap::new(), labels: Vec::new(), max_values: most }
    }

    /// Changes the limit to `most`; admitted values stay admitted.
    pub(in crate::export) fn set_limit(&mut self, most: usize) {
        self.max_values = most;
    }

    /// Returns the set of a request's values. `answered` is `true` if the server accepted the request.
    pub(in crate::export) fn admit(&mut self, values: &ClassValues, answered: bool) -> ClassSet {
        if values.is_empty() {
            return ClassSet::default();
        }
        // Sets hold admitted values only.
        if let Some(set) = self.sets.get(values) {
            return *set;
        }
        let mut admitted = ClassValues::default();
        for (name, value) in values.iter() {
            let is_admitted = self.is_admitted(name, value, answered);
            admitted.insert(name, if is_admitted { value.as_bytes() } else { OTHER.as_bytes() });
        }
        if self.sets.len() >= MAX_SETS && !self.sets.contains_key(&admitted) {
            admitted = values.iter().fold(ClassValues::default(), |mut other, (name, _)| {
                other.insert(name, OTHER.as_bytes());
                other
            });
        }
        if let Some(set) = self.sets.get(&admitted) {
            return *set;
        }
        let label = |(name, value): (&Arc<str>, &Arc<str>)| Label {
            name: name.to_string().into(),
            value: LabelValue::Text(Arc::clone(value)),
        };
        self.labels.push(admitted.iter().map(label).collect());
        let set = ClassSet(self.labels.len() as u32);
        self.sets.insert(admitted, set);
        set
    }

    /// Returns the attributes of a set.
    pub(in crate::export) fn labels(&self, ClassSet(set): ClassSet) -> &[Label] {
        (set as usize).checked_sub(1).and_then(|at| self.labels.get(at)).map_or(&[], |labels| labels)
    }

    fn is_admitted(&mut self, name: &Arc<str>, value: &Arc<str>, answered: bool) -> bool {
        let known = self.values.entry(Arc::clone(name)).or_default();
        known.contains(value) || answered && known.len() < self.max_values && known.insert(Arc::clone(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> ClassValues {
        let mut values = ClassValues::default();
        pairs.iter().for_each(|(name, value)| values.insert(&(*name).into(), value.as_bytes()));
        values
    }

    fn shown(classes: &AdmittedClasses, set: ClassSet) -> Vec<(String, LabelValue)> {
        classes.labels(set).iter().map(|label| (label.name.to_string(), label.value.clone())).collect()
    }

    #[test]
    fn a_value_is_admitted_by_an_answer_and_the_rest_is_other() {
        let mut classes = AdmittedClasses::new(1);
        let unanswered = classes.admit(&values(&[("tier", "gold")]), false);
        assert_eq!(shown(&classes, unanswered), [("tier".to_owned(), "_other".into())]);
        let gold = classes.admit(&values(&[("tier", "gold"), ("team", "red")]), true);
        assert_eq!(shown(&classes, gold), [("team".to_owned(), "red".into()), ("tier".to_owned(), "gold".into())]);
        assert_eq!(classes.admit(&values(&[("tier", "gold"), ("team", "red")]), false), gold);
        assert_eq!(classes.admit(&values(&[("tier", "silver")]), true), unanswered, "the class is full");
        assert_eq!(classes.admit(&ClassValues::default(), true), ClassSet::default());
    }

    #[test]
    fn two_classes_make_every_pair_of_their_values_with_other_and_none() {
        let mut classes = AdmittedClasses::new(2);
        let mut sets = AHashSet::new();
        for team in ["", "red", "blue", "green"] {
            for tier in ["", "gold", "silver", "bronze"] {
                sets.insert(classes.admit(&values(&[("team", team), ("tier", tier)]), true));
            }
        }
        assert_eq!((sets.len() as u64, max_sets(2, 2)), (16, 16));
        assert_eq!((max_sets(0, 20), max_sets(1, 20), max_sets(2, 20)), (1, 22, 484));
    }

    #[test]
    fn combinations_are_limited() {
        let mut classes = AdmittedClasses::new(MAX_SETS);
        for team in 0..100 {
            for tier in 0..100 {
                classes.admit(&values(&[("team", &team.to_string()), ("tier", &tier.to_string())]), true);
            }
        }
        assert_eq!(classes.labels.len(), MAX_SETS + 1);
        assert!(classes.labels.len() as u64 <= max_sets(2, MAX_SETS));
        let last = classes.admit(&values(&[("team", "99"), ("tier", "99")]), true);
        assert_eq!(shown(&classes, last)[0], ("team".to_owned(), "_other".into()));
    }
}
