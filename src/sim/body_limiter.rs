//! Reads request bodies, with a limit per body and one for all bodies together.

use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::api_error::ApiError;

/// Maximum bytes of all bodies in memory.
const MAX_HELD: usize = 1 << 30;

/// Bytes per semaphore permit.
const UNIT: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct BodyLimiter {
    /// Largest body, in bytes.
    most: usize,
    /// One permit per [`UNIT`].
    room: Semaphore,
}

impl BodyLimiter {
    /// Accepts bodies of at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { most, room: Semaphore::new(MAX_HELD / UNIT) }
    }

    /// Reads a body. The caller must hold the returned permit as long as the bytes.
    pub(super) async fn read(&self, mut body: Incoming) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), ApiError> {
        if body.size_hint().lower() > self.most as u64 {
            return Err(ApiError::too_large(self.most));
        }
        let (mut bytes, mut room): (_, Option<SemaphorePermit<'_>>) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| ApiError::bad_request("The request body broke off."))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > self.most {
                return Err(ApiError::too_large(self.most));
            }
            bytes.extend_from_slice(&data);
            let held = room.as_ref().map_or(0, SemaphorePermit::num_permits);
            let missing = bytes.len().div_ceil(UNIT).saturating_sub(held);
            let missing = u32::try_from(missing).unwrap_or(u32::MAX);
            let more = self.room.try_acquire_many(missing).map_err(|_| ApiError::no_room())?;
            match &mut room {
                Some(room) => room.merge(more),
                None => room = Some(more),
            }
        }
        Ok((bytes, room))
    }
}
