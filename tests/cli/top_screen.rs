//! `streamgauge top` on a terminal: the table that updates, and its end.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::pty::{OpenptyResult, openpty};
use nix::sys::termios::{Termios, tcgetattr};

use super::top::{ask, server};
use crate::support::captured::until;
use crate::support::proxy::TestProxy;
use crate::support::unused_address;

/// What stands before the text of a table, and after it: no line wraps in between.
const BEGIN: &str = "\u{1b}[J\u{1b}[?7l";
const END: &str = "\u{1b}[?7h";
/// Ctrl-C, as the keyboard sends it.
const CTRL_C: &[u8] = b"\x03";

/// `top` on a terminal of its own.
struct Screen {
    child: Child,
    terminal: File,
    before: Termios,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Screen {
    fn start(addresses: &[&str]) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let before = tcgetattr(&master).unwrap();
        // A key is a signal only for the processes of the terminal's session.
        let mut command = Command::new("/usr/bin/setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_streamgauge"), "top"]).args(addresses);
        command.env_clear().env("NO_COLOR", "1").stdin(slave.try_clone().unwrap()).stdout(Stdio::null()).stderr(slave);
        let child = command.spawn().unwrap();
        // It holds the terminal's other side, which has to close with the child.
        drop(command);
        let terminal = File::from(master);
        let (mut output, shown) = (terminal.try_clone().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let reader = std::thread::spawn({
            let shown = Arc::clone(&shown);
            move || {
                let mut part = [0; 4_096];
                // Linux ends a terminal without writers with an error.
                while let Ok(length @ 1..) = output.read(&mut part) {
                    shown.lock().unwrap().extend_from_slice(&part[..length]);
                }
            }
        });
        Self { child, terminal, before, shown, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).replace("\r\n", "\n")
    }

    /// The complete tables so far: how the cursor got to their first line, and their text.
    fn tables(&self) -> Vec<(String, String)> {
        let text = self.text();
        let frames = text.split_inclusive(END).filter_map(|frame| frame.strip_suffix(END)?.split_once(BEGIN));
        frames.map(|(up, table)| (up.to_owned(), table.to_owned())).collect()
    }

    /// The first table to come that this holds for.
    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let found = || self.tables().into_iter().map(|(_, table)| table).find(|table| holds(table));
        until(what, || found().is_some());
        found().unwrap()
    }

    /// Presses Ctrl-C. Returns the exit code, and all that was shown.
    fn interrupt(mut self) -> (Option<i32>, String) {
        self.terminal.write_all(CTRL_C).unwrap();
        let code = self.child.wait().unwrap().code();
        assert_eq!(tcgetattr(&self.terminal).unwrap(), self.before, "the terminal's settings");
        let Self { shown, reader, .. } = self;
        reader.join().unwrap();
        let shown = shown.lock().unwrap();
        (code, String::from_utf8_lossy(&shown).into_owned())
    }
}

#[test]
fn the_table_is_replaced_by_the_next_one_until_ctrl_c() {
    let upstream = server();
    let proxy = TestProxy::new(upstream.addr);
    let address = proxy.admin.to_string();
    let screen = Screen::start(&[&address]);
    let first = screen.until("a table", |_| true);
    assert!(first.starts_with("the last 10 s, latencies in ms, worst first; Ctrl-C ends\n\n"), "{first}");
    assert!(first.lines().nth(3).unwrap().starts_with(&format!("✓  {address} ")), "{first}");
    ask(&proxy, "broken");
    let failed = screen.until("the failed request", |table| table.contains("requests fail"));
    let marked = format!("✗  {address} ");
    assert!(failed.lines().any(|line| line.starts_with(&marked)), "{failed}");
    let tables = screen.tables();
    assert!(tables.len() >= 2 && tables[0].0.is_empty(), "{tables:?}");
    for two in tables.windows(2) {
        let lines = two[0].1.lines().count();
        assert_eq!(two[1].0, format!("\r\u{1b}[{lines}A"), "the next begins on the first line of the one before");
    }
    let (code, shown) = screen.interrupt();
    assert_eq!(code, Some(0), "{shown}");
    let (_, after) = shown.rsplit_once(END).unwrap();
    assert!(!after.contains('\u{1b}'), "lines wrap again, and nothing else is written: {after:?}");
    let (_, last) = shown.rsplit_once(BEGIN).unwrap();
    assert!(last.contains(&format!("\n{END}")), "the prompt stands on a line of its own: {last:?}");
}

#[test]
fn the_updating_table_has_the_twenty_worst_rows_and_counts_the_others() {
    let upstream = server();
    let proxy = TestProxy::new(upstream.addr);
    let (_held, nobody) = unused_address();
    let (good, unused) = (proxy.admin.to_string(), nobody.to_string());
    // The good one is named first, and is the best of 23.
    let addresses: Vec<&str> = std::iter::once(&*good).chain(std::iter::repeat_n(&*unused, 22)).collect();
    let screen = Screen::start(&addresses);
    let table = screen.until("a table", |_| true);
    assert_eq!(table.lines().filter(|line| line.starts_with(&format!("✗  {unused} "))).count(), 20, "{table}");
    assert!(!table.contains(&good), "{table}");
    assert!(table.ends_with("3 better rows are left out; --once lists them\n"), "{table}");
    assert_eq!(screen.interrupt().0, Some(0));
    let twenty = Screen::start(&addresses[..20]);
    let table = twenty.until("a table", |_| true);
    assert!(table.contains(&good) && !table.contains("left out"), "{table}");
    assert_eq!(twenty.interrupt().0, Some(0));
}
