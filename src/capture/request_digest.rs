//! The writer thread's digest of a request body, kept until the request ends.

use super::prompt_hasher::PromptDigest;
use crate::measure::dialect::prompt::PromptExtras;

#[derive(Clone, Debug, Default)]
pub(super) struct RequestDigest {
    pub(super) prompt: Option<PromptDigest>,
    pub(super) extras: PromptExtras,
    /// Digest of the session id in a field of the body.
    pub(super) session: Option<u64>,
    /// Digest of the id of the stored response that the request continues.
    pub(super) previous_response: Option<u64>,
    /// Day of the key that the ids were made with.
    pub(super) day: u64,
    /// The prompt has no blocks, because the capture is behind or the decoded prompt is too large.
    pub(super) without_blocks: bool,
}

impl RequestDigest {
    /// Ids made with another day's key do not match this day's rows.
    pub(super) fn clear_ids(&mut self) {
        (self.session, self.previous_response) = (None, None);
        if let Some(prompt) = &mut self.prompt {
            prompt.blocks.clear();
            prompt.messages.clear();
        }
    }
}
