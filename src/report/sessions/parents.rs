//! Which sessions are sub-agents of which: by the parent in a row, else by the prompt.
//!
//! The first prompt of a sub-agent may repeat a later turn of its parent, as a forked conversation does. A block that a
//! later turn added belongs to the session that had it first. A session whose first prompt holds such a block is that
//! session's sub-agent; the deepest block decides. The blocks of first prompts show nothing: all sessions of an
//! application share its system prompt.

use std::collections::HashMap;

use crate::report::request_point::session_hash;
use crate::report::request_view::RequestView;
use crate::stats::locality_hash::BuildLocalityHasher;

/// Maximum sessions whose parent is kept, and whose prompts are followed (4 MiB).
const MAX_SESSIONS: usize = 65_536;
/// Maximum blocks of later turns (6 MiB).
const MAX_BLOCKS: usize = 262_144;
/// Maximum generations that are followed from a sub-agent to its root. A hostile file may have circles.
const MAX_DEPTH: usize = 32;

type ByHash<T> = HashMap<u64, T, BuildLocalityHasher>;

/// Parents of sessions, by the hashes of their ids.
#[derive(Clone, Debug, Default)]
pub struct SessionParents {
    by_row: ByHash<u64>,
    by_prompt: ByHash<u64>,
    /// Blocks of each session's prompts that were seen so far.
    seen_blocks: ByHash<usize>,
    /// Session whose later turn first had a block.
    owners: ByHash<u64>,
    /// True if a table was full, so that parents are missing.
    pub is_full: bool,
}

impl SessionParents {
    /// Adds a request. A session's first request comes before its later ones.
    pub(in crate::report) fn add(&mut self, request: &RequestView) {
        let Some((session, turn)) = &request.session else { return };
        let id = session_hash(session);
        let parent = request.parent.as_deref().map(session_hash).filter(|parent| *parent != id);
        if let Some(parent) = parent {
            self.is_full |= !insert(&mut self.by_row, MAX_SESSIONS, id, parent);
        }
        let blocks = &request.blocks[..];
        if *turn > 0 {
            let Some(seen) = self.seen_blocks.get_mut(&id) else { return };
            for block in blocks.iter().skip(*seen) {
                if !self.owners.contains_key(block) {
                    self.is_full |= !insert(&mut self.owners, MAX_BLOCKS, *block, id);
                }
            }
            *seen = blocks.len().max(*seen);
        } else if !blocks.is_empty() && !self.seen_blocks.contains_key(&id) {
            let owner = blocks.iter().rev().find_map(|block| self.owners.get(block)).copied();
            if let Some(owner) = owner.filter(|owner| *owner != id) {
                self.is_full |= !insert(&mut self.by_prompt, MAX_SESSIONS, id, owner);
            }
            self.is_full |= !insert(&mut self.seen_blocks, MAX_SESSIONS, id, blocks.len());
        }
    }

    /// True if no session has a parent.
    pub(super) fn is_empty(&self) -> bool {
        self.by_row.is_empty() && self.by_prompt.is_empty()
    }

    /// The parent of a session, and whether a row named it.
    pub(super) fn of(&self, session: u64) -> Option<(u64, bool)> {
        let by_row = self.by_row.get(&session).map(|parent| (*parent, true));
        by_row.or_else(|| self.by_prompt.get(&session).map(|parent| (*parent, false)))
    }

    /// The session at the top: the session itself without a parent.
    pub(super) fn root(&self, session: u64) -> u64 {
        let ancestors = std::iter::successors(Some(session), |session| self.of(*session).map(|(parent, _)| parent));
        ancestors.take(MAX_DEPTH).last().unwrap_or(session)
    }
}

/// Inserts an entry if the table has room or the key already. Returns `false` if it has no room.
fn insert<T>(table: &mut ByHash<T>, most: usize, key: u64, value: T) -> bool {
    let has_room = table.len() < most || table.contains_key(&key);
    if has_room {
        table.insert(key, value);
    }
    has_room
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_file::row::TraceEntry;

    fn view(session: &str, turn: u32, parent: Option<&str>, blocks: &[u64]) -> RequestView {
        let row = TraceEntry {
            session: Some(session.to_owned()),
            turn: Some(turn),
            parent: parent.map(str::to_owned),
            ..TraceEntry::default()
        };
        RequestView { blocks: blocks.to_vec(), ..RequestView::with_events(row, Vec::new(), 0, None) }
    }

    fn parents(requests: &[RequestView]) -> SessionParents {
        let mut parents = SessionParents::default();
        requests.iter().for_each(|request| parents.add(request));
        parents
    }

    #[test]
    fn a_first_prompt_that_repeats_a_later_turn_of_another_session_names_its_parent() {
        let found = parents(&[
            view("a", 0, None, &[1, 2]),
            view("b", 0, None, &[1, 2, 30]),
            view("a", 1, None, &[1, 2, 3, 4]),
            view("child", 0, None, &[1, 2, 3, 50]),
            view("child", 1, None, &[1, 2, 3, 50, 51]),
            view("grandchild", 0, None, &[1, 2, 3, 50, 51, 52]),
            view("other", 0, None, &[1, 2, 9]),
        ]);
        let of = |session: &str| found.of(session_hash(session));
        let parent = |session: &str| Some((session_hash(session), false));
        assert_eq!([of("a"), of("b"), of("other")], [None; 3], "a shared system prompt is no sign");
        assert_eq!([of("child"), of("grandchild")], [parent("a"), parent("child")]);
        assert_eq!(found.root(session_hash("grandchild")), session_hash("a"));
        assert!(!found.is_full);
    }

    #[test]
    fn a_parent_in_the_row_is_believed_before_the_prompt() {
        let found = parents(&[
            view("a", 0, None, &[1]),
            view("a", 1, None, &[1, 2]),
            view("child", 0, Some("lead"), &[1, 2, 3]),
            view("own", 0, Some("own"), &[]),
        ]);
        assert_eq!(found.of(session_hash("child")), Some((session_hash("lead"), true)));
        assert_eq!(found.of(session_hash("own")), None, "no session is its own parent");
    }

    #[test]
    fn circles_end_and_tables_are_bounded() {
        let found = parents(&[view("a", 0, Some("b"), &[]), view("b", 0, Some("a"), &[])]);
        let root = found.root(session_hash("a"));
        assert!(root == session_hash("a") || root == session_hash("b"));
        let mut many = SessionParents::default();
        let blocks: Vec<u64> = (0..MAX_BLOCKS as u64 + 10).collect();
        many.add(&view("a", 0, None, &blocks[..1]));
        many.add(&view("a", 1, None, &blocks));
        (0..MAX_SESSIONS + 10).for_each(|n| many.add(&view(&n.to_string(), 0, Some("a"), &[7])));
        assert_eq!((many.owners.len(), many.by_row.len()), (MAX_BLOCKS, MAX_SESSIONS));
        assert_eq!(many.seen_blocks.len(), MAX_SESSIONS);
        assert!(many.is_full);
    }
}
