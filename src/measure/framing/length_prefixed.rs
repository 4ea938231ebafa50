//! Splits reads into frames that start with their length; reads need not match frame boundaries.

use super::{Event, FramingError, MAX_EVENT};
use crate::measure::work_budget::WorkBudget;

/// Parses the start of a frame and its content.
pub trait LengthPrefix: Default {
    /// Size of the shortest frame, in bytes.
    const MIN_PREFIX_BYTES: usize;

    /// The length of the whole frame, from its first [`MIN_PREFIX_BYTES`](Self::MIN_PREFIX_BYTES) bytes.
    ///
    /// # Errors
    /// If `head` is not the start of a frame; the start of the next frame is then unknown.
    fn length(head: &[u8]) -> Result<usize, FramingError>;

    /// The event in a complete frame.
    ///
    /// # Errors
    /// If the frame's content is invalid.
    fn event<'a>(&'a mut self, frame: &'a [u8], budget: &mut WorkBudget) -> Result<Event<'a>, FramingError>;
}

/// Reads length-prefixed frames. Memory: at most one frame ([`MAX_EVENT`]), and nothing while frames arrive in one
/// read.
#[derive(Debug, Default)]
pub struct LengthPrefixed<P> {
    carry: Vec<u8>,
    lost: Option<FramingError>,
    prefix: P,
}

impl<P: LengthPrefix> LengthPrefixed<P> {
    /// For prefixes that need parameters.
    pub(super) fn of(prefix: P) -> Self {
        Self { carry: Vec::new(), lost: None, prefix }
    }

    /// Processes one read; calls `each` for every completed event, in order.
    ///
    /// # Errors
    /// If a frame is invalid or exceeds [`MAX_EVENT`]. All later reads fail too.
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

    /// True if a frame has started and is incomplete.
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
