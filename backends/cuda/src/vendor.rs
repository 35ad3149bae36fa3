//! What CUDA does in its own way.

#![allow(unsafe_code, reason = "a context is a pointer")]

use std::borrow::Cow;
use std::ffi::{c_int, c_uint};
use std::io::Read as _;

use cudarc::driver::sys;
use flate2::read::DeflateDecoder;
use hal::{Error, Result};
use simt::native::{Raw, Vendor};

use crate::library::Library;

/// A unit of kernels.
#[derive(Debug)]
struct Ptx {
    unit: &'static str,
    /// What it was compiled for: devices of this architecture and later ones run it.
    target: u32,
    /// Its text, deflated.
    packed: &'static [u8],
}

/// All of them, by unit and target.
const PTX: &[Ptx] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

impl Ptx {
    /// The text, ended by NUL as the driver wants it.
    fn text(&self) -> std::io::Result<Vec<u8>> {
        let mut text = Vec::new();
        DeflateDecoder::new(self.packed).read_to_end(&mut text)?;
        text.push(0);
        Ok(text)
    }
}

/// A device's primary context.
#[derive(Debug)]
pub struct Cuda {
    pub(crate) library: Library,
    pub(crate) device: c_int,
    pub(crate) context: Raw,
    /// Its architecture: 75 for compute capability 7.5.
    pub(crate) target: u32,
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
        let refuse = |message: String| Error::Driver {
            call: format!("cuModuleLoadDataEx of {unit}"),
            code: 0,
            message,
        };
        let mut fit = PTX.iter().filter(|ptx| ptx.unit == unit && ptx.target <= self.target);
        let ptx =
            fit.next_back().ok_or_else(|| refuse("this program has no such kernels".into()))?;
        ptx.text().map(Cow::Owned).map_err(|error| refuse(error.to_string()))
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
    fn every_text_is_whole_and_says_what_it_is() {
        assert!(
            PTX.windows(2)
                .all(|pair| (pair[0].unit, pair[0].target) < (pair[1].unit, pair[1].target))
        );
        for ptx in PTX {
            let text = String::from_utf8(ptx.text().unwrap()).unwrap();
            assert!(text.starts_with(&format!("// unit {}\n", ptx.unit)), "{}", ptx.unit);
            assert!(text.contains(&format!(".target sm_{}", ptx.target)), "{}", ptx.unit);
            assert!(text.ends_with('\0'), "{}", ptx.unit);
        }
    }
}
