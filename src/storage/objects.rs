//! The objects that a URL names: one, all below a prefix, or all that match a pattern.

use super::bucket::Bucket;
use super::error::StorageError;
use super::object_reader::ObjectReader;
use crate::config::StorageUrl;
use crate::measure::glob::glob;

/// An object that a URL names.
#[derive(Clone, Debug)]
pub struct FoundObject {
    bucket: Bucket,
    /// The key.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
}

impl FoundObject {
    /// URL of the object.
    pub fn url(&self) -> StorageUrl {
        self.bucket.url_of(&self.key)
    }

    /// Opens the object.
    pub fn open(&self) -> ObjectReader {
        ObjectReader::of_size(self.bucket.clone(), &self.key, self.size)
    }
}

/// The objects that a URL names, sorted by key. In a pattern `*` stands for any part of one name between slashes.
///
/// # Errors
/// If the storage does not answer, or refuses.
pub fn find_objects(url: &StorageUrl) -> Result<Vec<FoundObject>, StorageError> {
    let bucket = Bucket::open(url)?;
    let names: Vec<&str> = url.key().split('/').filter(|name| !name.is_empty()).collect();
    let mut found = Vec::new();
    descend(&bucket, String::new(), &names, &mut found)?;
    found.sort();
    found.dedup();
    Ok(found.into_iter().map(|(key, size)| FoundObject { bucket: bucket.clone(), key, size }).collect())
}

/// Follows a pattern name by name, so that only levels with a star are listed.
fn descend(
    bucket: &Bucket,
    prefix: String,
    names: &[&str],
    found: &mut Vec<(String, u64)>,
) -> Result<(), StorageError> {
    let stars = names.iter().position(|name| name.contains('*'));
    let literal = &names[..stars.unwrap_or(names.len())];
    let prefix = [&[&*prefix][..], literal].concat().join("/");
    let prefix = prefix.trim_start_matches('/').to_owned();
    let Some(at) = stars else {
        let below = bucket.list(&prefix)?;
        if below.is_empty() && !prefix.is_empty() {
            found.extend(bucket.size(&prefix)?.map(|size| (prefix, size)));
        }
        found.extend(below);
        return Ok(());
    };
    let level = bucket.level(&prefix)?;
    let rest = &names[at + 1..];
    let fits = |key: &str| glob(names[at], key.rsplit('/').next().unwrap_or_default());
    if rest.is_empty() {
        found.extend(level.objects.into_iter().filter(|(key, _)| fits(key)));
    }
    for below in level.prefixes.into_iter().filter(|prefix| fits(prefix)) {
        descend(bucket, below, rest, found)?;
    }
    Ok(())
}
