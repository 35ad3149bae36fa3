//! The driver calls that the backends need, implemented for CUDA and HIP.

#![allow(unsafe_code, reason = "a driver cannot check its arguments")]

use std::fmt;

use hal::{MemoryReport, Result};

use crate::facts::Facts;

/// An address in device memory; 0 is null.
pub type DevicePtr = u64;

/// Pinned host memory that the device can access. Host and device see each other's writes while a
/// kernel runs.
#[derive(Clone, Copy, Debug)]
pub struct HostBlock {
    /// Address on the host.
    pub host: *mut u8,
    /// Address on the device.
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

/// Grid and block size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A device behind its vendor's driver. All calls may come from any thread. Calls that take a
/// stream return before the work is done.
///
/// Errors are [`hal::Error::OutOfMemory`], [`hal::Error::DeviceLost`] for errors that the device
/// does not recover from, and [`hal::Error::Driver`]; every call reports its own errors, and
/// sticky errors of earlier work.
pub trait Driver: fmt::Debug + Send + Sync + Sized + 'static {
    /// A stream, which runs its work in order. Destroyed when dropped, like all types of this
    /// trait.
    type Stream: fmt::Debug + Send + Sync;
    /// An event in a stream.
    type Event: fmt::Debug + Send + Sync;
    /// Loaded kernels.
    type Module: fmt::Debug + Send + Sync;
    /// A kernel of a module, valid while the caller holds the module.
    type Function: Copy + fmt::Debug + Send + Sync;
    /// Recorded work that is launched as a graph.
    type Graph: fmt::Debug + Send + Sync;

    /// Facts about the device that do not change.
    fn facts(&self) -> &Facts;

    /// Identifies the driver's version and the kernels.
    fn version(&self) -> String;

    /// Current total and free memory.
    ///
    /// # Errors
    /// See [`Driver`].
    fn memory(&self) -> Result<MemoryReport>;

    /// Allocates device memory; contents undefined.
    ///
    /// # Errors
    /// See [`Driver`].
    fn alloc(&self, label: &str, len: u64) -> Result<DevicePtr>;

    /// Frees memory of [`Driver::alloc`], once all work submitted to the device is done with it.
    fn free(&self, at: DevicePtr);

    /// Allocates pinned and mapped host memory, filled with zeros.
    ///
    /// # Errors
    /// See [`Driver`].
    fn alloc_host(&self, label: &str, len: usize) -> Result<HostBlock>;

    /// Frees memory of [`Driver::alloc_host`].
    fn free_host(&self, block: HostBlock);

    /// A new stream that does not synchronise with others.
    ///
    /// # Errors
    /// See [`Driver`].
    fn stream(&self) -> Result<Self::Stream>;

    /// Waits until all work of a stream is done.
    ///
    /// # Errors
    /// See [`Driver`].
    fn finish(&self, stream: &Self::Stream) -> Result<()>;

    /// A new event, with a timestamp if `timed`.
    ///
    /// # Errors
    /// See [`Driver`].
    fn event(&self, timed: bool) -> Result<Self::Event>;

    /// Records an event after the work submitted to a stream.
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

    /// Seconds from one timed event to another; both have happened.
    ///
    /// # Errors
    /// See [`Driver`].
    fn seconds(&self, from: &Self::Event, to: &Self::Event) -> Result<f64>;

    /// Copies host memory to the device.
    ///
    /// # Safety
    /// `src..src + len` is readable, and `dst..dst + len` belongs to a live allocation, until the
    /// copy is done.
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
    /// `dst..dst + len` is writable and not read, and `src..src + len` belongs to a live
    /// allocation, until the copy is done.
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

    /// Copies within device memory.
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

    /// Sets `n_words` 32-bit words of device memory to `word`.
    ///
    /// # Safety
    /// The range belongs to a live allocation until the call is done, and is aligned to 4 bytes.
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

    /// Launches a kernel.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters in number, order and type; its module is
    /// loaded; all memory that it accesses is live until it is done.
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

    /// Starts capture: from here on, work that this thread submits to the stream is recorded
    /// instead of run.
    ///
    /// # Errors
    /// See [`Driver`].
    fn begin_capture(&self, stream: &Self::Stream) -> Result<()>;

    /// Ends the capture and instantiates the graph.
    ///
    /// # Errors
    /// See [`Driver`].
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph>;

    /// Launches a graph.
    ///
    /// # Safety
    /// The conditions of [`Driver::launch`] hold for all recorded work, and the graph is not
    /// running.
    ///
    /// # Errors
    /// See [`Driver`].
    unsafe fn launch_graph(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<()>;
}
