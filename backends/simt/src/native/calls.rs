//! The calls that CUDA's driver and HIP have in common, found at run time.

#![allow(unsafe_code, reason = "symbols have no types")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use crate::driver::DevicePtr;
use crate::missing::Missing;

/// What a vendor's handles are to us.
pub type Raw = *mut c_void;

/// A function of a vendor's library, and what it is called there.
///
/// They all return plain numbers: a newer driver knows codes that no list of ours has.
#[derive(Clone, Copy, Debug)]
pub struct Function<F> {
    /// For messages.
    pub name: &'static str,
    /// The function.
    pub call: F,
}

impl<F: Copy> Function<F> {
    /// Looks a function up.
    ///
    /// # Safety
    /// `F` is the C type of the function of this name, and the library is never closed.
    ///
    /// # Errors
    /// [`Missing::Function`].
    pub unsafe fn find(
        library: &'static Library,
        name: &'static str,
    ) -> Result<Function<F>, Missing> {
        // SAFETY: the type is the caller's promise.
        let symbol = unsafe { library.get::<F>(name) };
        let call = symbol.map_err(|_| Missing::Function { name })?;
        Ok(Function { name, call: *call })
    }
}

/// A call that takes one handle.
pub type Takes = Function<unsafe extern "C" fn(Raw) -> c_int>;

/// What both vendors have with the same parameters, under names of their own.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Free and total memory.
    pub memory: Function<unsafe extern "C" fn(*mut usize, *mut usize) -> c_int>,
    /// Device memory.
    pub alloc: Function<unsafe extern "C" fn(*mut DevicePtr, usize) -> c_int>,
    /// Gives it back.
    pub free: Function<unsafe extern "C" fn(DevicePtr) -> c_int>,
    /// Pinned host memory, with flags.
    pub alloc_host: Function<unsafe extern "C" fn(*mut Raw, usize, c_uint) -> c_int>,
    /// Where the device sees it.
    pub device_pointer: Function<unsafe extern "C" fn(*mut DevicePtr, Raw, c_uint) -> c_int>,
    /// Gives it back.
    pub free_host: Takes,
    /// A stream, with flags.
    pub stream: Function<unsafe extern "C" fn(*mut Raw, c_uint) -> c_int>,
    /// Ends it.
    pub destroy_stream: Takes,
    /// Waits for a stream.
    pub finish: Takes,
    /// An event, with flags.
    pub event: Function<unsafe extern "C" fn(*mut Raw, c_uint) -> c_int>,
    /// Ends it.
    pub destroy_event: Takes,
    /// Event, stream.
    pub record: Function<unsafe extern "C" fn(Raw, Raw) -> c_int>,
    /// Whether an event has happened.
    pub query: Takes,
    /// Waits for an event.
    pub wait: Takes,
    /// Milliseconds between two events.
    pub elapsed: Function<unsafe extern "C" fn(*mut f32, Raw, Raw) -> c_int>,
    /// To the device: destination, source, bytes, stream.
    pub copy_in: Function<unsafe extern "C" fn(DevicePtr, *const c_void, usize, Raw) -> c_int>,
    /// To the host.
    pub copy_out: Function<unsafe extern "C" fn(Raw, DevicePtr, usize, Raw) -> c_int>,
    /// On the device.
    pub copy: Function<unsafe extern "C" fn(DevicePtr, DevicePtr, usize, Raw) -> c_int>,
    /// Destination, word, number of words, stream.
    pub fill: Function<unsafe extern "C" fn(DevicePtr, c_uint, usize, Raw) -> c_int>,
    /// Module, image, number of options, options, their values.
    pub load: Function<
        unsafe extern "C" fn(*mut Raw, *const c_void, c_uint, *mut c_int, *mut Raw) -> c_int,
    >,
    /// Ends a module.
    pub unload: Takes,
    /// A kernel of a module, by name.
    pub function: Function<unsafe extern "C" fn(*mut Raw, Raw, *const c_char) -> c_int>,
    /// Function, grid, block, dynamic shared memory, stream, pointers to the arguments, nothing.
    pub launch: Function<Launch>,
    /// What graphs need, where there is all of it.
    pub graphs: Option<GraphCalls>,
}

/// Work that is recorded and started as one.
#[derive(Clone, Debug)]
pub struct GraphCalls {
    /// Stream, mode.
    pub begin_capture: Function<unsafe extern "C" fn(Raw, c_int) -> c_int>,
    /// Stream, graph.
    pub end_capture: Function<unsafe extern "C" fn(Raw, *mut Raw) -> c_int>,
    /// Makes a graph ready, with flags.
    pub instantiate: Function<unsafe extern "C" fn(*mut Raw, Raw, c_ulonglong) -> c_int>,
    /// Ends a graph.
    pub destroy_graph: Takes,
    /// Ends one that is ready.
    pub destroy_ready: Takes,
    /// Ready graph, stream.
    pub launch_graph: Function<unsafe extern "C" fn(Raw, Raw) -> c_int>,
}

/// How a kernel is started.
pub type Launch = unsafe extern "C" fn(
    Raw,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Raw,
    *mut Raw,
    *mut Raw,
) -> c_int;
