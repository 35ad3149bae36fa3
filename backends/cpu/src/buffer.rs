#![allow(unsafe_code, reason = "tensors are raw memory that several threads work on at once")]
//! Host memory of tensors, and the views through which kernels reach it.
//!
//! All unsafe access to tensor memory is in this file. It relies on three rules:
//!
//! 1. Tensor memory is accessed only under the device's lock: by a queue that copies, or by one
//!    region of the pool.
//! 2. An op does not read rows that it writes (the recorder refuses such ops), except in place
//!    within one chunk.
//! 3. Within a phase, chunks write disjoint ranges, and none reads a range that another writes.

use std::alloc::{Layout as Extent, alloc_zeroed, dealloc};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::MutexGuard;

use bytemuck::AnyBitPattern;
use hal::format::TransposedLayout;
use hal::{Layout, Operand, RawBuffer, SharedBytes, Tensor};

use crate::pages::{LARGE, Pages, first_bytes, on_nodes};
use crate::reference::Memory;
use crate::simd::Matrix;
use crate::thread_pool::ThreadPool;

/// Alignment of memory allocated here: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// Memory of one tensor: allocated here, or used in place.
pub(crate) struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
    keep: Keep,
    locked: bool,
}

enum Keep {
    Allocated { base: NonNull<u8>, extent: Extent },
    Mapped { _pages: Pages },
    Source { _bytes: SharedBytes },
}

/// The address of memory that threads access in disjoint ranges.
#[derive(Clone, Copy)]
struct Shared(NonNull<u8>);

impl Shared {
    fn get(&self) -> *mut u8 {
        self.0.as_ptr()
    }
}

// SAFETY: an address; every access through it has its own argument.
unsafe impl Sync for Shared {}

// SAFETY: the buffer keeps the memory alive and in place; access follows the rules above.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.len)
    }
}

impl RawBuffer for HostBuffer {}

impl HostBuffer {
    /// Zeros, paged in as they are first accessed; `None` if memory is exhausted.
    pub(crate) fn zeroed(len: usize) -> Option<HostBuffer> {
        if len >= LARGE {
            let mut pages = Pages::new(len).ok()?;
            let start = pages.start();
            return Some(HostBuffer {
                start,
                len,
                keep: Keep::Mapped { _pages: pages },
                locked: false,
            });
        }
        // Aligned by hand: for a large alignment the allocator would touch every page.
        let extent = Extent::from_size_align(len.checked_add(ALIGN)?, 16).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(extent) })?;
        let shift = base.align_offset(ALIGN);
        // SAFETY: the allocation is ALIGN bytes larger than `len`, and the shift is below ALIGN.
        let start = unsafe { base.add(shift) };
        Some(HostBuffer { start, len, keep: Keep::Allocated { base, extent }, locked: false })
    }

    /// Uses `source` in place, read-only.
    pub(crate) fn kept(source: SharedBytes) -> HostBuffer {
        let bytes: &[u8] = (*source).as_ref();
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        HostBuffer { start, len, keep: Keep::Source { _bytes: source }, locked: false }
    }

    /// Makes the system place the pages on the nodes with the given CPUs, a range for each, unless
    /// they were accessed before. For a mapped file this reads the pages that are not in memory.
    pub(crate) fn place(&mut self, nodes: &[Vec<usize>]) {
        if nodes.is_empty() || self.len < LARGE {
            return;
        }
        let (start, own) = (Shared(self.start), self.is_writable());
        on_nodes(self.len, nodes, |range| {
            for at in first_bytes(range) {
                // SAFETY: inside the memory, to which no one else has access yet: the buffer is
                // borrowed exclusively, and the nodes' ranges are disjoint. Own memory is written
                // with the value just read, a file's is only read.
                unsafe {
                    let byte = start.get().add(at);
                    let value = byte.read_volatile();
                    if own {
                        byte.write_volatile(value);
                    }
                }
            }
        });
    }

    /// Locks the memory, so that the system cannot page it out.
    ///
    /// # Errors
    /// The system's error.
    #[cfg(unix)]
    pub(crate) fn lock(&mut self) -> std::io::Result<()> {
        if self.len > 0 {
            // SAFETY: memory of this length, which the buffer keeps; locking changes nothing in it.
            unsafe { rustix::mm::mlock(self.start.as_ptr().cast(), self.len)? };
            self.locked = true;
        }
        Ok(())
    }

    /// See the version above.
    #[cfg(not(unix))]
    pub(crate) fn lock(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Whether the memory is owned by the buffer.
    pub(crate) fn is_writable(&self) -> bool {
        !matches!(self.keep, Keep::Source { .. })
    }

    /// All bytes of a buffer that is not shared yet.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_writable(), "memory used in place is not written");
        // SAFETY: own zeroed memory of this length, borrowed for as long as the buffer is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        #[cfg(unix)]
        if self.locked {
            // SAFETY: as in `lock`. If it fails, the memory stays locked until it is given back.
            let _ = unsafe { rustix::mm::munlock(self.start.as_ptr().cast(), self.len) };
        }
        if let Keep::Allocated { base, extent } = self.keep {
            // SAFETY: allocated in `zeroed` with this layout; the views' programs hold the tensor.
            unsafe { dealloc(base.as_ptr(), extent) }
        }
    }
}

/// Rows that an op reads, `stride` values apart.
pub(crate) struct Reads<T> {
    start: *const T,
    n_rows: usize,
    n_cols: usize,
    stride: usize,
}

/// Rows that an op writes. Each access must be the only one; see the head of this file.
pub(crate) struct Writes<T> {
    start: *mut T,
    n_rows: usize,
    n_cols: usize,
}

impl<T> Clone for Reads<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Reads<T> {}
impl<T> Clone for Writes<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Writes<T> {}

// SAFETY: views are used under the rules above, which make them shareable.
unsafe impl<T: Sync> Send for Reads<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Reads<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Writes<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Writes<T> {}

impl<T> fmt::Debug for Reads<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reads[{}, {}]", self.n_rows, self.n_cols)
    }
}

impl<T> fmt::Debug for Writes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writes[{}, {}]", self.n_rows, self.n_cols)
    }
}

impl<T: AnyBitPattern> Reads<T> {
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(crate) fn row(&self, row: usize) -> &[T] {
        self.rows(row..row + 1)
    }

    pub(crate) fn rows(&self, rows: Range<usize>) -> &[T] {
        assert!(rows.start <= rows.end && rows.end <= self.n_rows, "rows outside the view");
        assert!(self.stride == self.n_cols || rows.len() < 2, "rows do not follow each other");
        // SAFETY: inside the view, alive and initialised; it is not written now (2 and 3 above).
        unsafe {
            std::slice::from_raw_parts(
                self.start.add(rows.start * self.stride),
                rows.len() * self.n_cols,
            )
        }
    }

    pub(crate) fn all(&self) -> &[T] {
        self.rows(0..self.n_rows)
    }
}

impl Reads<u8> {
    /// The rows including the gaps between them.
    pub(crate) fn matrix(&self) -> Matrix<'_> {
        let len = match self.n_rows {
            0 => 0,
            n => (n - 1) * self.stride + self.n_cols,
        };
        // SAFETY: from the first byte of the view to its last, whose memory is alive and
        // initialised; the gaps between its rows belong to the same buffer, and weights are not
        // written.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, len) };
        Matrix::new(bytes, self.n_cols, self.stride)
    }
}

impl<T: AnyBitPattern> Writes<T> {
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_cols(&self) -> usize {
        self.n_cols
    }

    pub(crate) fn row(&self, row: usize) -> &mut [T] {
        self.part(row, 0..self.n_cols)
    }

    #[allow(clippy::mut_from_ref, reason = "parts are disjoint: see the head of this file")]
    pub(crate) fn part(&self, row: usize, cols: Range<usize>) -> &mut [T] {
        let inside = row < self.n_rows && cols.start <= cols.end && cols.end <= self.n_cols;
        assert!(inside, "part outside the view");
        // SAFETY: inside the view, alive and initialised; no other chunk uses it (3 above).
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(row * self.n_cols + cols.start),
                cols.len(),
            )
        }
    }

    /// One row, for reading in a phase that does not write it.
    pub(crate) fn reads_row(&self, row: usize) -> &[T] {
        self.reads_rows(row..row + 1)
    }

    /// Some rows, for reading in a phase that does not write them.
    pub(crate) fn reads_rows(&self, rows: Range<usize>) -> &[T] {
        assert!(rows.start <= rows.end && rows.end <= self.n_rows, "rows outside the view");
        // SAFETY: inside the view, alive and initialised; not written in this phase (3 above).
        unsafe {
            std::slice::from_raw_parts(
                self.start.add(rows.start * self.n_cols),
                rows.len() * self.n_cols,
            )
        }
    }

    /// The same rows, for reading in a phase that does not write them.
    pub(crate) fn reads(&self) -> Reads<T> {
        let Writes { start, n_rows, n_cols } = *self;
        Reads { start, n_rows, n_cols, stride: n_cols }
    }
}

/// A range of the workspace: `[n_rows, n_cols]` of `T` from byte `at` on.
#[derive(Debug)]
pub(crate) struct Span<T> {
    at: usize,
    n_rows: usize,
    n_cols: usize,
    of: PhantomData<T>,
}

/// Lays out the workspace of one op; planning and compiling both use it.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Bytes so far.
    pub(crate) bytes: usize,
}

impl Scratch {
    pub(crate) fn take<T>(&mut self, n_rows: usize, n_cols: usize) -> Span<T> {
        let at = self.bytes.next_multiple_of(ALIGN);
        self.bytes =
            at.saturating_add(n_rows.saturating_mul(n_cols).saturating_mul(size_of::<T>()));
        Span { at, n_rows, n_cols, of: PhantomData }
    }
}

/// Resolves tensors to views for one program.
#[derive(Debug)]
pub(crate) struct Binder<'a> {
    workspace: Option<&'a Tensor>,
}

impl<'a> Binder<'a> {
    /// A binder for ops that share `workspace`.
    ///
    /// # Safety
    /// The views may be used only while their tensors live, and by the rules at the head of this
    /// file.
    pub(crate) unsafe fn new(workspace: Option<&'a Tensor>) -> Binder<'a> {
        Binder { workspace }
    }

    fn buffer(tensor: &Tensor) -> &HostBuffer {
        tensor.raw().expect("tensors of this device are host buffers")
    }

    /// Start of a tensor in rows, bytes of a row, and from one row to the next.
    fn locate_rows(tensor: &Tensor) -> (*mut u8, usize, usize) {
        let (buffer, desc) = (Self::buffer(tensor), tensor.desc());
        let bytes = |n_cols| desc.format.row_bytes(n_cols).expect("tensors have whole blocks");
        let (row, stride) = (bytes(desc.n_cols), bytes(tensor.whole().n_cols));
        let (at, first) = (bytes(tensor.first_col()), tensor.first_row() * stride);
        assert!(desc.layout == Layout::Rows, "{desc} is not in rows");
        let inside = at + row <= stride && first + desc.n_rows * stride <= buffer.len;
        assert!(inside, "{desc} does not fit its buffer");
        // SAFETY: inside the buffer, as just checked.
        (unsafe { buffer.start.as_ptr().add(first + at) }, row, stride)
    }

    /// Start and bytes per row of a tensor whose rows are adjacent.
    fn locate(tensor: &Tensor) -> (*mut u8, usize) {
        let (start, row, stride) = Self::locate_rows(tensor);
        assert!(row == stride, "only matrix products read columns of {}", tensor.whole());
        (start, row)
    }

    /// The values of a tensor whose format is `T` in memory (F32, U32), or its bytes.
    pub(crate) fn read<T: AnyBitPattern>(&self, tensor: &Tensor) -> Reads<T> {
        let (start, row, stride) = Self::locate_rows(tensor);
        let start = start.cast_const().cast::<T>();
        assert!(start.is_aligned(), "{} is not aligned", tensor.desc());
        let [n_cols, stride] = [row, stride].map(|bytes| bytes / size_of::<T>());
        Reads { start, n_rows: tensor.desc().n_rows, n_cols, stride }
    }

    /// See [`Binder::read`].
    pub(crate) fn write<T: AnyBitPattern>(&self, tensor: &Tensor) -> Writes<T> {
        assert!(Self::buffer(tensor).is_writable(), "memory used in place is not written");
        let Reads { start, n_rows, n_cols, stride } = self.read::<T>(tensor);
        assert!(stride == n_cols, "columns are not written");
        Writes { start: start.cast_mut(), n_rows, n_cols }
    }

    /// All bytes of the buffer behind a view, as one row.
    pub(crate) fn whole(&self, tensor: &Tensor) -> Reads<u8> {
        let buffer = Self::buffer(tensor);
        let start = buffer.start.as_ptr();
        Reads { start, n_rows: 1, n_cols: buffer.len, stride: buffer.len }
    }

    /// Access to tensor memory for the reference.
    pub(crate) fn memory(&self) -> HostMemory {
        HostMemory(())
    }

    /// A transposed tensor: its layout, all its bytes, and the slot of its first row.
    pub(crate) fn transposed(&self, tensor: &Tensor) -> (TransposedLayout, Reads<u8>, usize) {
        let layout = hal::pack::transposed(&tensor.whole()).expect("packed by this layout");
        let bytes = self.whole(tensor);
        assert!(layout.n_bytes == bytes.n_cols, "{} does not fill its buffer", tensor.desc());
        (layout, bytes, tensor.first_row())
    }

    /// A range of the workspace.
    pub(crate) fn scratch<T: AnyBitPattern>(&self, span: &Span<T>) -> Writes<T> {
        let (n_rows, n_cols) = (span.n_rows, span.n_cols);
        let bytes = n_rows * n_cols * size_of::<T>();
        let start = match self.workspace.map(Self::buffer) {
            Some(buffer) => {
                assert!(span.at + bytes <= buffer.len, "the workspace is smaller than planned");
                // SAFETY: inside the buffer, as just checked; its start is aligned to ALIGN.
                unsafe { buffer.start.as_ptr().add(span.at) }.cast::<T>()
            }
            None => {
                assert!(bytes == 0, "an op with scratch was given no workspace");
                NonNull::<T>::dangling().as_ptr()
            }
        };
        Writes { start, n_rows, n_cols }
    }
}

/// Tensor memory for a queue that holds the device's lock.
pub(crate) struct Locked<'a>(PhantomData<&'a mut ThreadPool>);

impl<'a> Locked<'a> {
    /// The guard proves that nothing else accesses tensor memory while it is borrowed.
    pub(crate) fn new(_lock: &'a mut MutexGuard<'_, ThreadPool>) -> Locked<'a> {
        Locked(PhantomData)
    }

    /// The bytes of a view of whole rows.
    pub(crate) fn bytes<'b>(&'b self, tensor: &'b Tensor) -> &'b [u8] {
        let (start, row) = Binder::locate(tensor);
        // SAFETY: inside the buffer, which the tensor keeps alive; the lock is held, and no
        // mutable slice exists.
        unsafe { std::slice::from_raw_parts(start, tensor.desc().n_rows * row) }
    }

    /// The bytes of a view of whole rows, writable.
    pub(crate) fn bytes_mut<'b>(&'b mut self, tensor: &'b Tensor) -> &'b mut [u8] {
        let (start, row) = Binder::locate(tensor);
        assert!(Binder::buffer(tensor).is_writable(), "memory used in place is not written");
        // SAFETY: as above; this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(start, tensor.desc().n_rows * row) }
    }

    /// All bytes of the buffer behind a view, writable.
    pub(crate) fn whole_mut<'b>(&'b mut self, tensor: &'b Tensor) -> &'b mut [u8] {
        let buffer = Binder::buffer(tensor);
        assert!(buffer.is_writable(), "memory used in place is not written");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.len) }
    }

    /// Copies one view to another of the same shape that does not overlap it.
    pub(crate) fn copy(&mut self, src: &Tensor, dst: &Tensor) {
        assert!(
            src.desc() == dst.desc() && !src.overlaps(dst),
            "views of different shapes or overlapping"
        );
        let (from, row) = Binder::locate(src);
        let to = self.bytes_mut(dst);
        // SAFETY: both have this length, as just checked, and do not overlap.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), src.desc().n_rows * row) }
    }
}

/// Host memory for the reference, which runs on one worker while the others are idle.
#[derive(Debug)]
pub(crate) struct HostMemory(());

impl Memory for HostMemory {
    fn read(&self, tensor: &Tensor, f: &mut dyn FnMut(&[u8])) {
        let buffer = Binder::buffer(tensor);
        // SAFETY: the tensor keeps the buffer alive; only this worker is active and calls are not
        // nested.
        f(unsafe { std::slice::from_raw_parts(buffer.start.as_ptr(), buffer.len) });
    }

    fn write(&self, tensor: &Tensor, f: &mut dyn FnMut(&mut [u8])) {
        let buffer = Binder::buffer(tensor);
        assert!(buffer.is_writable(), "memory used in place is not written");
        // SAFETY: as above.
        f(unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.len) });
    }
}
