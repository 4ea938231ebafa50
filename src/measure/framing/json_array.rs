//! Splits JSON by its brackets. It finds the elements of an array that arrives in pieces (Gemini without `alt=sse`),
//! and JSON between the lines of an event stream without a `data:` prefix (Gemini's errors).

use super::{Event, FramingError, MAX_EVENT, PayloadKind};

/// Tracks one object or array to its closing bracket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BracketScanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl BracketScanner {
    /// True if a value has started and not yet closed.
    pub(super) fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// Scans for the closing bracket; returns the bytes consumed, or `None` if the bracket is not in `bytes`.
    pub(super) fn close(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if std::mem::take(&mut self.escaped) {
                at += 1;
            } else if self.in_string {
                at += memchr::memchr2(b'"', b'\\', &bytes[at..])?;
                if bytes[at] == b'"' {
                    self.in_string = false
                } else {
                    self.escaped = true
                }
                at += 1;
            } else {
                match bytes[at] {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                    _ => {}
                }
                at += 1;
                if self.depth == 0 {
                    return Some(at);
                }
            }
        }
        None
    }
}

/// Reads the objects of one array, or a single object. Memory: at most one object ([`MAX_EVENT`]), and nothing while
/// objects arrive in one read.
#[derive(Debug, Default)]
pub struct JsonArrayFramer {
    brackets: BracketScanner,
    carry: Vec<u8>,
    lost: Option<FramingError>,
}

impl JsonArrayFramer {
    /// Processes one read; calls `each` for every completed object, in order.
    ///
    /// # Errors
    /// If an object exceeds [`MAX_EVENT`] or another value takes its place. All later reads fail too.
    pub fn push(&mut self, bytes: &[u8], each: impl FnMut(Event<'_>)) -> Result<(), FramingError> {
        match self.lost {
            Some(lost) => Err(lost),
            None => self.cut(bytes, each).inspect_err(|lost| *self = Self { lost: Some(*lost), ..Self::default() }),
        }
    }

    /// True if an object has started and is incomplete.
    pub(super) fn is_inside(&self) -> bool {
        !self.carry.is_empty()
    }

    fn cut(&mut self, mut bytes: &[u8], mut each: impl FnMut(Event<'_>)) -> Result<(), FramingError> {
        while let Some(&first) = bytes.first() {
            if !self.brackets.is_open() && first != b'{' {
                let between = first.is_ascii_whitespace() || matches!(first, b'[' | b',' | b']');
                bytes = if between { &bytes[1..] } else { return Err(FramingError::Malformed) };
                continue;
            }
            let end = self.brackets.close(bytes);
            let piece = bytes.split_off(..end.unwrap_or(bytes.len())).unwrap_or_default();
            if self.carry.len() + piece.len() > MAX_EVENT {
                return Err(FramingError::TooLarge);
            }
            if end.is_some() && self.carry.is_empty() {
                each(Event { name: b"", data: piece, mark: PayloadKind::Plain });
                continue;
            }
            self.carry.extend_from_slice(piece);
            if end.is_some() {
                each(Event { name: b"", data: &self.carry, mark: PayloadKind::Plain });
                self.carry.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(reads: &[&[u8]]) -> Result<Vec<String>, FramingError> {
        let (mut elements, mut seen) = (JsonArrayFramer::default(), Vec::new());
        for read in reads {
            elements.push(read, |event| seen.push(String::from_utf8(event.data.to_vec()).unwrap()))?;
        }
        Ok(seen)
    }

    #[test]
    fn every_cut_gives_the_same_objects() {
        let body = "[{\"a\":[\"]}\\\"\"]}\r\n,\n{\"b\":{\"é\":1}},{}]\n".as_bytes();
        let expected: Vec<String> = ["{\"a\":[\"]}\\\"\"]}", "{\"b\":{\"é\":1}}", "{}"].map(String::from).to_vec();
        assert_eq!(elements(&body.chunks(1).collect::<Vec<_>>()), Ok(expected.clone()));
        for cut in 0..=body.len() {
            assert_eq!(elements(&[&body[..cut], &body[cut..]]), Ok(expected.clone()), "cut at {cut}");
        }
        assert_eq!(elements(&[b"{\"error\":{}}"]), Ok(vec!["{\"error\":{}}".into()]), "one object alone");
    }

    #[test]
    fn what_is_no_object_or_too_large_ends_the_reading() {
        assert_eq!(elements(&[b"[7]"]), Err(FramingError::Malformed));
        assert_eq!(elements(&[b"<html>"]), Err(FramingError::Malformed));
        let endless = vec![b'['; MAX_EVENT];
        assert_eq!(elements(&[b"{\"a\":", &endless]), Err(FramingError::TooLarge));
    }
}
