//! Amazon's event stream (`application/vnd.amazon.eventstream`).
//!
//! A frame has its length, the length of its headers and a checksum of both. The headers and the payload follow, then a
//! checksum of everything before. Numbers are 32-bit big endian.

use flate2::Crc;

use super::length_prefixed::{LengthPrefix, LengthPrefixed};
use super::{Event, FramingError, PayloadKind};
use crate::measure::work_budget::WorkBudget;

/// Reads Amazon event-stream frames.
pub type EventStreamFramer = LengthPrefixed<EventStreamPrefix>;

/// Bytes of both lengths, their checksum, and the final checksum.
const PRELUDE: usize = 12;
const CHECKSUM: usize = 4;

/// One frame. `:event-type` names its event; for an exception, `:exception-type` or `:error-code` does. An error
/// without a payload has its `:error-message` as payload.
#[derive(Debug, Default)]
pub struct EventStreamPrefix;

impl LengthPrefix for EventStreamPrefix {
    const MIN_PREFIX_BYTES: usize = PRELUDE + CHECKSUM;

    fn length(head: &[u8]) -> Result<usize, FramingError> {
        let (length, headers) = (number(head, 0)? as usize, number(head, 4)? as usize);
        let fits = length >= Self::MIN_PREFIX_BYTES && headers <= length - Self::MIN_PREFIX_BYTES;
        if fits && checksum(&head[..8]) == number(head, 8)? { Ok(length) } else { Err(FramingError::Malformed) }
    }

    fn event<'a>(&'a mut self, frame: &'a [u8], _: &mut WorkBudget) -> Result<Event<'a>, FramingError> {
        let (body, sum) = frame.split_at_checked(frame.len().wrapping_sub(CHECKSUM)).ok_or(FramingError::Malformed)?;
        if checksum(body) != number(sum, 0)? {
            return Err(FramingError::Malformed);
        }
        let headers = PRELUDE..PRELUDE + number(frame, 4)? as usize;
        let mut data = body.get(headers.end..).ok_or(FramingError::Malformed)?;
        let (mut name, mut failed): (&[u8], &[u8]) = (b"", b"");
        let mut mark = PayloadKind::Plain;
        each_header(&body[headers], |header, value| match header {
            b":message-type" if value != b"event" => mark = PayloadKind::Exception,
            b":event-type" => name = value,
            b":exception-type" | b":error-code" => failed = value,
            b":error-message" if data.is_empty() => data = value,
            _ => {}
        })
        .ok_or(FramingError::Malformed)?;
        Ok(Event { name: if mark == PayloadKind::Exception { failed } else { name }, data, mark })
    }
}

fn number(bytes: &[u8], at: usize) -> Result<u32, FramingError> {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk());
    four.map(|four| u32::from_be_bytes(*four)).ok_or(FramingError::Malformed)
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Calls `each` with every string header.
fn each_header<'a>(mut headers: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
    while let Some(length) = headers.split_off_first() {
        let name = headers.split_off(..usize::from(*length))?;
        let kind = *headers.split_off_first()?;
        let length = match kind {
            // Header types: true, false; integers by width; bytes and strings; timestamp; UUID.
            0 | 1 => 0,
            2 => 1,
            3 => 2,
            4 => 4,
            5 | 8 => 8,
            6 | 7 => usize::from(u16::from_be_bytes(*headers.split_off(..2)?.first_chunk()?)),
            9 => 16,
            _ => return None,
        };
        let value = headers.split_off(..length)?;
        if kind == 7 {
            each(name, value);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a frame with these string headers, preceded by one of another type.
    fn frame(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
        let mut block = b"\x01t\x08\0\0\0\0\0\0\0\0".to_vec();
        for (name, value) in headers {
            block.push(name.len() as u8);
            block.extend_from_slice(name.as_bytes());
            block.push(7);
            block.extend_from_slice(&(value.len() as u16).to_be_bytes());
            block.extend_from_slice(value.as_bytes());
        }
        let total = (PRELUDE + block.len() + payload.len() + CHECKSUM) as u32;
        let mut frame = [total.to_be_bytes(), (block.len() as u32).to_be_bytes()].concat();
        frame.extend_from_slice(&checksum(&frame).to_be_bytes());
        frame.extend_from_slice(&block);
        frame.extend_from_slice(payload);
        frame.extend_from_slice(&checksum(&frame).to_be_bytes());
        frame
    }

    fn events(bytes: &[u8]) -> Result<Vec<(String, String, PayloadKind)>, FramingError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut seen = Vec::new();
        let mut frames = EventStreamFramer::default();
        let budget = &mut WorkBudget::default();
        frames.push(bytes, budget, |event, _| seen.push((text(event.name), text(event.data), event.mark)))?;
        Ok(seen)
    }

    #[test]
    fn a_frame_is_named_by_its_headers_and_an_exception_is_marked() {
        let body = [
            frame(&[(":message-type", "event"), (":event-type", "chunk")], b"{}"),
            frame(
                &[(":exception-type", "throttlingException"), (":message-type", "exception")],
                b"{\"message\":\"m\"}",
            ),
            frame(&[(":message-type", "error"), (":error-code", "500"), (":error-message", "down")], b""),
        ];
        let event = |name: &str, data: &str, mark| (name.to_owned(), data.to_owned(), mark);
        let expected = vec![
            event("chunk", "{}", PayloadKind::Plain),
            event("throttlingException", "{\"message\":\"m\"}", PayloadKind::Exception),
            event("500", "down", PayloadKind::Exception),
        ];
        assert_eq!(events(&body.concat()), Ok(expected));
    }

    #[test]
    fn a_wrong_checksum_or_length_ends_the_reading() {
        let good = frame(&[(":event-type", "chunk")], b"payload");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(events(&bad), Err(FramingError::Malformed), "byte {at} changed");
        }
        assert_eq!(events(b"data: {\"a\":1234}\n\n"), Err(FramingError::Malformed));
    }
}
