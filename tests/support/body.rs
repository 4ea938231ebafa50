//! A reader of HTTP/1.1 bodies that shares no code with the program (RFC 9112, sections 6 and 7).

use super::client::Response;

/// How a body ends.
pub enum BodyReader {
    /// After this many more bytes.
    Length(usize),
    /// With its connection.
    UntilClose,
    /// After its last chunk and its trailers.
    Chunked(Part),
}

/// The part of a chunked body that comes next.
pub enum Part {
    Size,
    /// Bytes of the chunk that are still to come.
    Data(usize),
    LineEnd,
    Trailers,
}

impl BodyReader {
    /// Moves the bytes of the body from `seen` to `response`; whether the body is complete.
    pub fn read(&mut self, seen: &mut Vec<u8>, response: &mut Response) -> bool {
        match self {
            Self::UntilClose => {
                response.body.append(seen);
                false
            }
            Self::Length(left) => {
                *left -= take(*left, seen, response);
                *left == 0
            }
            Self::Chunked(part) => loop {
                match part {
                    Part::Data(left) => {
                        *left -= take(*left, seen, response);
                        if *left > 0 {
                            return false;
                        }
                        *part = Part::LineEnd;
                    }
                    Part::LineEnd => match line(seen) {
                        Some(line) => {
                            assert_eq!(line, "", "after a chunk");
                            *part = Part::Size;
                        }
                        None => return false,
                    },
                    Part::Size => match line(seen) {
                        Some(line) => {
                            let size = line.split([';', ' ', '\t']).next().unwrap();
                            let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
                            *part = if size == 0 { Part::Trailers } else { Part::Data(size) };
                        }
                        None => return false,
                    },
                    Part::Trailers => match line(seen) {
                        Some(line) if line.is_empty() => return true,
                        Some(line) => {
                            let (name, value) = line.split_once(':').expect("a trailer");
                            response.trailers.push((name.to_owned(), value.trim().to_owned()));
                        }
                        None => return false,
                    },
                }
            },
        }
    }
}

/// Moves at most `most` bytes; how many.
fn take(most: usize, seen: &mut Vec<u8>, response: &mut Response) -> usize {
    let size = most.min(seen.len());
    response.body.extend_from_slice(&seen[..size]);
    seen.drain(..size);
    size
}

/// The next line, without its end; `None` until it is complete.
fn line(seen: &mut Vec<u8>) -> Option<String> {
    let end = seen.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8(seen.drain(..=end).collect()).unwrap();
    Some(line.trim_end_matches(['\r', '\n']).to_owned())
}
