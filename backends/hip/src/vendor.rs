//! HIP's implementation of [`Vendor`].

#![allow(unsafe_code, reason = "calls a function of the driver")]

use std::borrow::Cow;
use std::ffi::{c_int, c_uint};

use hal::Result;
use simt::LibraryError;
use simt::native::Vendor;

use crate::abi;
use crate::code_cache::CachedCode;
use crate::compiler::Compiler;
use crate::embedded::{self, EmbeddedUnit};
use crate::helper::{self, Compilation};
use crate::library::Library;
use crate::sources::{self, Source};

/// Compiler flags of the kernels, one per line.
const FLAGS: &str = include_str!("../../../kernels-hip/FLAGS");
/// The clock rate in kHz that kernels assume by default: `WALL_CLOCK_KHZ` in
/// `kernels-hip/dialect.h`.
const DEFAULT_CLOCK_KHZ: c_int = 100_000;

/// A device, and the compiler of its kernels.
#[derive(Debug)]
pub struct Hip {
    pub(crate) library: Library,
    pub(crate) device: c_int,
    pub(crate) arch: String,
    /// The compiler, or why it is missing; `embedded` then has all needed kernels.
    pub(crate) compiler: std::result::Result<Compiler, LibraryError>,
    /// Precompiled kernels, for some architectures.
    pub(crate) embedded: &'static [EmbeddedUnit],
    /// The version of HIP's library, part of the cache key: the compiler reports the same version
    /// in all releases.
    pub(crate) version: c_int,
    /// Rate in kHz of the clock that kernels read, if the driver reports it.
    pub(crate) clock: Option<c_int>,
    pub(crate) compilation: Compilation,
}

impl Vendor for Hip {
    const ENTER: &'static str = "hipSetDevice";
    const HOST_FLAGS: c_uint = abi::HOST_FLAGS;
    const LOG: Option<[c_int; 2]> = None;

    fn enter(&self) -> c_int {
        // SAFETY: the argument is the index of an existing device.
        unsafe { (self.library.set_device.call)(self.device) }
    }

    fn version(&self) -> String {
        let compiler = self.compiler.as_ref().map(Compiler::version).unwrap_or_default();
        let kernels = sources::hash();
        format!("HIP {}, hiprtc {compiler}, kernels {kernels:016x}", self.version)
    }

    fn text(&self, code: c_int) -> String {
        self.library.text(code)
    }

    fn image(&self, unit: &str) -> Result<Cow<'static, [u8]>> {
        let source = sources::expand(unit)?;
        if let Some(code) = self.embedded(&source) {
            return Ok(Cow::Owned(code));
        }
        self.compile(&source).map(Cow::Owned)
    }
}

impl Hip {
    /// Precompiled code, if it exists for this architecture and assumes the device's clock rate.
    fn embedded(&self, source: &Source) -> Option<Vec<u8>> {
        let same_clock =
            self.clock.is_none_or(|khz| khz == DEFAULT_CLOCK_KHZ) || !reads_clock(source);
        let code = embedded::find_code(self.embedded, &self.arch, &source.unit);
        code.filter(|_| same_clock)
    }

    /// Code from the cache or from the compiler.
    fn compile(&self, source: &Source) -> Result<Vec<u8>> {
        let compiler = self.compiler.as_ref().map_err(LibraryError::clone)?;
        let mut options = vec![format!("--offload-arch={}", self.arch)];
        options.extend(flags().map(str::to_owned));
        if let Some(khz) = self.clock {
            options.push(format!("-DWALL_CLOCK_KHZ={khz}"));
        }
        options.extend_from_slice(&source.options);
        let cached = self.compilation.folder.as_ref().map(|folder| {
            let version = format!("{} {}", self.version, compiler.version());
            let options = options.join(" ");
            CachedCode::new(folder, &source.unit, &[&source.text, &options, &self.arch, &version])
        });
        if let Some(code) = cached.as_ref().and_then(CachedCode::read) {
            return Ok(code);
        }
        let Compilation { helper, watch, .. } = &self.compilation;
        watch.iter().for_each(|watch| watch(true));
        let code = match helper {
            Some(helper) => helper::compile(helper, self.library.suffix(), source, &options),
            None => compiler.compile(source, &options),
        };
        watch.iter().for_each(|watch| watch(false));
        let code = code?;
        if let Some(cached) = cached {
            // An error is ignored: without the cache, only the next start takes a few seconds
            // longer.
            let _ = cached.write(&code);
        }
        Ok(code)
    }
}

pub(crate) fn flags() -> impl Iterator<Item = &'static str> {
    FLAGS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Whether kernels of a unit read the clock. The dialect contains the searched text once.
fn reads_clock(source: &Source) -> bool {
    source.text.matches("nanoseconds()").count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_flags_limit_the_block_size() {
        let limit = format!("--gpu-max-threads-per-block={}", simt::MAX_THREADS);
        assert!(flags().any(|flag| flag == limit));
        assert!(flags().all(|flag| flag.starts_with('-') && !flag.contains(' ')));
    }

    #[test]
    fn waiting_units_read_the_clock() {
        for (unit, reads) in [("merge", true), ("probe", true), ("add", false), ("post", false)] {
            assert_eq!(reads_clock(&sources::expand(unit).unwrap()), reads, "{unit}");
        }
    }
}
