//! What CUDA does in its own way.

#![allow(unsafe_code, reason = "a context is a pointer")]

use std::borrow::Cow;
use std::ffi::{c_int, c_uint};

use cudarc::driver::sys;
use hal::{Error, Result};
use simt::native::{Raw, Vendor};

use crate::library::Library;

/// Kernels by unit, each text ended by NUL.
const PTX: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// A device's primary context.
#[derive(Debug)]
pub struct Cuda {
    pub(crate) library: Library,
    pub(crate) device: c_int,
    pub(crate) context: Raw,
}

// SAFETY: a context may be made current in any thread.
unsafe impl Send for Cuda {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for Cuda {}

impl Vendor for Cuda {
    const ENTER: &'static str = "cuCtxSetCurrent";
    const HOST_FLAGS: c_uint = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    const LOG: Option<[c_int; 2]> = Some([
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_int,
        sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_int,
    ]);

    fn enter(&self) -> c_int {
        // SAFETY: the context lives as long as this.
        unsafe { (self.library.set_current.call)(self.context) }
    }

    fn text(&self, code: c_int) -> String {
        self.library.text(code)
    }

    fn image(&self, unit: &str) -> Result<Cow<'static, [u8]>> {
        let found = PTX.binary_search_by(|(name, _)| (*name).cmp(unit)).map(|at| PTX[at].1);
        found.map(|text| Cow::Borrowed(text.as_bytes())).map_err(|_| Error::Driver {
            call: "cuModuleLoadDataEx".to_owned(),
            code: 0,
            message: format!("this program has no kernels {unit}"),
        })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        self.library.release(self.device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_in_order_and_end_as_the_driver_wants() {
        assert!(PTX.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (unit, text) in PTX {
            assert!(text.starts_with(&format!("// unit {unit}\n")), "{unit}");
            assert!(text.ends_with('\0') && text.contains(".target sm_75"), "{unit}");
        }
    }
}
