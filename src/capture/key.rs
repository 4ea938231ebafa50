//! The key of a capture. Without it, a guessed prompt cannot be tested against a block id.
//!
//! Each folder gets a random key at its first capture, in `capture.key`, readable by its owner only. The key is no part
//! of the records: share the records and keep the key. Several captures can share their ids through one configured key
//! file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rand::RngExt as _;

/// File name of the key in the capture folder.
pub const KEY_FILE: &str = "capture.key";
const MIN_KEY_BYTES: usize = 16;
const MAX_KEY_BYTES: usize = 4_096;

/// A secret key, or a key derived from it for one purpose. It has no `Debug`, so it cannot reach a log.
#[derive(Clone)]
pub struct CaptureKey([u8; 32]);

impl CaptureKey {
    /// Reads the key from `given`, else from the folder's own file, which is created if missing. A key file that other
    /// users can read causes only a warning, because secret mounts often set such modes.
    ///
    /// # Errors
    /// If the file cannot be read or created, or holds less than 16 bytes.
    pub fn load_or_create(folder: &Path, given: Option<&Path>) -> io::Result<Self> {
        let own = folder.join(KEY_FILE);
        let path = given.unwrap_or(&own);
        // An empty key file is left by a full disk or by a process killed before it wrote the key.
        if given.is_none() && fs::metadata(&own).map_or(0, |about| about.len()) == 0 {
            let random: [u8; 32] = rand::rng().random();
            let hex = blake3::Hash::from_bytes(random).to_hex();
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&own)?;
            writeln!(file, "{hex}")?;
            file.sync_all()?;
        }
        let named = |error: io::Error| io::Error::new(error.kind(), format!("the key in {}: {error}", path.display()));
        let mut bytes = Vec::new();
        let mut read = || {
            let file = File::open(path)?;
            if is_readable_by_others(&file.metadata()?) {
                let remedy = "chmod 600";
                tracing::warn!(key = %path.display(), remedy, "others can read the key of the capture, and try guesses of prompts with it");
            }
            // Limits the read of a device or another endless file; a few bytes beyond the maximum are enough to reject
            // it.
            file.take(MAX_KEY_BYTES as u64 + MIN_KEY_BYTES as u64).read_to_end(&mut bytes)
        };
        read().map_err(named)?;
        let bytes = bytes.trim_ascii();
        if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&bytes.len()) {
            let expected = format!("expected a key of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes");
            return Err(named(io::Error::new(io::ErrorKind::InvalidData, expected)));
        }
        Ok(Self(blake3::derive_key("streamgauge 2026 capture", bytes)))
    }

    /// A key that no other process has.
    pub fn random() -> Self {
        Self(rand::rng().random())
    }

    /// The key of one day, counted in days since 1970.
    pub fn for_day(&self, day: u64) -> Self {
        Self(*blake3::keyed_hash(&self.0, &day.to_le_bytes()).as_bytes())
    }

    /// The key for blocks cut by a tokenizer. Different tokenizers produce different ids.
    pub fn for_tokenizer(&self, tokenizer: &[u8; 32]) -> Self {
        Self(*blake3::keyed_hash(&self.0, &[&b"tokens"[..], tokenizer].concat()).as_bytes())
    }

    /// A public identifier: equal for equal keys, and useless for recovering the key.
    pub fn id(&self) -> String {
        hex(self.digest(b"key id", b""))
    }

    /// 64 bits of the keyed digest of `bytes`, separated by purpose.
    pub fn digest(&self, purpose: &'static [u8], bytes: &[u8]) -> u64 {
        let mut input = Vec::with_capacity(1 + purpose.len() + bytes.len());
        push_purpose(&mut input, purpose);
        input.extend_from_slice(bytes);
        truncate(&self.hash(&input))
    }

    /// Seeds of a hash whose values never leave this process, separated by purpose.
    pub(super) fn seeds(&self, purpose: &'static [u8]) -> [u64; 4] {
        let digest = *self.hasher(purpose).finalize().as_bytes();
        let (seeds, _) = digest.as_chunks::<8>();
        [0, 1, 2, 3].map(|place| u64::from_le_bytes(seeds[place]))
    }

    pub(super) fn hasher(&self, purpose: &'static [u8]) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        reset_hasher(&mut hasher, purpose);
        hasher
    }

    /// Keyed digest of one contiguous input. An incremental hasher would take two kilobytes.
    pub(super) fn hash(&self, input: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, input).as_bytes()
    }
}

fn is_readable_by_others(file: &Metadata) -> bool {
    file.is_file() && file.permissions().mode() & 0o044 != 0
}

/// Prefixes a digest input with its purpose, for domain separation.
pub(super) fn push_purpose(input: &mut Vec<u8>, purpose: &'static [u8]) {
    input.push(u8::try_from(purpose.len()).unwrap_or(u8::MAX));
    input.extend_from_slice(purpose);
}

/// Resets the hasher and prefixes its input with the purpose, as [`push_purpose`] does.
pub(super) fn reset_hasher<'h>(hasher: &'h mut blake3::Hasher, purpose: &'static [u8]) -> &'h mut blake3::Hasher {
    hasher.reset().update(&[u8::try_from(purpose.len()).unwrap_or(u8::MAX)]).update(purpose)
}

/// A digest as 16 hexadecimal digits.
pub(super) fn hex(digest: u64) -> String {
    let digit = |place: usize| b"0123456789abcdef"[(digest >> (60 - 4 * place) & 0xf) as usize];
    let digits: [u8; 16] = std::array::from_fn(digit);
    std::str::from_utf8(&digits).unwrap_or_default().to_owned()
}

pub(super) fn truncate(digest: &[u8; 32]) -> u64 {
    u64::from_le_bytes(digest.first_chunk().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_random_key_that_only_its_owner_reads() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = |folder: &Path| CaptureKey::load_or_create(folder, None).unwrap().id();
        assert_eq!(id(one.path()), id(one.path()));
        assert_ne!(id(one.path()), id(other.path()));
        assert_eq!(fs::metadata(one.path().join(KEY_FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(other.path().join(KEY_FILE), "").unwrap();
        assert_eq!(id(other.path()), id(other.path()), "an empty one is no key yet");
        let given = one.path().join("given");
        fs::write(&given, "0123456789abcdef\n").unwrap();
        let of = |folder: &Path| CaptureKey::load_or_create(folder, Some(&given)).unwrap();
        assert_eq!(of(one.path()).id(), of(other.path()).id());
        assert_ne!(of(one.path()).for_day(1).id(), of(one.path()).for_day(2).id());
        fs::write(&given, "short").unwrap();
        let endless = Path::new("/dev/zero");
        for path in [&given, endless] {
            let error = CaptureKey::load_or_create(one.path(), Some(path)).err().unwrap().to_string();
            assert_eq!(error, format!("the key in {}: expected a key of 16 to 4096 bytes", path.display()));
        }
        let error = CaptureKey::load_or_create(one.path(), Some(&one.path().join("none"))).err().unwrap().to_string();
        assert!(error.starts_with("the key in /") && error.contains("/none: No such file"), "{error}");
    }
}
