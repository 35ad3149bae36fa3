//! The functions of CUDA's driver library that this backend calls.

#![allow(unsafe_code, reason = "functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use cudarc::driver::sys;
use libloading::Library as File;
use simt::native::{Calls, Function, GraphCalls, Raw};
use simt::{LibraryError, Outcome};

/// Reads an attribute of a device: destination, attribute, device.
type GetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
/// Reads text about a device: destination, its size, device.
type GetText = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
/// Reads the name or the description of an error code.
type GetErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The initialised driver.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    count: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    version: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    device: Function<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>,
    name: Function<GetText>,
    slot: Function<GetText>,
    attribute: Function<GetAttribute>,
    total: Function<unsafe extern "C" fn(*mut usize, c_int) -> c_int>,
    retain: Function<unsafe extern "C" fn(*mut Raw, c_int) -> c_int>,
    release: Function<unsafe extern "C" fn(c_int) -> c_int>,
    pub(crate) set_current: Function<unsafe extern "C" fn(Raw) -> c_int>,
    error_name: Function<GetErrorText>,
    error_text: Function<GetErrorText>,
    pub(crate) calls: Calls,
}

/// File names of the driver's library, in search order. On Linux the name with a version comes
/// first, because a toolkit may install a stub library under the other name.
const NAMES: [&str; 2] =
    if cfg!(windows) { ["nvcuda.dll", "nvcuda"] } else { ["libcuda.so.1", "libcuda.so"] };

/// Loads the driver's library. On Windows only from the system's folder, where drivers install it: by its bare name, a
/// file beside the program or in the current folder would come first.
fn load(name: &str) -> Option<File> {
    #[cfg(windows)]
    let file = {
        use libloading::os::windows::{LOAD_LIBRARY_SEARCH_SYSTEM32, Library};
        // SAFETY: loading a library runs its code; the library of this name in the system's folder is the driver.
        unsafe { Library::load_with_flags(name, LOAD_LIBRARY_SEARCH_SYSTEM32) }.map(File::from)
    };
    #[cfg(not(windows))]
    // SAFETY: as above for the system's folders.
    let file = unsafe { File::new(name) };
    file.ok()
}

fn find<F: Copy>(file: &'static File, name: &'static str) -> Result<Function<F>, LibraryError> {
    // SAFETY: the library is never unloaded; `F` is the type in `cuda.h`, with handles as pointers
    // and enums as integers, which have the same ABI.
    unsafe { Function::find(file, name) }
}

impl Library {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// [`LibraryError`] with the cause.
    pub(crate) fn open() -> Result<Library, LibraryError> {
        let file = NAMES.iter().find_map(|name| load(name));
        let file =
            file.ok_or(LibraryError::Library { name: NAMES[0], package: "NVIDIA's driver" })?;
        // Never unloaded, because the driver's threads may still run its code.
        let file: &'static File = Box::leak(Box::new(file));
        let init: Function<unsafe extern "C" fn(c_uint) -> c_int> = find(file, "cuInit")?;
        let library = Library {
            count: find(file, "cuDeviceGetCount")?,
            version: find(file, "cuDriverGetVersion")?,
            device: find(file, "cuDeviceGet")?,
            name: find(file, "cuDeviceGetName")?,
            slot: find(file, "cuDeviceGetPCIBusId")?,
            attribute: find(file, "cuDeviceGetAttribute")?,
            total: find(file, "cuDeviceTotalMem_v2")?,
            retain: find(file, "cuDevicePrimaryCtxRetain")?,
            release: find(file, "cuDevicePrimaryCtxRelease_v2")?,
            set_current: find(file, "cuCtxSetCurrent")?,
            error_name: find(file, "cuGetErrorName")?,
            error_text: find(file, "cuGetErrorString")?,
            calls: calls(file)?,
        };
        // SAFETY: the flags must be 0.
        let code = unsafe { (init.call)(0) };
        if code == sys::CUresult::CUDA_ERROR_NO_DEVICE as c_int {
            return Err(LibraryError::Device);
        }
        library.check(&init, code)?;
        Ok(library)
    }

    /// The newest CUDA version that the driver supports, 12040 for 12.4.
    pub(crate) fn version(&self) -> Result<c_int, LibraryError> {
        let mut version = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.version.call)(&raw mut version) };
        self.check(&self.version, code).map(|()| version)
    }

    pub(crate) fn count(&self) -> Result<c_int, LibraryError> {
        let mut count = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.count.call)(&raw mut count) };
        self.check(&self.count, code).map(|()| count)
    }

    pub(crate) fn device(&self, ordinal: c_int) -> Result<c_int, LibraryError> {
        let mut device = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.device.call)(&raw mut device, ordinal) };
        self.check(&self.device, code).map(|()| device)
    }

    pub(crate) fn name(&self, device: c_int) -> Result<String, LibraryError> {
        self.device_text(&self.name, device)
    }

    pub(crate) fn slot(&self, device: c_int) -> Result<String, LibraryError> {
        self.device_text(&self.slot, device)
    }

    fn device_text(&self, call: &Function<GetText>, device: c_int) -> Result<String, LibraryError> {
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: the call writes less than the given size, and only before it returns.
        let code = unsafe { (call.call)(text.as_mut_ptr(), 255, device) };
        self.check(call, code)?;
        // SAFETY: the last byte is zero whatever the call has written before it.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().trim().to_owned())
    }

    pub(crate) fn attribute(
        &self,
        which: sys::CUdevice_attribute,
        device: c_int,
    ) -> Result<c_int, LibraryError> {
        let mut value = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.attribute.call)(&raw mut value, which as c_int, device) };
        self.check(&self.attribute, code).map(|()| value)
    }

    /// Physical memory of a device, in bytes.
    pub(crate) fn total(&self, device: c_int) -> Result<u64, LibraryError> {
        let mut bytes = 0;
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.total.call)(&raw mut bytes, device) };
        self.check(&self.total, code).map(|()| bytes as u64)
    }

    /// Retains the primary context of a device, which all libraries of a process share. Returns
    /// the name of the call, its code, and the context; the caller calls [`Library::release`] once.
    pub(crate) fn retain(&self, device: c_int) -> (&'static str, c_int, Raw) {
        let mut context = ptr::null_mut();
        // SAFETY: the driver writes the value, and only before it returns.
        let code = unsafe { (self.retain.call)(&raw mut context, device) };
        (self.retain.name, code, context)
    }

    pub(crate) fn release(&self, device: c_int) {
        // SAFETY: the caller guarantees that all objects in the context are destroyed; other
        // libraries of the process have their own references.
        let _ = unsafe { (self.release.call)(device) };
    }

    /// Name and description of an error code.
    pub(crate) fn text(&self, code: c_int) -> String {
        let parts: Vec<String> = [&self.error_name, &self.error_text]
            .into_iter()
            .filter_map(|about| {
                let mut text = ptr::null();
                // SAFETY: the call sets `text` to null or to a string that is never freed.
                let known = unsafe { (about.call)(code, &raw mut text) } == 0 && !text.is_null();
                // SAFETY: as above; the string ends in NUL.
                known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
            })
            .collect();
        if parts.is_empty() { format!("unknown code {code}") } else { parts.join(", ") }
    }

    fn check<F>(&self, call: &Function<F>, code: c_int) -> Result<(), LibraryError> {
        if Outcome::of(code) == Outcome::Done {
            return Ok(());
        }
        Err(LibraryError::Driver { call: call.name, code, text: self.text(code) })
    }
}

/// The functions that HIP has too, under other names.
fn calls(file: &'static File) -> Result<Calls, LibraryError> {
    Ok(Calls {
        memory: find(file, "cuMemGetInfo_v2")?,
        alloc: find(file, "cuMemAlloc_v2")?,
        free: find(file, "cuMemFree_v2")?,
        alloc_host: find(file, "cuMemHostAlloc")?,
        device_pointer: find(file, "cuMemHostGetDevicePointer_v2")?,
        free_host: find(file, "cuMemFreeHost")?,
        stream: find(file, "cuStreamCreate")?,
        destroy_stream: find(file, "cuStreamDestroy_v2")?,
        finish: find(file, "cuStreamSynchronize")?,
        event: find(file, "cuEventCreate")?,
        destroy_event: find(file, "cuEventDestroy_v2")?,
        record: find(file, "cuEventRecord")?,
        query: find(file, "cuEventQuery")?,
        wait: find(file, "cuEventSynchronize")?,
        elapsed: find(file, "cuEventElapsedTime")?,
        copy_in: find(file, "cuMemcpyHtoDAsync_v2")?,
        copy_out: find(file, "cuMemcpyDtoHAsync_v2")?,
        copy: find(file, "cuMemcpyDtoDAsync_v2")?,
        fill: find(file, "cuMemsetD32Async")?,
        load: find(file, "cuModuleLoadDataEx")?,
        unload: find(file, "cuModuleUnload")?,
        function: find(file, "cuModuleGetFunction")?,
        launch: find(file, "cuLaunchKernel")?,
        graphs: graphs(file).ok(),
    })
}

/// The graph API. If a function is missing, kernels are launched separately.
fn graphs(file: &'static File) -> Result<GraphCalls, LibraryError> {
    Ok(GraphCalls {
        begin_capture: find(file, "cuStreamBeginCapture_v2")?,
        end_capture: find(file, "cuStreamEndCapture")?,
        instantiate: find(file, "cuGraphInstantiateWithFlags")?,
        destroy_graph: find(file, "cuGraphDestroy")?,
        destroy_instance: find(file, "cuGraphExecDestroy")?,
        launch_graph: find(file, "cuGraphLaunch")?,
    })
}
