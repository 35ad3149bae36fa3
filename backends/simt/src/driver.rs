//! What differs between CUDA and HIP on the host's side: the calls, one by one.

#![allow(unsafe_code, reason = "what a driver is asked for, it cannot check")]

use std::fmt;

use hal::{MemoryReport, Result};

use crate::facts::Facts;

/// An address in the device's memory. 0 is none.
pub type DevicePtr = u64;

/// Pinned host memory that the device reaches too, coherent on both sides.
#[derive(Clone, Copy, Debug)]
pub struct HostBlock {
    /// Where the host sees it.
    pub host: *mut u8,
    /// Where the device sees it.
    pub device: DevicePtr,
    /// Bytes.
    pub len: usize,
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A pointer.
    Ptr(DevicePtr),
    /// A 32-bit number.
    U32(u32),
    /// A float.
    F32(f32),
}

/// How many threads, and how they are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A device, through its vendor's driver. All calls may come from any thread. Calls that take a stream return before the
/// work is done.
///
/// Errors are [`hal::Error::OutOfMemory`], [`hal::Error::DeviceLost`] for whatever the device does not recover from, and
/// [`hal::Error::Driver`]; every call reports those of its own, and sticky ones of work before it.
pub trait Driver: fmt::Debug + Send + Sync + Sized + 'static {
    /// Work in order; destroyed when dropped, as all of these.
    type Stream: fmt::Debug + Send + Sync;
    /// A moment in a stream.
    type Event: fmt::Debug + Send + Sync;
    /// Loaded kernels.
    type Module: fmt::Debug + Send + Sync;
    /// A kernel of a module, which its owner keeps.
    type Function: Copy + fmt::Debug + Send + Sync;
    /// Recorded work that can be started as one.
    type Graph: fmt::Debug + Send + Sync;

    /// Facts that do not change.
    fn facts(&self) -> &Facts;

    /// Total and free memory, now.
    ///
    /// # Errors
    /// See [`Driver`], as for all that follow.
    fn memory(&self) -> Result<MemoryReport>;

    /// Device memory; contents undefined.
    ///
    /// # Errors
    /// See [`Driver`].
    fn alloc(&self, label: &str, len: u64) -> Result<DevicePtr>;

    /// Gives memory of [`Driver::alloc`] back, once all work that was given to the device is done with it.
    fn free(&self, at: DevicePtr);

    /// Pinned and mapped host memory, filled with zeros.
    ///
    /// # Errors
    /// See [`Driver`].
    fn alloc_host(&self, label: &str, len: usize) -> Result<HostBlock>;

    /// Gives memory of [`Driver::alloc_host`] back.
    fn free_host(&self, block: HostBlock);

    /// A new stream that waits for no other.
    ///
    /// # Errors
    /// See [`Driver`].
    fn stream(&self) -> Result<Self::Stream>;

    /// Waits until a stream is empty.
    ///
    /// # Errors
    /// See [`Driver`].
    fn finish(&self, stream: &Self::Stream) -> Result<()>;

    /// A new event, with a time if `timed`.
    ///
    /// # Errors
    /// See [`Driver`].
    fn event(&self, timed: bool) -> Result<Self::Event>;

    /// Puts an event behind what was given to a stream.
    ///
    /// # Errors
    /// See [`Driver`].
    fn record(&self, event: &Self::Event, stream: &Self::Stream) -> Result<()>;

    /// Whether an event has happened.
    ///
    /// # Errors
    /// See [`Driver`].
    fn has_happened(&self, event: &Self::Event) -> Result<bool>;

    /// Waits for an event.
    ///
    /// # Errors
    /// See [`Driver`].
    fn wait(&self, event: &Self::Event) -> Result<()>;

    /// Seconds from one timed event that has happened to another.
    ///
    /// # Errors
    /// See [`Driver`].
    fn seconds(&self, from: &Self::Event, to: &Self::Event) -> Result<f64>;

    /// Copies host memory to the device.
    ///
    /// # Safety
    /// `src..src + len` is readable, and `dst..dst + len` of a live allocation, until the copy is done.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn copy_in(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: *const u8,
        len: usize,
    ) -> Result<()>;

    /// Copies device memory to the host.
    ///
    /// # Safety
    /// `dst..dst + len` is writable and read by nobody, and `src..src + len` of a live allocation, until the copy is done.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn copy_out(
        &self,
        stream: &Self::Stream,
        dst: *mut u8,
        src: DevicePtr,
        len: usize,
    ) -> Result<()>;

    /// Copies inside the device.
    ///
    /// # Safety
    /// Both ranges belong to live allocations until the copy is done, and do not overlap.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        src: DevicePtr,
        len: usize,
    ) -> Result<()>;

    /// Sets `n_words` words.
    ///
    /// # Safety
    /// The range belongs to a live allocation until it is done, at a multiple of 4.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn fill(
        &self,
        stream: &Self::Stream,
        dst: DevicePtr,
        word: u32,
        n_words: usize,
    ) -> Result<()>;

    /// Loads a unit of kernels ([`crate::units`]).
    ///
    /// # Errors
    /// See [`Driver`].
    fn module(&self, unit: &str) -> Result<Self::Module>;

    /// A kernel of a module.
    ///
    /// # Errors
    /// See [`Driver`].
    fn function(&self, module: &Self::Module, name: &str) -> Result<Self::Function>;

    /// Starts a kernel.
    ///
    /// # Safety
    /// The arguments are those of the kernel in number, order and kind; its module is loaded; all memory that it reaches
    /// is live until it is done.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn launch(
        &self,
        stream: &Self::Stream,
        function: Self::Function,
        geometry: Geometry,
        args: &[Arg],
    ) -> Result<()>;

    /// From here on, what this thread gives to the stream is recorded instead of done.
    ///
    /// # Errors
    /// See [`Driver`].
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;

    /// Ends the recording and makes it ready to start.
    ///
    /// # Errors
    /// See [`Driver`].
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;

    /// Starts recorded work.
    ///
    /// # Safety
    /// As [`Driver::launch`] for all that was recorded; it does not run already.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn launch_graph(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<()>;
}
