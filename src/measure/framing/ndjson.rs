//! NDJSON (`application/x-ndjson`): one JSON value per line. Blank lines are skipped; the last line may lack its line
//! end.

use super::{Event, FramingError, MAX_EVENT, PayloadKind};

/// Reads lines. Memory: at most one line ([`MAX_EVENT`]), and nothing while lines arrive in one read.
#[derive(Debug, Default)]
pub struct NdjsonFramer {
    carry: Vec<u8>,
    /// Lines since they were last taken, blank ones included.
    lines: u64,
    too_large: bool,
}

impl NdjsonFramer {
    /// Processes one read; calls `each` for every completed line, in order.
    ///
    /// # Errors
    /// [`FramingError::TooLarge`] if a line exceeds [`MAX_EVENT`]. All later reads fail too.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Event<'_>)) -> Result<(), FramingError> {
        if self.too_large {
            return Err(FramingError::TooLarge);
        }
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.lines += 1;
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if self.carry.len() + line.len() > MAX_EVENT {
                return self.stop_reading();
            }
            if self.carry.is_empty() {
                event(line).into_iter().for_each(&mut each);
            } else {
                self.carry.extend_from_slice(line);
                event(&self.carry).into_iter().for_each(&mut each);
                self.carry.clear();
            }
        }
        if self.carry.len() + bytes.len() > MAX_EVENT {
            return self.stop_reading();
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }

    /// Complete lines since the last call, blank ones included.
    pub fn take_lines(&mut self) -> u64 {
        std::mem::take(&mut self.lines)
    }

    /// Ends a cleanly closed body. Returns a last line without line end if `complete` accepts it.
    pub fn finish(&mut self, complete: impl Fn(&[u8]) -> bool) -> Option<Event<'_>> {
        event(&self.carry).filter(|event| complete(event.data))
    }

    fn stop_reading(&mut self) -> Result<(), FramingError> {
        *self = Self { carry: Vec::new(), lines: self.lines, too_large: true };
        Err(FramingError::TooLarge)
    }
}

fn event(line: &[u8]) -> Option<Event<'_>> {
    let data = line.trim_ascii();
    (!data.is_empty()).then_some(Event { name: b"", data, mark: PayloadKind::Plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(reads: &[&[u8]], complete: bool) -> Vec<String> {
        let (mut lines, mut seen) = (NdjsonFramer::default(), Vec::new());
        let mut note = |event: Event<'_>| seen.push(String::from_utf8(event.data.to_vec()).unwrap());
        for read in reads {
            lines.push(read, &mut note).unwrap();
        }
        lines.finish(|_| complete).into_iter().for_each(note);
        seen
    }

    #[test]
    fn every_cut_gives_the_same_lines_and_blank_ones_are_none() {
        let body = b"{\"a\":1}\n\n \r\n{\"b\":2}\r\n{\"c\":3}";
        let expected = ["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"];
        for cut in 0..=body.len() {
            assert_eq!(lines(&[&body[..cut], &body[cut..]], true), expected, "cut at {cut}");
        }
        assert_eq!(lines(&[body], false), expected[..2], "a last line that is not whole is none");
    }

    #[test]
    fn an_endless_line_stops_the_reading_and_frees_the_memory() {
        let mut lines = NdjsonFramer::default();
        let read = vec![b'x'; 64 * 1024];
        let given_up = (0..100).position(|_| lines.push(&read, |_| ()).is_err());
        assert_eq!((given_up, lines.carry.capacity()), (Some(MAX_EVENT / read.len()), 0));
        let mut line = vec![b'x'; MAX_EVENT + 1];
        line.push(b'\n');
        assert_eq!(
            NdjsonFramer::default().push(&line, |_| ()),
            Err(FramingError::TooLarge),
            "whole in one read or not"
        );
    }
}
