//! Frames that begin with their length, cut out of reads that know nothing of them.

use super::{Event, FramingError, MAX_EVENT};
use crate::measure::work_budget::WorkBudget;

/// How a frame begins, and what is in it.
pub trait LengthPrefix: Default {
    /// Bytes of the shortest frame.
    const MIN_PREFIX_BYTES: usize;

    /// The length of the whole frame whose first [`LEAST`](Self::LEAST) bytes are `head`.
    ///
    /// # Errors
    /// When no frame begins so: where the next one would begin is then unknown.
    fn length(head: &[u8]) -> Result<usize, FramingError>;

    /// The event in a whole frame.
    ///
    /// # Errors
    /// When the frame is not what it says.
    fn event<'a>(&'a mut self, frame: &'a [u8], budget: &mut WorkBudget) -> Result<Event<'a>, FramingError>;
}

/// Reads such frames. Memory: one frame at most ([`MAX_EVENT`]), and nothing at all while frames arrive whole.
#[derive(Debug, Default)]
pub struct LengthPrefixed<P> {
    carry: Vec<u8>,
    lost: Option<FramingError>,
    prefix: P,
}

impl<P: LengthPrefix> LengthPrefixed<P> {
    /// A reader of frames of which more is known than that they begin so.
    pub(super) fn of(prefix: P) -> Self {
        Self { carry: Vec::new(), lost: None, prefix }
    }

    /// Feeds one read; `each` is called for every event that it completes, in order.
    ///
    /// # Errors
    /// Once a frame is too large or is none, and for every read after that.
    pub fn push(
        &mut self,
        bytes: &[u8],
        budget: &mut WorkBudget,
        each: impl FnMut(Event<'_>, &mut WorkBudget),
    ) -> Result<(), FramingError> {
        match self.lost {
            Some(lost) => Err(lost),
            None => {
                self.cut(bytes, budget, each).inspect_err(|lost| *self = Self { lost: Some(*lost), ..Self::default() })
            }
        }
    }

    /// Whether one has begun and is not whole.
    pub(super) fn is_inside(&self) -> bool {
        !self.carry.is_empty()
    }

    fn cut(
        &mut self,
        mut bytes: &[u8],
        budget: &mut WorkBudget,
        mut each: impl FnMut(Event<'_>, &mut WorkBudget),
    ) -> Result<(), FramingError> {
        while !self.carry.is_empty() {
            let whole =
                if self.carry.len() < P::MIN_PREFIX_BYTES { P::MIN_PREFIX_BYTES } else { length::<P>(&self.carry)? };
            let missing = whole.saturating_sub(self.carry.len());
            if bytes.len() < missing {
                self.carry.extend_from_slice(bytes);
                return Ok(());
            }
            self.carry.extend_from_slice(bytes.split_off(..missing).unwrap_or_default());
            if length::<P>(&self.carry)? == self.carry.len() {
                each(self.prefix.event(&self.carry, budget)?, budget);
                self.carry.clear();
            }
        }
        while bytes.len() >= P::MIN_PREFIX_BYTES {
            let Some(frame) = bytes.split_off(..length::<P>(bytes)?) else { break };
            each(self.prefix.event(frame, budget)?, budget);
        }
        self.carry.extend_from_slice(bytes);
        Ok(())
    }
}

fn length<P: LengthPrefix>(head: &[u8]) -> Result<usize, FramingError> {
    match P::length(head)? {
        length if length > MAX_EVENT => Err(FramingError::TooLarge),
        length => Ok(length.max(P::MIN_PREFIX_BYTES)),
    }
}
