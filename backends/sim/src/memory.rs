//! The device's memory: bytes that only this crate can access.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cpu::reference::Memory;
use hal::{Bytes, Operand, RawBuffer, Result, Tensor};

use crate::shared::DeviceState;

/// Contents of new memory: NaN in every float format, and an invalid row number.
const POISON: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct SimBuffer {
    /// Words, so that the bytes are aligned for every format. Readers clone the `Arc` and release
    /// the lock; a writer copies the words if a reader still holds them. One queue may therefore
    /// refill a slot of a pack while another queue reads other slots.
    words: Mutex<Arc<Vec<u64>>>,
    len: usize,
    size: Bytes,
    shared: Arc<DeviceState>,
}

impl RawBuffer for SimBuffer {}

impl SimBuffer {
    /// `len` poisoned bytes.
    pub(crate) fn new(shared: &Arc<DeviceState>, label: &str, len: usize) -> Result<SimBuffer> {
        let size = allocation_size(len);
        shared.allocate(label, size)?;
        let words = Mutex::new(Arc::new(vec![POISON; len.div_ceil(8)]));
        Ok(SimBuffer { words, len, size, shared: Arc::clone(shared) })
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        let words = Arc::clone(&self.words.lock().unwrap_or_else(PoisonError::into_inner));
        f(&bytemuck::cast_slice(&words)[..self.len])
    }

    /// `f` must not access this buffer by other calls, because they block until `f` returns.
    pub(crate) fn write<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let words: &mut Vec<u64> = Arc::make_mut(&mut *words);
        f(&mut bytemuck::cast_slice_mut(words)[..self.len])
    }
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        self.shared.free(self.size);
    }
}

pub(crate) fn allocation_size(len: usize) -> Bytes {
    let granule = crate::SimOptions::GRANULE.0;
    Bytes((len as u64).div_ceil(granule).saturating_mul(granule))
}

pub(crate) fn buffer(tensor: &Tensor) -> &SimBuffer {
    tensor.raw().expect("hal rejects tensors of another backend")
}

/// The byte range of a plain tensor's rows in its buffer.
pub(crate) fn span(tensor: &Tensor) -> Range<usize> {
    let desc = tensor.desc();
    let row = desc.format.row_bytes(desc.n_cols).expect("tensors have whole blocks per row");
    tensor.first_row() * row..(tensor.first_row() + desc.n_rows) * row
}

/// Gives [`cpu::reference`] access to the device's memory.
pub(crate) struct SimMemory;

impl Memory for SimMemory {
    fn read(&self, tensor: &Tensor, f: &mut dyn FnMut(&[u8])) {
        buffer(tensor).read(f);
    }

    fn write(&self, tensor: &Tensor, f: &mut dyn FnMut(&mut [u8])) {
        buffer(tensor).write(f);
    }
}
