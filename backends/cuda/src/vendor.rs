//! CUDA's implementation of [`Vendor`].

#![allow(unsafe_code, reason = "a context is a pointer")]

use std::borrow::Cow;
use std::ffi::{c_int, c_uint};

use cudarc::driver::sys;
use hal::{Error, Result};
use simt::native::{Raw, Vendor};

use crate::archive::{EMBEDDED, fnv};
use crate::library::Library;

/// A device's primary context.
#[derive(Debug)]
pub struct Cuda {
    pub(crate) library: Library,
    pub(crate) device: c_int,
    pub(crate) context: Raw,
    /// Its compute capability, 75 for 7.5.
    pub(crate) target: u32,
}

// SAFETY: a context may be made current in any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above; all fields are constant.
unsafe impl Sync for Cuda {}

impl Vendor for Cuda {
    const ENTER: &'static str = "cuCtxSetCurrent";
    const HOST_FLAGS: c_uint = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    const LOG: Option<[c_int; 2]> = Some([
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_int,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_int,
    ]);

    fn enter(&self) -> c_int {
        // SAFETY: the context lives as long as `self`.
        unsafe { (self.library.set_current.call)(self.context) }
    }

    fn version(&self) -> String {
        let cuda = self.library.version().unwrap_or_default();
        // The manifest has the hash of every unit.
        let kernels = fnv(EMBEDDED.manifest.as_bytes());
        // CUDA's version stays the same over many drivers, whose compilers differ.
        let driver = std::fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default();
        format!("CUDA {cuda}, driver {}, kernels {kernels:016x}", driver.trim())
    }

    fn text(&self, code: c_int) -> String {
        self.library.text(code)
    }

    fn image(&self, unit: &str) -> Result<Cow<'static, [u8]>> {
        EMBEDDED.ptx(unit, self.target).map(Cow::Owned).map_err(|error| Error::Driver {
            call: format!("cuModuleLoadDataEx of {unit}"),
            code: 0,
            message: error.to_string(),
        })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.library.release(self.device);
    }
}
