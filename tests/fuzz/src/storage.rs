//! Object storage that holds nothing: fuzzers open no connection.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

use crate::config::StorageUrl;

#[derive(Clone, Debug, thiserror::Error)]
#[error("fuzzers have no storage")]
pub struct StorageError;

/// No object can be opened.
#[derive(Clone, Debug)]
pub enum ObjectReader {}

impl ObjectReader {
    pub fn open(_: &StorageUrl) -> Result<Option<Self>, StorageError> {
        Err(StorageError)
    }

    #[must_use]
    pub fn with_small_parts(self) -> Self {
        self
    }

    pub fn size(&self) -> u64 {
        match *self {}
    }
}

impl Read for ObjectReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl BufRead for ObjectReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        match *self {}
    }

    fn consume(&mut self, _: usize) {
        match *self {}
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        match *self {}
    }
}

#[derive(Clone, Debug)]
pub struct FoundObject {
    pub key: String,
    pub size: u64,
    reader: ObjectReader,
}

impl FoundObject {
    pub fn url(&self) -> StorageUrl {
        match self.reader {}
    }

    pub fn open(&self) -> ObjectReader {
        match self.reader {}
    }
}

pub fn find_objects(_: &StorageUrl) -> Result<Vec<FoundObject>, StorageError> {
    Err(StorageError)
}
