//! Where closed segments are uploaded.

use crate::config::StorageUrl;

/// A prefix of object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadTarget {
    /// The bucket and the prefix.
    pub url: StorageUrl,
    /// Name of this instance in the layout, as a pod's.
    pub instance: String,
}
