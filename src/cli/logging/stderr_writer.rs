//! Lines on their way to stderr, which a thread of its own writes.
//!
//! The reader of stderr may stop: a pager, a paused terminal, a log driver with a full disk. The threads that log
//! accept connections, count and forward, and none of them waits for that reader. Unread lines are kept up to a bound;
//! beyond it they are lost and counted.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::measure::time::Gap;

/// Bytes kept for a reader that has stopped: more than ten thousand lines of the access log.
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// Buffers lines for a thread that writes them, so that logging never blocks.
#[derive(Debug, Default)]
pub(super) struct StderrWriter {
    buffer: Mutex<StderrBuffer>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StderrBuffer {
    text: Vec<u8>,
    /// Lines for which there was no room.
    lost: u64,
    /// True while the last taken bytes are not written yet.
    writing: bool,
}

impl StderrWriter {
    /// None yet, and the thread that writes them.
    pub(super) fn spawn() -> io::Result<Arc<Self>> {
        let lines = Arc::new(Self::default());
        let from = Arc::clone(&lines);
        thread::Builder::new().name("log".to_owned()).spawn(move || from.write_loop(&mut io::stderr()))?;
        Ok(lines)
    }

    /// Writes for as long as the process runs.
    fn write_loop(&self, stderr: &mut impl Write) -> ! {
        loop {
            let (text, lost) = self.take_pending();
            // A log that cannot be written has no other output.
            _ = stderr.write_all(&text).is_ok();
            if lost > 0 {
                tracing::warn!(lost, "lines of the log were lost: stderr did not take them");
            }
        }
    }

    /// Takes the bytes to write, and the number of lost lines after them.
    fn take_pending(&self) -> (Vec<u8>, u64) {
        let mut buffer = self.lock();
        buffer.writing = false;
        self.changed.notify_all();
        let nothing = |buffer: &mut StderrBuffer| buffer.text.is_empty();
        let mut buffer = self.changed.wait_while(buffer, nothing).unwrap_or_else(PoisonError::into_inner);
        buffer.writing = true;
        (std::mem::take(&mut buffer.text), std::mem::take(&mut buffer.lost))
    }

    /// Waits until all is written, but not for ever.
    pub(super) fn wait_until_written(&self, limit: Gap) {
        let unwritten = |buffer: &mut StderrBuffer| buffer.writing || !buffer.text.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), limit.into(), unwritten));
    }

    fn lock(&self) -> MutexGuard<'_, StderrBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a line at a time.
impl Write for &StderrWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut buffer = self.lock();
        if buffer.text.len() + line.len() > MAX_BUFFERED_BYTES {
            buffer.lost += 1;
        } else {
            buffer.text.extend_from_slice(line);
            self.changed.notify_all();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_does_not_take_is_bounded_and_counted() {
        let lines = StderrWriter::default();
        let line = [b'x'; 1024];
        for _ in 0..MAX_BUFFERED_BYTES / line.len() + 3 {
            assert_eq!((&lines).write(&line).unwrap(), line.len());
        }
        let (text, lost) = lines.take_pending();
        assert_eq!((text.len(), lost), (MAX_BUFFERED_BYTES, 3));
        (&lines).write_all(b"again").unwrap();
        assert_eq!(lines.take_pending(), (b"again".to_vec(), 0));
    }
}
