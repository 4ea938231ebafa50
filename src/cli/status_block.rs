//! Text that is updated in place on a terminal.

use std::io::{self, IsTerminal as _, Write as _};

/// A block of lines on stderr.
pub(super) struct StatusBlock {
    terminal: bool,
    /// Lines of the text that stands there.
    lines: usize,
}

impl StatusBlock {
    /// On stderr, where nothing stands yet.
    pub(super) fn on_stderr() -> Self {
        Self { terminal: io::stderr().is_terminal(), lines: 0 }
    }

    /// True if stderr is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Takes the text off the terminal.
    pub(super) fn clear(&mut self) {
        if self.lines > 0 {
            self.replace("");
        }
    }

    /// Puts another in its place.
    pub(super) fn replace(&mut self, text: &str) {
        let up = if self.lines > 0 { format!("\r\u{1b}[{}A", self.lines) } else { String::new() };
        // Up to the first line, clear from there on, and do not wrap: a wrapped line would be two next time.
        let frame = format!("{up}\u{1b}[J\u{1b}[?7l{text}\u{1b}[?7h");
        self.lines = text.lines().count();
        // A closed stderr is no reason to stop.
        io::stderr().write_all(frame.as_bytes()).ok();
    }
}
