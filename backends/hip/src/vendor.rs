//! What HIP does in its own way.

#![allow(unsafe_code, reason = "a call of the driver")]

use std::borrow::Cow;
use std::ffi::{c_int, c_uint};
use std::path::PathBuf;

use hal::Result;
use hip_sys::hiprt;
use simt::MOST_THREADS;
use simt::native::Vendor;

use crate::compiler::Compiler;
use crate::kept::Kept;
use crate::library::Library;
use crate::sources;

/// A device, and the compiler of its kernels.
#[derive(Debug)]
pub struct Hip {
    pub(crate) library: Library,
    pub(crate) device: c_int,
    pub(crate) arch: String,
    pub(crate) compiler: Compiler,
    /// The version of the library. That of the compiler says nothing: it is the same in all of them.
    pub(crate) version: c_int,
    /// Ticks of the clock that kernels read in a millisecond, where the driver tells.
    pub(crate) clock: Option<c_int>,
    /// Where compiled kernels are kept.
    pub(crate) folder: Option<PathBuf>,
}

impl Vendor for Hip {
    const ENTER: &'static str = "hipSetDevice";
    const HOST_FLAGS: c_uint =
        hiprt::hipHostMallocPortable | hiprt::hipHostMallocMapped | hiprt::hipHostMallocCoherent;
    const LOG: Option<[c_int; 2]> = None;

    fn enter(&self) -> c_int {
        // SAFETY: a number of a device.
        unsafe { (self.library.set_device.call)(self.device) }
    }

    fn text(&self, code: c_int) -> String {
        self.library.text(code)
    }

    fn image(&self, unit: &str) -> Result<Cow<'static, [u8]>> {
        let source = sources::of(unit)?;
        let mut options = vec![
            format!("--offload-arch={}", self.arch),
            "-std=c++17".to_owned(),
            "-O3".to_owned(),
            // The largest block of any launch. The compiler would leave room for the registers of 1024 threads.
            format!("--gpu-max-threads-per-block={MOST_THREADS}"),
            // Products and sums are joined where the kernels say so, as on every other device.
            "-ffp-contract=off".to_owned(),
        ];
        if let Some(khz) = self.clock {
            options.push(format!("-DWALL_CLOCK_KHZ={khz}"));
        }
        options.extend_from_slice(&source.names);
        let kept = self.folder.as_ref().map(|folder| {
            let (options, compiler) = (options.join(" "), self.compiler.version());
            let version = format!("{} {compiler}", self.version);
            Kept::new(folder, unit, &[&source.text, &options, &self.arch, &version])
        });
        if let Some(code) = kept.as_ref().and_then(Kept::read) {
            return Ok(Cow::Owned(code));
        }
        let code = self.compiler.compile(&source, &options)?;
        if let Some(kept) = kept {
            // A folder that cannot be written costs the next start some seconds, nothing else.
            let _ = kept.write(&code);
        }
        Ok(Cow::Owned(code))
    }
}
