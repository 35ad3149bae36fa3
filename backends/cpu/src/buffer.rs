#![allow(unsafe_code, reason = "several threads access tensor memory at the same time")]
//! Host memory of tensors, and the views through which kernels access tensor memory.
//!
//! All unsafe access to tensor memory is in this file and in `views`. It relies on three rules:
//!
//! 1. Tensor memory is accessed only under the device's lock: by a queue that copies data, or by
//!    one parallel region of the thread pool.
//! 2. An op reads no rows that it writes (the recorder refuses such ops), except that a chunk may
//!    update its own rows in place.
//! 3. Within a phase, chunks write disjoint ranges, and no chunk reads another chunk's output.

use std::alloc::{Layout as Extent, alloc_zeroed, dealloc};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::MutexGuard;

use bytemuck::AnyBitPattern;
use hal::format::TransposedLayout;
use hal::{Layout, Operand, RawBuffer, RowTable, SharedBytes, Tensor};

use crate::pages::{LARGE, Pages, for_each_node, page_offsets};
use crate::reference::Memory;
use crate::thread_pool::ThreadPool;

mod views;

pub(crate) use views::{ReadView, WeightRows, WriteView};

/// Alignment of allocated tensor memory in bytes: a cache line, and the widest SIMD vector.
pub(crate) const ALIGN: usize = 64;

/// Memory of one tensor: allocated by this backend, or source bytes used in place.
pub(crate) struct HostBuffer {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// Bytes from one row of the whole tensor to the next; `None` if rows are adjacent.
    pub(crate) pitch: Option<usize>,
    /// Where the rows of the whole tensor are in the memory; `None` if they are in order.
    pub(crate) table: Option<RowTable>,
    #[cfg_attr(not(any(unix, windows)), expect(dead_code, reason = "nothing locks memory"))]
    locked: bool,
}

enum Owner {
    Allocated { base: NonNull<u8>, extent: Extent },
    Mapped { _pages: Pages },
    Source { _bytes: SharedBytes },
}

/// The address of memory that threads access in disjoint ranges.
#[derive(Clone, Copy)]
struct SharedBuffer(NonNull<u8>);

impl SharedBuffer {
    fn get(&self) -> *mut u8 {
        self.0.as_ptr()
    }
}

// SAFETY: this is only an address; each access through it states its own safety argument.
unsafe impl Sync for SharedBuffer {}

// SAFETY: the buffer keeps the memory alive at a fixed address; accesses follow the rules above.
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
    /// Allocates `len` zero bytes, paged in on first access; `None` if memory is exhausted.
    pub(crate) fn zeroed(len: usize) -> Option<HostBuffer> {
        if len >= LARGE {
            let mut pages = Pages::new(len).ok()?;
            let (start, owner) = (pages.start(), Owner::Mapped { _pages: pages });
            return Some(HostBuffer { start, len, owner, pitch: None, table: None, locked: false });
        }
        // Aligned by hand, because with a large alignment the allocator would touch every page.
        let extent = Extent::from_size_align(len.checked_add(ALIGN)?, 16).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(extent) })?;
        let shift = base.align_offset(ALIGN);
        // SAFETY: the allocation is ALIGN bytes larger than `len`, and the shift is below ALIGN.
        let start = unsafe { base.add(shift) };
        let owner = Owner::Allocated { base, extent };
        Some(HostBuffer { start, len, owner, pitch: None, table: None, locked: false })
    }

    /// Uses `source` in place, read-only.
    pub(crate) fn from_shared(source: SharedBytes) -> HostBuffer {
        let bytes: &[u8] = (*source).as_ref();
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        let owner = Owner::Source { _bytes: source };
        HostBuffer { start, len, owner, pitch: None, table: None, locked: false }
    }

    /// Spreads untouched pages of a large buffer over NUMA nodes, each given as its CPUs: a thread
    /// on each node touches one range. Pages of a mapped file are read from disk if necessary.
    pub(crate) fn place(&mut self, nodes: &[Vec<usize>]) {
        if nodes.is_empty() || self.len < LARGE {
            return;
        }
        let (start, own) = (SharedBuffer(self.start), self.is_writable());
        for_each_node(self.len, nodes, |range| {
            for at in page_offsets(range) {
                // SAFETY: the byte is inside the buffer. No other thread accesses this byte: the
                // buffer is borrowed exclusively and the nodes' ranges are disjoint. Allocated
                // memory is rewritten with the value just read; file memory is only read.
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

    /// Locks the memory, so the system cannot page it out.
    ///
    /// # Errors
    /// The error of `mlock` or `VirtualLock`.
    #[cfg(any(unix, windows))]
    pub(crate) fn lock(&mut self) -> std::io::Result<()> {
        if self.len > 0 {
            #[cfg(unix)]
            // SAFETY: the buffer owns `len` bytes from `start`; locking does not change them.
            unsafe {
                rustix::mm::mlock(self.start.as_ptr().cast(), self.len)?;
            }
            #[cfg(windows)]
            crate::windows::lock(self.start, self.len)?;
            self.locked = true;
        }
        Ok(())
    }

    /// Always fails: this system locks no memory.
    #[cfg(not(any(unix, windows)))]
    pub(crate) fn lock(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Whether the buffer owns the memory, rather than using source bytes in place.
    pub(crate) fn is_writable(&self) -> bool {
        !matches!(self.owner, Owner::Source { .. })
    }

    /// All bytes, for filling the buffer before other code shares it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_writable(), "memory used in place is read-only");
        // SAFETY: the buffer owns `len` initialised bytes and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        #[cfg(unix)]
        if self.locked {
            // SAFETY: as in `lock`. If unlocking fails, the memory stays locked until it is freed.
            let _ = unsafe { rustix::mm::munlock(self.start.as_ptr().cast(), self.len) };
        }
        #[cfg(windows)]
        if self.locked {
            crate::windows::unlock(self.start, self.len);
        }
        if let Owner::Allocated { base, extent } = self.owner {
            // SAFETY: `zeroed` allocated the memory with this layout; no view outlives its tensor.
            unsafe { dealloc(base.as_ptr(), extent) }
        }
    }
}

/// A range of the workspace: `[n_rows, n_cols]` of `T` from byte `at` on.
#[derive(Debug)]
pub(crate) struct Span<T> {
    at: usize,
    n_rows: usize,
    n_cols: usize,
    marker: PhantomData<T>,
}

/// Assigns ranges of the workspace of one op; planning and compiling both use this type.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Bytes assigned so far.
    pub(crate) bytes: usize,
}

impl Scratch {
    pub(crate) fn take<T>(&mut self, n_rows: usize, n_cols: usize) -> Span<T> {
        let at = self.bytes.next_multiple_of(ALIGN);
        self.bytes =
            at.saturating_add(n_rows.saturating_mul(n_cols).saturating_mul(size_of::<T>()));
        Span { at, n_rows, n_cols, marker: PhantomData }
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

    /// Address of a row-major tensor's first row, bytes of a row, and bytes between row starts.
    fn locate_rows(tensor: &Tensor) -> (*mut u8, usize, usize) {
        let (buffer, desc) = (Self::buffer(tensor), tensor.desc());
        let bytes = |n_cols| desc.format.row_bytes(n_cols).expect("tensors have whole blocks");
        let (row, adjacent) = (bytes(desc.n_cols), bytes(tensor.whole().n_cols));
        let stride = buffer.pitch.unwrap_or(adjacent);
        assert!(buffer.table.is_none(), "only kernels read rows of a table");
        let (at, first) = (bytes(tensor.first_col()), tensor.first_row() * stride);
        assert!(desc.layout == Layout::Rows, "{desc} is not row-major");
        let inside = at + row <= stride && first + desc.n_rows * stride <= buffer.len;
        assert!(inside, "{desc} does not fit its buffer");
        // SAFETY: the address is inside the buffer, as just checked.
        (unsafe { buffer.start.as_ptr().add(first + at) }, row, stride)
    }

    /// Start and bytes per row of a tensor whose rows are adjacent.
    fn locate(tensor: &Tensor) -> (*mut u8, usize) {
        let (start, row, stride) = Self::locate_rows(tensor);
        assert!(row == stride, "only matrix products read column ranges of {}", tensor.whole());
        (start, row)
    }

    /// A view for reading a tensor's values (`T` matches its format) or bytes (`u8`).
    pub(crate) fn read<T: AnyBitPattern>(&self, tensor: &Tensor) -> ReadView<T> {
        let (start, row, stride) = Self::locate_rows(tensor);
        let start = start.cast_const().cast::<T>();
        assert!(start.is_aligned(), "{} is not aligned", tensor.desc());
        let [n_cols, stride] = [row, stride].map(|bytes| bytes / size_of::<T>());
        ReadView { start, n_rows: tensor.desc().n_rows, n_cols, stride }
    }

    /// A view for reading weights.
    pub(crate) fn weights(&self, tensor: &Tensor) -> WeightRows {
        let (buffer, desc) = (Self::buffer(tensor), tensor.desc());
        let Some(table) = &buffer.table else { return WeightRows::InOrder(self.read(tensor)) };
        let bytes = |n_cols| desc.format.row_bytes(n_cols).expect("tensors have whole blocks");
        let (row_bytes, at) = (bytes(desc.n_cols), bytes(tensor.first_col()));
        let stride = buffer.pitch.unwrap_or_else(|| bytes(tensor.whole().n_cols));
        let places = &table[tensor.first_row()..][..desc.n_rows];
        assert!(at <= buffer.len, "{desc} does not fit its buffer");
        // SAFETY: the address is inside the buffer, as just checked.
        let start = unsafe { buffer.start.as_ptr().add(at) }.cast_const();
        let len = buffer.len - at;
        let memory = ReadView { start, n_rows: 1, n_cols: len, stride: len };
        let (start, n_rows) = (places.as_ptr(), places.len());
        let table = ReadView { start, n_rows, n_cols: 1, stride: 1 };
        WeightRows::InTable { memory, row_bytes, stride, table }
    }

    /// A view for writing; see [`Binder::read`].
    pub(crate) fn write<T: AnyBitPattern>(&self, tensor: &Tensor) -> WriteView<T> {
        assert!(Self::buffer(tensor).is_writable(), "memory used in place is read-only");
        let ReadView { start, n_rows, n_cols, stride } = self.read::<T>(tensor);
        assert!(stride == n_cols, "an op cannot write a column range");
        WriteView { start: start.cast_mut(), n_rows, n_cols }
    }

    /// All bytes of the buffer behind a view, as one row.
    pub(crate) fn whole(&self, tensor: &Tensor) -> ReadView<u8> {
        let buffer = Self::buffer(tensor);
        let start = buffer.start.as_ptr();
        ReadView { start, n_rows: 1, n_cols: buffer.len, stride: buffer.len }
    }

    pub(crate) fn memory(&self) -> HostMemory {
        HostMemory(())
    }

    /// For a transposed tensor: the layout, all bytes of the buffer, and the slot of the first row.
    pub(crate) fn transposed(&self, tensor: &Tensor) -> (TransposedLayout, ReadView<u8>, usize) {
        let layout = hal::pack::transposed(&tensor.whole()).expect("the tensor is transposed");
        let bytes = self.whole(tensor);
        assert!(layout.n_bytes == bytes.n_cols, "{} does not fill its buffer", tensor.desc());
        (layout, bytes, tensor.first_row())
    }

    pub(crate) fn scratch<T: AnyBitPattern>(&self, span: &Span<T>) -> WriteView<T> {
        let (n_rows, n_cols) = (span.n_rows, span.n_cols);
        let bytes = n_rows * n_cols * size_of::<T>();
        let start = match self.workspace.map(Self::buffer) {
            Some(buffer) => {
                assert!(span.at + bytes <= buffer.len, "the workspace is smaller than planned");
                // SAFETY: the span is in the buffer, as just checked, and starts aligned to ALIGN.
                unsafe { buffer.start.as_ptr().add(span.at) }.cast::<T>()
            }
            None => {
                assert!(bytes == 0, "an op needs workspace but has none");
                NonNull::<T>::dangling().as_ptr()
            }
        };
        WriteView { start, n_rows, n_cols }
    }
}

/// Tensor memory for a queue that holds the device's lock.
pub(crate) struct LockedMemory<'a>(PhantomData<&'a mut ThreadPool>);

impl<'a> LockedMemory<'a> {
    /// The guard proves that nothing else accesses tensor memory while it is borrowed.
    pub(crate) fn new(_lock: &'a mut MutexGuard<'_, ThreadPool>) -> LockedMemory<'a> {
        LockedMemory(PhantomData)
    }

    /// The bytes of a view of whole rows.
    pub(crate) fn bytes<'b>(&'b self, tensor: &'b Tensor) -> &'b [u8] {
        let (start, row) = Binder::locate(tensor);
        // SAFETY: the range is inside the buffer, which the tensor keeps alive; the lock is held,
        // and no mutable slice exists.
        unsafe { std::slice::from_raw_parts(start, tensor.desc().n_rows * row) }
    }

    pub(crate) fn bytes_mut<'b>(&'b mut self, tensor: &'b Tensor) -> &'b mut [u8] {
        let (start, row) = Binder::locate(tensor);
        assert!(Binder::buffer(tensor).is_writable(), "memory used in place is read-only");
        // SAFETY: as above; this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(start, tensor.desc().n_rows * row) }
    }

    /// All bytes of the buffer behind a view, writable.
    pub(crate) fn whole_mut<'b>(&'b mut self, tensor: &'b Tensor) -> &'b mut [u8] {
        let buffer = Binder::buffer(tensor);
        assert!(buffer.is_writable(), "memory used in place is read-only");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.len) }
    }

    /// Copies `src` to `dst`; the views must have the same shape and not overlap.
    pub(crate) fn copy(&mut self, src: &Tensor, dst: &Tensor) {
        assert!(
            src.desc() == dst.desc() && !src.overlaps(dst),
            "the views differ in shape or overlap"
        );
        let (from, row) = Binder::locate(src);
        let to = self.bytes_mut(dst);
        // SAFETY: both slices have this length, as just checked, and do not overlap.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), src.desc().n_rows * row) }
    }
}

/// Host memory for the reference implementation, which runs while only one worker is active.
#[derive(Debug)]
pub(crate) struct HostMemory(());

impl Memory for HostMemory {
    fn read(&self, tensor: &Tensor, f: &mut dyn FnMut(&[u8])) {
        let buffer = Binder::buffer(tensor);
        let plain = buffer.pitch.is_none() && buffer.table.is_none();
        assert!(plain, "only kernels read rows that begin on pages");
        // SAFETY: the tensor keeps the buffer alive; only this worker is active and calls are not
        // nested.
        f(unsafe { std::slice::from_raw_parts(buffer.start.as_ptr(), buffer.len) });
    }

    fn write(&self, tensor: &Tensor, f: &mut dyn FnMut(&mut [u8])) {
        let buffer = Binder::buffer(tensor);
        assert!(buffer.is_writable(), "memory used in place is read-only");
        // SAFETY: as above.
        f(unsafe { std::slice::from_raw_parts_mut(buffer.start.as_ptr(), buffer.len) });
    }
}
