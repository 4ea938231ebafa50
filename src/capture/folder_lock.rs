//! The lock that gives a capture's folder to one process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Reason why a path is no folder.
pub(super) const NOT_A_FOLDER: &str = "it is, or lies in, a file; remedy: name a folder";
const LOCK_FILE: &str = "capture.lock";

/// The lock of a folder, until it is dropped.
pub(super) struct FolderLock(Arc<File>);

impl FolderLock {
    /// Creates the folder if missing, and locks it.
    ///
    /// # Errors
    /// If the folder cannot be created or written, or another process captures to it.
    pub(super) fn acquire(folder: &Path) -> io::Result<Self> {
        let lock = Self::create(folder)?;
        lock.0.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::new(io::ErrorKind::ResourceBusy, "another process captures into it"),
            TryLockError::Error(error) => error,
        })?;
        Ok(lock)
    }

    /// Creates the folder if missing, and locks it when the predecessor of this process exits.
    ///
    /// # Errors
    /// If the folder cannot be created or written.
    pub(super) fn take_over(folder: &Path) -> io::Result<Self> {
        let lock = Self::create(folder)?;
        let file = Arc::clone(&lock.0);
        // The predecessor holds the lock until its streams end, which may take minutes.
        let wait = move || drop(file.lock());
        thread::Builder::new().name("capture-lock".to_owned()).spawn(wait)?;
        Ok(lock)
    }

    fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => io::Error::new(error.kind(), NOT_A_FOLDER),
            _ => error,
        })?;
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK_FILE))?;
        Ok(Self(Arc::new(file)))
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // A child process between its fork and its exec has a copy of the file, and a close would leave it locked.
        let _unlocked = self.0.unlock().is_ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_though_a_child_process_still_has_a_copy_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::acquire(folder.path()).unwrap();
        let _copy = first.0.try_clone().unwrap();
        assert!(FolderLock::acquire(folder.path()).is_err());
        drop(first);
        assert!(FolderLock::acquire(folder.path()).is_ok());
    }
}
