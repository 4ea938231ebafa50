//! One bucket: puts, lists and reads objects, each with a time limit.

use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutPayload, RetryConfig};

use super::error::StorageError;
use super::http_client::Connector;
use super::io_thread;
use crate::clock::Clock;
use crate::config::{StorageScheme, StorageUrl};
use crate::measure::time::Gap;

/// Time limit of one request. A segment of 16 MiB needs 2.3 Mbit/s.
const REQUEST_TIMEOUT: Gap = Gap::from_millis(60_000);
/// Attempts of a request that reads, and the pause after the first; it doubles.
const MAX_READ_ATTEMPTS: u32 = 5;
const FIRST_READ_PAUSE: Gap = Gap::from_millis(200);
/// Size of the parts in which an object is compared.
const COMPARED_PART_BYTES: usize = 4 << 20;
/// Maximum objects that one listing may hold, at some 200 bytes each.
const MAX_LISTED_OBJECTS: usize = 1_000_000;

/// A bucket, or the root folder of this machine.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    url: StorageUrl,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Objects and common prefixes of one level.
#[derive(Debug, Default)]
pub(super) struct FolderListing {
    pub(super) objects: Vec<(String, u64)>,
    pub(super) prefixes: Vec<String>,
}

impl Bucket {
    /// Opens the bucket of a URL with the credentials of the environment. Sends no request.
    ///
    /// # Errors
    /// If the environment's settings cannot be used.
    pub fn open(url: &StorageUrl) -> Result<Self, StorageError> {
        // Attempts are repeated, counted and logged here and by the uploader.
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let opened: object_store::Result<Arc<dyn ObjectStore>> = match url.scheme() {
            // The checksum is what a bucket with a retention asks for.
            StorageScheme::S3 => AmazonS3Builder::from_env()
                .with_bucket_name(url.bucket())
                .with_checksum_algorithm(Checksum::SHA256)
                .with_retry(once)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            StorageScheme::Gcs => GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(url.bucket())
                .with_retry(once)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            StorageScheme::Azure => MicrosoftAzureBuilder::from_env()
                .with_container_name(url.bucket())
                .with_retry(once)
                .with_http_connector(Connector)
                .build()
                .map(|store| Arc::new(store) as _),
            StorageScheme::File => Ok(Arc::new(LocalFileSystem::new().with_fsync(true))),
        };
        let store = opened.map_err(|error| settings_error(url.scheme(), &error))?;
        Ok(Self { store, url: url.with_key("") })
    }

    /// The URL of an object.
    pub fn url_of(&self, key: &str) -> StorageUrl {
        self.url.with_key(key)
    }

    /// Makes sure that an object with these bytes exists, in one attempt. Returns false if one with other content has the
    /// key. Never replaces one.
    ///
    /// # Errors
    /// If it is not certain that the object exists now.
    pub fn create(&self, key: &str, bytes: &Bytes) -> Result<bool, StorageError> {
        let (store, path, payload) = (Arc::clone(&self.store), to_key(key)?, PutPayload::from(bytes.clone()));
        let put = async move { store.put_opts(&path, payload, PutMode::Create.into()).await };
        match run(put)? {
            Ok(_) => Ok(true),
            // Of one with these bytes, the answer to an earlier attempt was lost.
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                self.is_same(key, bytes)
            }
            Err(error) => Err(StorageError::new(&error)),
        }
    }

    fn is_same(&self, key: &str, bytes: &Bytes) -> Result<bool, StorageError> {
        // An attempt that has timed out here may still be under way there; a second name would store its bytes twice.
        let under_way = || StorageError::Failed("another attempt to store the object is under way".to_owned());
        if self.size(key)?.ok_or_else(under_way)? != bytes.len() as u64 {
            return Ok(false);
        }
        let mut from = 0;
        for part in bytes.chunks(COMPARED_PART_BYTES) {
            let end = from + part.len() as u64;
            if self.read(key, from..end)? != part {
                return Ok(false);
            }
            from = end;
        }
        Ok(true)
    }

    /// Size of an object in bytes; `None` if there is no such object.
    ///
    /// # Errors
    /// If the storage does not answer.
    pub fn size(&self, key: &str) -> Result<Option<u64>, StorageError> {
        let key = to_key(key)?;
        let found = read_again(|| {
            let (store, key) = (Arc::clone(&self.store), key.clone());
            async move { store.head(&key).await }
        });
        match found {
            Ok(meta) => Ok(Some(meta.size)),
            Err(StorageError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A part of an object.
    ///
    /// # Errors
    /// If the storage does not return the part.
    pub fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, StorageError> {
        let key = to_key(key)?;
        read_again(|| {
            let (store, key, range) = (Arc::clone(&self.store), key.clone(), range.clone());
            async move { store.get_range(&key, range).await }
        })
    }

    /// Objects and prefixes right below a prefix.
    pub(super) fn level(&self, prefix: &str) -> Result<FolderListing, StorageError> {
        let prefix = to_key(prefix)?;
        let found = read_again(|| {
            let (store, prefix) = (Arc::clone(&self.store), prefix.clone());
            async move { store.list_with_delimiter(Some(&prefix)).await }
        });
        match found {
            Ok(found) => Ok(FolderListing {
                objects: found.objects.iter().map(named).collect(),
                prefixes: found.common_prefixes.iter().map(ToString::to_string).collect(),
            }),
            // A folder that does not exist is as empty as such a prefix.
            Err(StorageError::NotFound(_)) if self.url.scheme() == StorageScheme::File => Ok(FolderListing::default()),
            Err(error) => Err(error),
        }
    }

    /// All objects below a prefix, with their sizes.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<(String, u64)>, StorageError> {
        let prefix = to_key(prefix)?;
        let found = read_again(|| {
            let (store, prefix) = (Arc::clone(&self.store), prefix.clone());
            async move {
                let mut objects = store.list(Some(&prefix));
                let mut found = Vec::new();
                while let Some(object) = poll_fn(|cx| objects.as_mut().poll_next(cx)).await {
                    if found.len() == MAX_LISTED_OBJECTS {
                        return Ok(Err(too_many()));
                    }
                    found.push(named(&object?));
                }
                Ok(Ok(found))
            }
        });
        found?
    }

    /// Asks the storage for what lies below a prefix, once.
    ///
    /// # Errors
    /// If it does not answer, or refuses.
    pub fn probe(&self, prefix: &str) -> Result<(), StorageError> {
        let (store, prefix) = (Arc::clone(&self.store), to_key(prefix)?);
        match run(async move { store.list_with_delimiter(Some(&prefix)).await.map(drop) })? {
            // A folder is made with the first object in it.
            Err(object_store::Error::NotFound { .. }) if self.url.scheme() == StorageScheme::File => Ok(()),
            result => result.map_err(|error| StorageError::new(&error)),
        }
    }
}

fn too_many() -> StorageError {
    StorageError::Failed(format!(
        "there are more than {MAX_LISTED_OBJECTS} objects; remedy: name a longer prefix, as a day or an hour"
    ))
}

fn named(object: &ObjectMeta) -> (String, u64) {
    (object.location.to_string(), object.size)
}

fn to_key(key: &str) -> Result<Key, StorageError> {
    Key::parse(key).map_err(|_| StorageError::Settings("a key has a name that storage does not allow".to_owned()))
}

/// The client's text names variables and formats, and may quote a value.
fn settings_error(scheme: StorageScheme, _: &object_store::Error) -> StorageError {
    let variables = match scheme {
        StorageScheme::S3 => "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
        StorageScheme::Gcs => "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT_KEY",
        StorageScheme::Azure => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        StorageScheme::File => "the folder",
    };
    StorageError::Settings(format!("a value is missing or malformed; remedy: check {variables} in the environment"))
}

/// Runs one request within its time limit.
fn run<T: Send + 'static>(
    request: impl Future<Output = object_store::Result<T>> + Send + 'static,
) -> Result<object_store::Result<T>, StorageError> {
    let limited = async move { Clock::Monotonic.timeout(REQUEST_TIMEOUT, request).await };
    match io_thread::wait(limited) {
        Ok(Some(result)) => Ok(result),
        Ok(None) => Err(StorageError::Failed(format!("the storage did not answer within {REQUEST_TIMEOUT}"))),
        Err(error) => Err(StorageError::Failed(error.to_string())),
    }
}

/// Runs a request that reads, again if it fails in a way that may pass.
fn read_again<T, F>(mut request: impl FnMut() -> F) -> Result<T, StorageError>
where
    T: Send + 'static,
    F: Future<Output = object_store::Result<T>> + Send + 'static,
{
    let mut pause = FIRST_READ_PAUSE;
    for attempt in 1.. {
        let result = run(request()).and_then(|result| result.map_err(|error| StorageError::new(&error)));
        match result {
            Err(StorageError::Failed(_)) if attempt < MAX_READ_ATTEMPTS => {
                crate::clock::rest(pause);
                pause = Gap::from_nanos(pause.as_nanos() * 2);
            }
            result => return result,
        }
    }
    unreachable!("the loop ends with its last attempt")
}
