//! Brotli (RFC 7932).
//!
//! A few bytes can repeatedly request megabyte tables and maps of 16,384 entries. The budget is therefore charged for
//! the decoder's allocations too, not only for input and output.

use brotli_decompressor::{Allocator, BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};

use super::{DecodeError, DecodeStep};
use crate::measure::work_budget::price;

/// Low seven bits of the first byte of a stream with a window beyond RFC 7932's 16 MiB. No browser supports this
/// extension, and it takes up to 1 GiB of memory.
const LARGE_WINDOW: u8 = 0x11;
/// Input bytes per step: they can request at most 0.3 ms of table work.
const MAX_STEP_BYTES: usize = 64;
/// Cost of an input byte, in units; higher than in other codings.
const IN: u64 = 16;
const OUT: u64 = 4;
/// The largest context map, in bytes. Each entry is filled and then inverse-transformed.
const MAX_MAP_BYTES: usize = 16 << 10;
/// Cost of a map entry, in units.
const MAP_ENTRY: u64 = 4;
/// Window bytes, and table entries below, allocated per unit.
const WINDOW_PER_UNIT: usize = 16;
const TABLE_PER_UNIT: usize = 2;

/// Decodes one stream; allocates the decoder on the first byte.
#[derive(Default)]
pub(super) struct BrotliDecoder {
    state: Option<Box<BrotliState<MeteredAllocator, MeteredAllocator, MeteredAllocator>>>,
    ended: bool,
}

impl BrotliDecoder {
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    pub(super) fn step(&mut self, bytes: &[u8], piece: &mut [u8]) -> Result<DecodeStep, DecodeError> {
        if self.ended && bytes.is_empty() {
            return Ok(DecodeStep::default());
        }
        if self.ended {
            return Err(DecodeError::Malformed);
        }
        let mut work = 0;
        if self.state.is_none() {
            if bytes.first().is_some_and(|first| first & 0x7f == LARGE_WINDOW) {
                return Err(DecodeError::Malformed);
            }
            work = price::NEW_DECODER;
        }
        let state = self.state.get_or_insert_with(|| {
            Box::new(BrotliState::new(
                MeteredAllocator::default(),
                MeteredAllocator::default(),
                MeteredAllocator::default(),
            ))
        });
        let bytes = &bytes[..bytes.len().min(MAX_STEP_BYTES)];
        let (mut left, mut used, mut room, mut made, mut total) = (bytes.len(), 0, piece.len(), 0, 0);
        let result =
            BrotliDecompressStream(&mut left, &mut used, bytes, &mut room, &mut made, piece, &mut total, state);
        match result {
            BrotliResult::ResultFailure => return Err(DecodeError::Malformed),
            // Output that did not fit into the piece follows in the next call.
            BrotliResult::ResultSuccess => self.ended = true,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        work += price::DECODER_CALL + used as u64 * IN + made as u64 * OUT;
        work += [&mut state.alloc_u8, &mut state.alloc_u32, &mut state.alloc_hc]
            .map(MeteredAllocator::take)
            .iter()
            .sum::<u64>();
        Ok(DecodeStep { used, made, work })
    }
}

/// An allocator that adds up the cost of allocations.
#[derive(Default)]
struct MeteredAllocator {
    work: u64,
    heap: StandardAlloc,
}

impl MeteredAllocator {
    fn take(&mut self) -> u64 {
        std::mem::take(&mut self.work)
    }
}

impl<T: Clone + Default> Allocator<T> for MeteredAllocator {
    type AllocatedMemory = <StandardAlloc as Allocator<T>>::AllocatedMemory;

    fn alloc_cell(&mut self, cells: usize) -> Self::AllocatedMemory {
        // Maps and windows are byte arrays, and only windows exceed the largest map.
        self.work += match size_of::<T>() {
            1 if cells <= MAX_MAP_BYTES => cells as u64 * MAP_ENTRY,
            1 => (cells / WINDOW_PER_UNIT) as u64,
            _ => (cells / TABLE_PER_UNIT) as u64,
        };
        self.heap.alloc_cell(cells)
    }

    fn free_cell(&mut self, memory: Self::AllocatedMemory) {
        self.heap.free_cell(memory);
    }
}
