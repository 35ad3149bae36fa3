//! The calls that CUDA's driver and HIP have in common, loaded at run time.

#![allow(unsafe_code, reason = "symbols have no types")]

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::Library;

use crate::driver::DevicePtr;
use crate::missing::LibraryError;

/// A vendor's handle.
pub type Raw = *mut c_void;

/// A function of a vendor's library, with its exported name.
///
/// Every function returns a plain integer, since a newer driver may return codes that an enum would
/// lack.
#[derive(Clone, Copy, Debug)]
pub struct Function<F> {
    /// Name for messages.
    pub name: &'static str,
    /// The function.
    pub call: F,
}

impl<F: Copy> Function<F> {
    /// Looks up a function.
    ///
    /// # Safety
    /// `F` is the C type of the function of this name, and the library is never unloaded.
    ///
    /// # Errors
    /// [`LibraryError::Function`].
    pub unsafe fn find(
        library: &'static Library,
        name: &'static str,
    ) -> Result<Function<F>, LibraryError> {
        // SAFETY: the caller guarantees the type.
        let symbol = unsafe { library.get::<F>(name) };
        let call = symbol.map_err(|_| LibraryError::Function { name })?;
        Ok(Function { name, call: *call })
    }
}

/// A call that takes one handle.
pub type HandleCall = Function<unsafe extern "C" fn(Raw) -> c_int>;

/// Functions with the same parameters in both APIs, under different names.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Free and total device memory in bytes.
    pub memory: Function<unsafe extern "C" fn(*mut usize, *mut usize) -> c_int>,
    /// Allocates device memory.
    pub alloc: Function<unsafe extern "C" fn(*mut DevicePtr, usize) -> c_int>,
    /// Frees device memory.
    pub free: Function<unsafe extern "C" fn(DevicePtr) -> c_int>,
    /// Allocates pinned host memory, with flags.
    pub alloc_host: Function<unsafe extern "C" fn(*mut Raw, usize, c_uint) -> c_int>,
    /// Device address of pinned host memory.
    pub device_pointer: Function<unsafe extern "C" fn(*mut DevicePtr, Raw, c_uint) -> c_int>,
    /// Frees pinned host memory.
    pub free_host: HandleCall,
    /// Creates a stream, with flags.
    pub stream: Function<unsafe extern "C" fn(*mut Raw, c_uint) -> c_int>,
    /// Destroys a stream.
    pub destroy_stream: HandleCall,
    /// Waits for a stream.
    pub finish: HandleCall,
    /// Creates an event, with flags.
    pub event: Function<unsafe extern "C" fn(*mut Raw, c_uint) -> c_int>,
    /// Destroys an event.
    pub destroy_event: HandleCall,
    /// Records an event: event, stream.
    pub record: Function<unsafe extern "C" fn(Raw, Raw) -> c_int>,
    /// Whether an event has happened.
    pub query: HandleCall,
    /// Waits for an event.
    pub wait: HandleCall,
    /// Milliseconds between two events.
    pub elapsed: Function<unsafe extern "C" fn(*mut f32, Raw, Raw) -> c_int>,
    /// Copies to the device: destination, source, bytes, stream.
    pub copy_in: Function<unsafe extern "C" fn(DevicePtr, *const c_void, usize, Raw) -> c_int>,
    /// Copies to the host.
    pub copy_out: Function<unsafe extern "C" fn(Raw, DevicePtr, usize, Raw) -> c_int>,
    /// Copies within device memory.
    pub copy: Function<unsafe extern "C" fn(DevicePtr, DevicePtr, usize, Raw) -> c_int>,
    /// Fills: destination, word, number of words, stream.
    pub fill: Function<unsafe extern "C" fn(DevicePtr, c_uint, usize, Raw) -> c_int>,
    /// Loads a module: module, image, number of options, options, their values.
    pub load: Function<
        unsafe extern "C" fn(*mut Raw, *const c_void, c_uint, *mut c_int, *mut Raw) -> c_int,
    >,
    /// Unloads a module.
    pub unload: HandleCall,
    /// A kernel of a module, by name.
    pub function: Function<unsafe extern "C" fn(*mut Raw, Raw, *const c_char) -> c_int>,
    /// Launches: function, grid, block, dynamic shared memory, stream, pointers to the arguments,
    /// null.
    pub launch: Function<Launch>,
    /// The graph API, if all of it is available.
    pub graphs: Option<GraphCalls>,
}

/// Graph capture and launch.
#[derive(Clone, Debug)]
pub struct GraphCalls {
    /// Begins a capture: stream, mode.
    pub begin_capture: Function<unsafe extern "C" fn(Raw, c_int) -> c_int>,
    /// Ends a capture: stream, graph.
    pub end_capture: Function<unsafe extern "C" fn(Raw, *mut Raw) -> c_int>,
    /// Instantiates a graph, with flags.
    pub instantiate: Function<unsafe extern "C" fn(*mut Raw, Raw, c_ulonglong) -> c_int>,
    /// Destroys a graph.
    pub destroy_graph: HandleCall,
    /// Destroys an instantiated graph.
    pub destroy_instance: HandleCall,
    /// Launches: instantiated graph, stream.
    pub launch_graph: Function<unsafe extern "C" fn(Raw, Raw) -> c_int>,
}

/// The type of the launch function.
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
