//! Writes a trace as frames into one file, or whatever takes bytes.

use std::io::{self, Write};

use super::frame::FrameBuilder;
use super::row::{TraceEntry, TraceHeader};

/// Writes one trace to one place.
pub struct TraceWriter<W: Write> {
    out: W,
    filling: FrameBuilder,
    seq: u64,
}

impl<W: Write> TraceWriter<W> {
    /// A trace that begins with `header`. Nothing is written before the first frame is full, or [`flush`](Self::flush).
    ///
    /// # Errors
    /// When there is no memory to compress with.
    pub fn new(out: W, header: &TraceHeader) -> io::Result<Self> {
        let mut filling = FrameBuilder::new()?;
        filling.push_header(header)?;
        Ok(Self { out, filling, seq: 0 })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// When it is larger than [`MAX_ROW`](super::format::MAX_ROW), and then the trace goes on without it; or when `out` fails.
    pub fn write(&mut self, entry: &TraceEntry) -> io::Result<()> {
        self.filling.push_row(entry)?;
        if self.filling.is_full() { self.write_frame() } else { Ok(()) }
    }

    /// Writes what is there, as a frame that is not full.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.filling.is_empty() {
            self.write_frame()?;
        }
        self.out.flush()
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn write_frame(&mut self) -> io::Result<()> {
        self.out.write_all(&self.filling.close(self.seq)?)?;
        self.filling.clear();
        self.seq += 1;
        Ok(())
    }
}
