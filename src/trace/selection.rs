//! Selects rows by model and class.

use crate::measure::glob::glob;
use crate::trace_file::row::TraceEntry;

/// Models and classes of the rows to change. Without any, all rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSelection {
    /// Models; a row needs one of them. `*` matches any characters.
    pub models: Vec<String>,
    /// Names of classes and their values; a row needs all of them. `*` matches any characters.
    pub classes: Vec<(String, String)>,
}

impl TraceSelection {
    /// True if the row is selected.
    pub fn contains(&self, entry: &TraceEntry) -> bool {
        let is_model = |model: &String| entry.model.as_deref().is_some_and(|name| glob(model, name));
        let is_class = |(name, value): &(String, String)| entry.class.get(name).is_some_and(|class| glob(value, class));
        (self.models.is_empty() || self.models.iter().any(is_model)) && self.classes.iter().all(is_class)
    }
}
