//! Who a request continues: the state that formats need which tell a turn by its predecessor.

use std::collections::HashMap;

use super::blocks::of_text;
use super::losses::Losses;

/// Sessions that are remembered.
pub const MOST: usize = 1 << 20;

/// What is known of the sessions that were met last.
#[derive(Debug)]
pub struct Sessions<T> {
    known: HashMap<u64, T>,
    losses: Losses,
}

impl<T> Sessions<T> {
    /// None yet. That some are forgotten is counted in `losses`.
    pub fn new(losses: &Losses) -> Self {
        Self { known: HashMap::new(), losses: losses.clone() }
    }

    /// What was last told of that session.
    pub fn last(&self, name: &str) -> Option<&T> {
        self.known.get(&of_text(name))
    }

    /// Tells what is known of it now.
    pub fn tell(&mut self, name: &str, what: T) {
        if self.known.len() >= MOST && !self.known.contains_key(&of_text(name)) {
            // All at once: which of them will go on cannot be known, and this costs nothing per row.
            self.losses.add("sessions whose turns were forgotten", self.known.len() as u64);
            self.known.clear();
        }
        self.known.insert(of_text(name), what);
    }
}
