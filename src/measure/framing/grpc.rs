//! gRPC messages in HTTP/2 DATA: one byte that says whether the message is compressed, its length in four bytes (big
//! endian), the message. Where a message begins has nothing to do with where a DATA frame does.

use super::prefixed::{Prefix, Prefixed};
use super::{Event, Mark, Unframed};

/// Reads gRPC messages.
pub type Grpc = Prefixed<Message>;

/// The five bytes before a message.
#[derive(Debug)]
pub struct Message;

impl Prefix for Message {
    const LEAST: usize = 5;

    fn length(head: &[u8]) -> Result<usize, Unframed> {
        match *head {
            [0 | 1, a, b, c, d, ..] => Ok(Self::LEAST.saturating_add(u32::from_be_bytes([a, b, c, d]) as usize)),
            _ => Err(Unframed::Malformed),
        }
    }

    fn event(frame: &[u8]) -> Result<Event<'_>, Unframed> {
        let (head, data) = frame.split_at_checked(Self::LEAST).ok_or(Unframed::Malformed)?;
        let mark = if head[0] == 1 { Mark::Compressed } else { Mark::Plain };
        Ok(Event { name: b"", data, mark })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Messages = Vec<(Vec<u8>, Mark)>;

    fn messages(reads: &[&[u8]]) -> (Messages, Result<(), Unframed>) {
        let (mut grpc, mut seen) = (Grpc::default(), Vec::new());
        let mut read = Ok(());
        for bytes in reads {
            read = grpc.push(bytes, |event| seen.push((event.data.to_vec(), event.mark)));
        }
        (seen, read)
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let body = b"\0\0\0\0\x02ab\x01\0\0\0\x01z\0\0\0\0\0\0\0\0\0\x03cde\0\0";
        let whole = messages(&[body]);
        let expected: [(&[u8], Mark); 4] =
            [(b"ab", Mark::Plain), (b"z", Mark::Compressed), (b"", Mark::Plain), (b"cde", Mark::Plain)];
        assert_eq!(whole, (expected.map(|(data, mark)| (data.to_vec(), mark)).to_vec(), Ok(())));
        for cut in 0..body.len() {
            assert_eq!(messages(&[&body[..cut], &body[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(messages(&body.chunks(1).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn what_is_no_message_or_too_large_ends_the_reading() {
        assert_eq!(messages(&[b"\0\0\0\0\x01a", b"data: {}"]).1, Err(Unframed::Malformed));
        assert_eq!(messages(&[b"\0\xff\xff\xff\xff"]).1, Err(Unframed::TooLarge));
        let (seen, read) = messages(&[b"\x02\0\0\0\x01a", b"\0\0\0\0\x01a"]);
        assert_eq!((seen.len(), read), (0, Err(Unframed::Malformed)), "and it stays ended");
    }
}
