//! Last state per session, for formats that identify a turn by its predecessor.

use std::collections::HashMap;

use super::blocks::hash_text;
use super::conversion_loss::ConversionLosses;

/// Maximum sessions remembered.
pub const MAX_SESSIONS: usize = 1 << 20;

/// Last state of the most recent sessions.
#[derive(Debug)]
pub struct SessionTable<T> {
    states: HashMap<u64, T>,
    losses: ConversionLosses,
}

impl<T> SessionTable<T> {
    /// Creates an empty table that counts forgotten sessions in `losses`.
    pub fn new(losses: &ConversionLosses) -> Self {
        Self { states: HashMap::new(), losses: losses.clone() }
    }

    /// The state last stored for this session.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.states.get(&hash_text(name))
    }

    /// Stores the state of this session.
    pub fn insert(&mut self, name: &str, what: T) {
        if self.states.len() >= MAX_SESSIONS && !self.states.contains_key(&hash_text(name)) {
            // Clears all entries at once, which costs nothing per row. The sessions that will continue cannot be known.
            self.losses.add("sessions whose turns were forgotten", self.states.len() as u64);
            self.states.clear();
        }
        self.states.insert(hash_text(name), what);
    }
}

impl SessionTable<u32> {
    /// Position of the next row of this session in it, from 0.
    pub fn next_turn(&mut self, name: &str) -> u32 {
        let turn = self.get(name).map_or(0, |turn| turn.saturating_add(1));
        self.insert(name, turn);
        turn
    }
}
