//! The URL of a place in object storage. It holds no credentials: those come from the environment.

use std::fmt;
use std::path::{Path, PathBuf};

/// The kind of storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageScheme {
    /// Amazon S3 and servers that speak its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A folder of this machine.
    File,
}

const SCHEMES: [(&str, StorageScheme); 4] = [
    ("s3", StorageScheme::S3),
    ("gs", StorageScheme::Gcs),
    ("az", StorageScheme::Azure),
    ("file", StorageScheme::File),
];

/// A bucket and a key, a prefix of keys, or a pattern of keys in which `*` stands for any part of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageUrl {
    scheme: StorageScheme,
    bucket: String,
    key: String,
}

/// The text is no URL of object storage. It is never quoted, because it may hold credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER, without user, port, query \
     or fragment; remedy: give credentials in the environment, as in AWS_ACCESS_KEY_ID"
)]
pub struct InvalidStorageUrl;

impl StorageUrl {
    /// Parses a text; `None` if it is no URL, but the path of a file.
    ///
    /// # Errors
    /// If the scheme is unknown, or the text has more than a bucket and a key.
    pub fn parse(text: &str) -> Option<Result<Self, InvalidStorageUrl>> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_scheme.then(|| Self::with_scheme(scheme, rest).ok_or(InvalidStorageUrl))
    }

    /// Parses a path of the command line; `None` if it is no URL.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn of_path(path: &Path) -> Option<Result<Self, InvalidStorageUrl>> {
        Self::parse(path.to_str()?)
    }

    fn with_scheme(scheme: &str, rest: &str) -> Option<Self> {
        let (_, scheme) = SCHEMES.into_iter().find(|(name, _)| *name == scheme)?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_bucket = match scheme {
            StorageScheme::File => bucket.is_empty() && rest.starts_with('/'),
            _ => !bucket.is_empty() && bucket.len() <= 255 && bucket.bytes().all(is_plain),
        };
        let parts: Vec<&str> = key.split('/').filter(|part| !part.is_empty()).collect();
        let is_key = parts.iter().all(|part| {
            !matches!(*part, "." | "..") && !part.contains(['?', '#', '\\']) && !part.contains(char::is_control)
        });
        (is_bucket && is_key).then(|| Self { scheme, bucket: bucket.to_owned(), key: parts.join("/") })
    }

    /// The kind of storage.
    pub fn scheme(&self) -> StorageScheme {
        self.scheme
    }

    /// Name of the bucket; empty for a folder.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key, without slashes at its ends.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// True if `*` stands in the key.
    pub fn is_pattern(&self) -> bool {
        self.key.contains('*')
    }

    /// This bucket with another key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// The URL as a path of the command line.
    pub fn to_path(&self) -> PathBuf {
        self.to_string().into()
    }
}

impl fmt::Display for StorageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = SCHEMES.iter().find(|(_, scheme)| *scheme == self.scheme).map_or("", |(name, _)| name);
        write!(f, "{scheme}://{}/{}", self.bucket, self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_a_bucket_and_a_key() {
        for (text, shown, key) in [
            ("s3://bucket", "s3://bucket/", ""),
            ("s3://bucket/a//b/", "s3://bucket/a/b", "a/b"),
            ("gs://b/dt=2026-11-2*/", "gs://b/dt=2026-11-2*", "dt=2026-11-2*"),
            ("file:///var/lake", "file:///var/lake", "var/lake"),
        ] {
            let url = StorageUrl::parse(text).unwrap().unwrap();
            assert_eq!((url.to_string().as_str(), url.key()), (shown, key));
            assert_eq!(StorageUrl::of_path(&url.to_path()), Some(Ok(url)));
        }
        for path in ["capture", "/var/capture", "-", "a b://c", "://x"] {
            assert_eq!(StorageUrl::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_url_with_more_than_a_bucket_and_a_key_is_rejected_and_not_quoted() {
        for text in [
            "s3://AKIACANARY:secret@bucket/a",
            "s3://bucket/a?sig=canary",
            "s3:///a",
            "file://host/a",
            "file:relative://a",
            "https://bucket.example/a",
            "s3://bucket/../a",
        ] {
            let Some(parsed) = StorageUrl::parse(text) else { continue };
            let message = parsed.unwrap_err().to_string().to_lowercase();
            assert!(!message.contains("canary") && !message.contains("secret"), "{message}");
        }
    }
}
