//! Writes a trace as frames to a file or another byte sink.

use std::io::{self, Write};

use super::frame::FrameBuilder;
use super::header::TraceHeader;
use super::row::TraceEntry;

/// Writes one trace to one sink.
pub struct TraceWriter<W: Write> {
    out: W,
    filling: FrameBuilder,
    seq: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Starts a trace with `header`. Nothing is written before the first frame is full or [`flush`](Self::flush) is
    /// called.
    ///
    /// # Errors
    /// If the compressor cannot allocate memory.
    pub fn new(out: W, header: &TraceHeader) -> io::Result<Self> {
        let mut filling = FrameBuilder::new()?;
        filling.push_header(header)?;
        Ok(Self { out, filling, seq: 0 })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// If the row is larger than [`MAX_ROW_BYTES`](super::row::MAX_ROW_BYTES), in which case the trace continues
    /// without it, or if `out` fails.
    pub fn write(&mut self, entry: &TraceEntry) -> io::Result<()> {
        self.filling.push_row(entry)?;
        if self.filling.is_full() { self.write_frame() } else { Ok(()) }
    }

    /// Writes the current frame, even if it is not full.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn flush(&mut self) -> io::Result<()> {
        if !self.filling.is_empty() {
            self.write_frame()?;
        }
        self.out.flush()
    }

    /// Writes the last frame and returns the sink.
    ///
    /// # Errors
    /// If `out` fails.
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
