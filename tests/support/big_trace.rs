//! A trace of any size that is generated while it is read. Its rows are those of Mooncake's first five minutes,
//! repeated at later times with new block ids.

use std::io::{self, Read, Write as _};

/// 918 rows, of 227,975 bytes.
const ROWS: &str = include_str!("../data/traces/mooncake/conversation_first300s.jsonl");
/// Length of one round, in milliseconds.
const ROUND: u64 = 300_000;
/// Ids of one round are below this. 0 is the system prompt of all.
const IDS: u64 = 1 << 15;

#[derive(serde::Deserialize)]
struct Row {
    timestamp: u64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

/// Gives whole rows, until it has given so many bytes.
pub(crate) struct BigTrace {
    /// How far the ids of blocks that come one after the other are apart.
    pub(crate) apart: u64,
    rows: Vec<Row>,
    next: usize,
    round: u64,
    left: u64,
    line: Vec<u8>,
    given: usize,
}

impl BigTrace {
    /// A trace of at least so many bytes.
    pub(crate) fn of(bytes: u64) -> Self {
        let rows = ROWS.lines().map(|line| serde_json::from_str(line).expect("Mooncake's row")).collect();
        Self { apart: 1, rows, next: 0, round: 0, left: bytes, line: Vec::new(), given: 0 }
    }

    fn write_row(&mut self) -> io::Result<()> {
        let (row, round, out) = (&self.rows[self.next], self.round, &mut self.line);
        let at = row.timestamp + round * ROUND;
        let (input, output) = (row.input_length, row.output_length);
        write!(out, r#"{{"timestamp": {at}, "input_length": {input}, "output_length": {output}, "hash_ids": ["#)?;
        for (place, id) in row.hash_ids.iter().enumerate() {
            let id = if *id == 0 { 0 } else { (id + round * IDS) * self.apart };
            write!(out, "{}{id}", if place == 0 { "" } else { ", " })?;
        }
        out.extend_from_slice(b"]}\n");
        self.next += 1;
        if self.next == self.rows.len() {
            (self.next, self.round) = (0, round + 1);
        }
        Ok(())
    }
}

impl Read for BigTrace {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.given == self.line.len() && self.left > 0 {
            self.line.clear();
            self.given = 0;
            self.write_row()?;
            self.left = self.left.saturating_sub(self.line.len() as u64);
        }
        let given = (&self.line[self.given..]).read(to)?;
        self.given += given;
        Ok(given)
    }
}
