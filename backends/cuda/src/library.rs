//! CUDA's driver library: what is called of it.

#![allow(unsafe_code, reason = "functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

use cudarc::driver::sys;
use simt::native::{Calls, Function, Raw};
use simt::{Missing, Outcome};

/// A fact about a device: where to, which, of what.
type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
/// Text about a device: where to, its size, of what.
type Text = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
/// Text about a code.
type About = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The driver, started.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    count: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    version: Function<unsafe extern "C" fn(*mut c_int) -> c_int>,
    device: Function<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>,
    name: Function<Text>,
    slot: Function<Text>,
    attribute: Function<Attribute>,
    total: Function<unsafe extern "C" fn(*mut usize, c_int) -> c_int>,
    retain: Function<unsafe extern "C" fn(*mut Raw, c_int) -> c_int>,
    release: Function<unsafe extern "C" fn(c_int) -> c_int>,
    pub(crate) set_current: Function<unsafe extern "C" fn(Raw) -> c_int>,
    error_name: Function<About>,
    error_text: Function<About>,
    pub(crate) calls: Calls,
}

/// What a function of the library is called there.
fn find<F: Copy>(name: &'static str) -> Result<Function<F>, Missing> {
    // SAFETY: the library is there (the only caller has asked), and cudarc never closes it; `F` is what `cuda.h` says,
    // with handles as pointers and enums as numbers, which is how they are passed.
    unsafe { Function::find(sys::culib(), name) }
}

impl Library {
    /// Opens and starts the driver.
    ///
    /// # Errors
    /// [`Missing`] says what is wrong with it.
    pub(crate) fn open() -> Result<Library, Missing> {
        // SAFETY: opening a library runs its code; what lies under this name in the system's folders is the driver.
        if !unsafe { sys::is_culib_present() } {
            let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
            return Err(Missing::Library { name });
        }
        let init: Function<unsafe extern "C" fn(c_uint) -> c_int> = find("cuInit")?;
        let library = Library {
            count: find("cuDeviceGetCount")?,
            version: find("cuDriverGetVersion")?,
            device: find("cuDeviceGet")?,
            name: find("cuDeviceGetName")?,
            slot: find("cuDeviceGetPCIBusId")?,
            attribute: find("cuDeviceGetAttribute")?,
            total: find("cuDeviceTotalMem_v2")?,
            retain: find("cuDevicePrimaryCtxRetain")?,
            release: find("cuDevicePrimaryCtxRelease_v2")?,
            set_current: find("cuCtxSetCurrent")?,
            error_name: find("cuGetErrorName")?,
            error_text: find("cuGetErrorString")?,
            calls: calls()?,
        };
        // SAFETY: no flags exist.
        let code = unsafe { (init.call)(0) };
        if code == sys::CUresult::CUDA_ERROR_NO_DEVICE as c_int {
            return Err(Missing::Device);
        }
        library.check(&init, code)?;
        Ok(library)
    }

    /// The newest version of CUDA that the driver is for, 12040 for 12.4.
    pub(crate) fn version(&self) -> Result<c_int, Missing> {
        let mut version = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.version.call)(&raw mut version) };
        self.check(&self.version, code).map(|()| version)
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> Result<c_int, Missing> {
        let mut count = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.count.call)(&raw mut count) };
        self.check(&self.count, code).map(|()| count)
    }

    /// The handle of a device.
    pub(crate) fn device(&self, ordinal: c_int) -> Result<c_int, Missing> {
        let mut device = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.device.call)(&raw mut device, ordinal) };
        self.check(&self.device, code).map(|()| device)
    }

    /// What the driver calls a device.
    pub(crate) fn name(&self, device: c_int) -> Result<String, Missing> {
        self.device_text(&self.name, device)
    }

    /// A device's slot.
    pub(crate) fn slot(&self, device: c_int) -> Result<String, Missing> {
        self.device_text(&self.slot, device)
    }

    fn device_text(&self, call: &Function<Text>, device: c_int) -> Result<String, Missing> {
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: it writes less than it is told that there is, during the call only.
        let code = unsafe { (call.call)(text.as_mut_ptr(), 255, device) };
        self.check(call, code)?;
        // SAFETY: the last byte is zero whatever the call has written before it.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().trim().to_owned())
    }

    /// A fact about a device.
    pub(crate) fn attribute(
        &self,
        which: sys::CUdevice_attribute,
        device: c_int,
    ) -> Result<c_int, Missing> {
        let mut value = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.attribute.call)(&raw mut value, which as c_int, device) };
        self.check(&self.attribute, code).map(|()| value)
    }

    /// Physical memory of a device.
    pub(crate) fn total(&self, device: c_int) -> Result<u64, Missing> {
        let mut bytes = 0;
        // SAFETY: written during the call only.
        let code = unsafe { (self.total.call)(&raw mut bytes, device) };
        self.check(&self.total, code).map(|()| bytes as u64)
    }

    /// The context of a device that all libraries of a process share. Its owner calls [`Library::release`] once.
    pub(crate) fn retain(&self, device: c_int) -> (&'static str, c_int, Raw) {
        let mut context = ptr::null_mut();
        // SAFETY: written during the call only.
        let code = unsafe { (self.retain.call)(&raw mut context, device) };
        (self.retain.name, code, context)
    }

    /// Gives the context back.
    pub(crate) fn release(&self, device: c_int) {
        // SAFETY: what was made in it is gone, as the owner promises; the rest of the process has its own share in it.
        let _ = unsafe { (self.release.call)(device) };
    }

    /// Name and meaning of a code.
    pub(crate) fn text(&self, code: c_int) -> String {
        let parts: Vec<String> = [&self.error_name, &self.error_text]
            .into_iter()
            .filter_map(|about| {
                let mut text = ptr::null();
                // SAFETY: it is set to a text that is never freed, or to nothing.
                let known = unsafe { (about.call)(code, &raw mut text) } == 0 && !text.is_null();
                // SAFETY: as above; it ends in NUL.
                known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
            })
            .collect();
        if parts.is_empty() { format!("unknown code {code}") } else { parts.join(", ") }
    }

    fn check<F>(&self, call: &Function<F>, code: c_int) -> Result<(), Missing> {
        if Outcome::of(code) == Outcome::Done {
            return Ok(());
        }
        Err(Missing::Driver { call: call.name, code, text: self.text(code) })
    }
}

/// What HIP has by other names.
fn calls() -> Result<Calls, Missing> {
    Ok(Calls {
        memory: find("cuMemGetInfo_v2")?,
        alloc: find("cuMemAlloc_v2")?,
        free: find("cuMemFree_v2")?,
        alloc_host: find("cuMemHostAlloc")?,
        device_pointer: find("cuMemHostGetDevicePointer_v2")?,
        free_host: find("cuMemFreeHost")?,
        stream: find("cuStreamCreate")?,
        destroy_stream: find("cuStreamDestroy_v2")?,
        finish: find("cuStreamSynchronize")?,
        event: find("cuEventCreate")?,
        destroy_event: find("cuEventDestroy_v2")?,
        record: find("cuEventRecord")?,
        query: find("cuEventQuery")?,
        wait: find("cuEventSynchronize")?,
        elapsed: find("cuEventElapsedTime")?,
        copy_in: find("cuMemcpyHtoDAsync_v2")?,
        copy_out: find("cuMemcpyDtoHAsync_v2")?,
        copy: find("cuMemcpyDtoDAsync_v2")?,
        fill: find("cuMemsetD32Async")?,
        load: find("cuModuleLoadDataEx")?,
        unload: find("cuModuleUnload")?,
        function: find("cuModuleGetFunction")?,
        launch: find("cuLaunchKernel")?,
        begin_capture: find("cuStreamBeginCapture_v2")?,
        end_capture: find("cuStreamEndCapture")?,
        instantiate: find("cuGraphInstantiateWithFlags")?,
        destroy_graph: find("cuGraphDestroy")?,
        destroy_ready: find("cuGraphExecDestroy")?,
        launch_graph: find("cuGraphLaunch")?,
    })
}
