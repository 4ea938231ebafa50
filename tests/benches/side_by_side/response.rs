//! The client's side of a reply: head, chunks and events, counted as they come.

use std::fmt;

use memchr::memmem;

/// Why a request counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Failure {
    /// A status other than 200.
    Refused(u16),
    /// The connection ended before the first byte of a reply.
    NoReply,
    /// The connection ended inside a reply.
    CutOff,
    /// A complete reply with fewer or more events or bytes than the upstream sent.
    Altered,
    /// Not HTTP/1.1 in chunks, where that is spoken.
    Unreadable,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "status {status}"),
            Self::NoReply => f.write_str("closed without a reply"),
            Self::CutOff => f.write_str("cut off"),
            Self::Altered => f.write_str("events lost or added"),
            Self::Unreadable => f.write_str("not HTTP/1.1 in chunks"),
        }
    }
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Size(usize),
    Data(usize),
    DataEnd(usize),
    Trailer(usize),
    Done,
}

/// One reply under way.
#[derive(Debug, Default)]
pub(crate) struct Response {
    state: State,
    head: Vec<u8>,
    /// The beginning of an event whose end has not come.
    event: Vec<u8>,
    pub(crate) events: usize,
    pub(crate) payload: usize,
    /// The server announced that it closes the connection.
    pub(crate) closes: bool,
}

impl Response {
    pub(crate) fn has_head(&self) -> bool {
        !matches!(self.state, State::Head)
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The failure if the connection ended now.
    pub(crate) fn cut(&self) -> Failure {
        if self.head.is_empty() { Failure::NoReply } else { Failure::CutOff }
    }

    /// Takes what was read and calls `on_event` for each whole event.
    pub(crate) fn feed(&mut self, mut bytes: &[u8], mut on_event: impl FnMut(&[u8])) -> Result<(), Failure> {
        while let [first, rest @ ..] = bytes {
            match self.state {
                State::Head => {
                    let Some(length) = self.read_head(bytes)? else { return Ok(()) };
                    bytes = &bytes[length..];
                    self.state = State::Size(0);
                    continue;
                }
                State::Data(left) => {
                    let (data, behind) = bytes.split_at(left.min(bytes.len()));
                    self.take_data(data, &mut on_event);
                    let left = left - data.len();
                    self.state = if left > 0 { State::Data(left) } else { State::DataEnd(2) };
                    bytes = behind;
                    continue;
                }
                State::Size(size) => {
                    self.state = match (char::from(*first).to_digit(16), first) {
                        (Some(digit), _) => State::Size(size << 4 | digit as usize),
                        (None, b'\r') => State::Size(size),
                        (None, b'\n') if size == 0 => State::Trailer(0),
                        (None, b'\n') => State::Data(size),
                        _ => return Err(Failure::Unreadable),
                    };
                }
                State::DataEnd(1) => self.state = State::Size(0),
                State::DataEnd(left) => self.state = State::DataEnd(left - 1),
                State::Trailer(length) => {
                    self.state = match first {
                        b'\n' if length == 0 => State::Done,
                        b'\n' => State::Trailer(0),
                        b'\r' => State::Trailer(length),
                        _ => State::Trailer(length + 1),
                    };
                }
                State::Done => return Err(Failure::Unreadable),
            }
            bytes = rest;
        }
        Ok(())
    }

    /// How many of `bytes` end the head; `None` while it is incomplete.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Failure> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(&self.head) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(Failure::Unreadable),
        };
        let status = head.code.unwrap_or(0);
        if status != 200 {
            return Err(Failure::Refused(status));
        }
        let has = |name: &str, value: &str| {
            let mut headers = head.headers.iter();
            headers.any(|h| h.name.eq_ignore_ascii_case(name) && h.value.eq_ignore_ascii_case(value.as_bytes()))
        };
        if !has("transfer-encoding", "chunked") {
            return Err(Failure::Unreadable);
        }
        self.closes = has("connection", "close");
        Ok(Some(length - before))
    }

    /// Takes payload and calls `on_event` for each whole event.
    pub(crate) fn take_data(&mut self, data: &[u8], on_event: &mut impl FnMut(&[u8])) {
        self.payload += data.len();
        if self.event.is_empty() {
            let behind = self.split(data, on_event);
            self.event.extend_from_slice(&data[behind..]);
        } else {
            let mut joined = std::mem::take(&mut self.event);
            joined.extend_from_slice(data);
            let behind = self.split(&joined, on_event);
            joined.drain(..behind);
            self.event = joined;
        }
    }

    /// Reports the whole events at the beginning of `data`, and where they end.
    fn split(&mut self, data: &[u8], on_event: &mut impl FnMut(&[u8])) -> usize {
        let mut from = 0;
        while let Some(length) = memmem::find(&data[from..], b"\n\n") {
            on_event(&data[from..from + length]);
            self.events += 1;
            from += length + 2;
        }
        from
    }
}
