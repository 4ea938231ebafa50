//! Who a request continues: the state that formats need which tell a turn by its predecessor.

use std::collections::HashMap;

use super::blocks::hash_text;
use super::conversion_loss::ConversionLosses;

/// Sessions that are remembered.
pub const MAX_SESSIONS: usize = 1 << 20;

/// What is known of the sessions that were met last.
#[derive(Debug)]
pub struct SessionTable<T> {
    states: HashMap<u64, T>,
    losses: ConversionLosses,
}

impl<T> SessionTable<T> {
    /// None yet. That some are forgotten is counted in `losses`.
    pub fn new(losses: &ConversionLosses) -> Self {
        Self { states: HashMap::new(), losses: losses.clone() }
    }

    /// What was last told of that session.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.states.get(&hash_text(name))
    }

    /// Tells what is known of it now.
    pub fn insert(&mut self, name: &str, what: T) {
        if self.states.len() >= MAX_SESSIONS && !self.states.contains_key(&hash_text(name)) {
            // All at once: which of them will go on cannot be known, and this costs nothing per row.
            self.losses.add("sessions whose turns were forgotten", self.states.len() as u64);
            self.states.clear();
        }
        self.states.insert(hash_text(name), what);
    }
}
