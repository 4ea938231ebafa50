//! Reads Parquet from object storage part by part.

use std::io::{Seek as _, SeekFrom};

use bytes::Bytes;
use parquet::errors::Result;
use parquet::file::reader::{ChunkReader, Length};

use crate::storage::ObjectReader;

impl Length for ObjectReader {
    fn len(&self) -> u64 {
        self.size()
    }
}

impl ChunkReader for ObjectReader {
    type T = Self;

    fn get_read(&self, start: u64) -> Result<Self> {
        let mut reader = self.clone();
        reader.seek(SeekFrom::Start(start))?;
        Ok(reader)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        Ok(self.read_at(start, length)?)
    }
}
