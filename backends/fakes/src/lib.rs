//! Fake drivers of CUDA and HIP, for tests alone: libraries with the vendors' functions, whose
//! devices are CPU threads. The real code of our backends calls them, and the real kernels run,
//! compiled for the CPU (`shim/`).
//!
//! A test that passes on a fake shows that our code follows the API rules that the fake checks. It
//! shows nothing about a driver or a device.
//!
//! The fakes detect: reads and writes outside of an allocation, use after free or destruction,
//! divergent barriers, missing barriers (by shuffled orders), reads of unwritten memory
//! (initialised with NaN), calls on the wrong device. Not modelled: speed, the order in which
//! devices see each other's writes, register limits.

#![allow(unsafe_code, reason = "the test's own functions in a library")]

pub mod suite;

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use libloading::Library;

/// A vendor whose driver is faked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Hip,
}

impl Vendor {
    /// The library's file.
    #[must_use]
    pub fn library(self) -> PathBuf {
        folder().join(match self {
            Vendor::Cuda => "libcuda.so.1",
            Vendor::Hip => "libamdhip64.so.7",
        })
    }

    /// The environment variable with a process's initial settings ([`Fake::set`]), for a process
    /// that finds the library because `LD_LIBRARY_PATH` is [`folder`].
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Vendor::Cuda => "THERMOCLINE_FAKE_CUDA",
            Vendor::Hip => "THERMOCLINE_FAKE_HIP",
        }
    }
}

/// The folder of the libraries.
#[must_use]
pub fn folder() -> &'static Path {
    Path::new(env!("OUT_DIR"))
}

/// Why there are no fakes, if there are none.
#[must_use]
pub fn missing() -> Option<&'static str> {
    let missing = env!("FAKES_MISSING");
    #[cfg(target_arch = "x86_64")]
    if env!("FAKES_LEVEL") == "x86-64-v3" {
        let same = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        if !same {
            return Some("the fakes were compiled on another machine");
        }
    }
    Some(missing).filter(|missing| !missing.is_empty())
}

type Configure = unsafe extern "C" fn(*const c_char) -> c_int;
type Count = unsafe extern "C" fn(c_int, *const c_char) -> u64;

/// A fake driver in this process.
pub struct Fake {
    configure: Configure,
    count: Count,
    /// Never closed: its devices are threads.
    _library: std::mem::ManuallyDrop<Library>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fake")
    }
}

impl Fake {
    /// Loads the fake driver. From then on, loading the vendor's driver library by its name gives
    /// this fake. All loads in a process share one driver with the same devices.
    ///
    /// # Errors
    /// The reason why this build has no fakes ([`missing`]).
    pub fn load(vendor: Vendor) -> Result<Fake, String> {
        if let Some(missing) = missing() {
            return Err(missing.to_owned());
        }
        let path = vendor.library();
        let fail = |error: libloading::Error| format!("{}: {error}", path.display());
        // SAFETY: our own library; its initialiser only reads an environment variable.
        let library = unsafe { Library::new(&path) }.map_err(fail)?;
        // SAFETY: the types of these functions in `driver/world.cpp`.
        let (configure, count) = unsafe {
            let configure = *library.get::<Configure>("fake_configure").map_err(fail)?;
            (configure, *library.get::<Count>("fake_count").map_err(fail)?)
        };
        Ok(Fake { configure, count, _library: std::mem::ManuallyDrop::new(library) })
    }

    /// Applies settings: `key=value` for all devices, `1:key=value` for one, separated by blanks.
    ///
    /// For the library: `devices` (0 to 10), `version` (12040 is CUDA 12.4, 60032830 HIP 6.0),
    /// `init` (code returned by the first call), `wave` (32 or 64, HIP), `arch` (HIP),
    /// `refuse_compiling` (hiprtc), `record` (a folder for launches).
    ///
    /// For devices: `memory` (bytes), `hidden` (bytes of it that are reported as free but cannot
    /// be allocated), `seed` (of the order of lanes; 0 for none), `delay_us` (before each work
    /// item), `lost` (a code: from now on), `lost_after` (launches from now) with `lost_code`,
    /// `refuse_after` (launches from now: one call fails) with `refuse_code`, `hang_after`
    /// (launches from now: kernels wait) until `release=1`, `watchdog`, `integrated`,
    /// `short_graphs` (they omit the last recorded work), `blocking_graphs` (launching one waits
    /// for it), `units`, `wrong_matrix`, `major`, `minor`, and `reset=1` (resets all of these).
    ///
    /// # Panics
    /// If a key is unknown.
    pub fn set(&self, settings: &str) {
        let text = CString::new(settings).expect("settings have no NUL");
        // SAFETY: a text that ends in NUL.
        let code = unsafe { (self.configure)(text.as_ptr()) };
        assert_eq!(code, 0, "the fake does not know all of `{settings}`");
    }

    /// A counter of a device: `launches` of kernels, `graphs` that were launched, `copies`,
    /// `bytes_in`, `bytes_out`, `used` and `most_used` bytes, the code of its loss (`lost`); and
    /// over all devices `streams`, `events`, `modules`.
    ///
    /// # Panics
    /// If the counter does not exist.
    #[must_use]
    pub fn count(&self, device: i32, what: &str) -> u64 {
        let text = CString::new(what).expect("a word has no NUL");
        // SAFETY: a text that ends in NUL.
        let count = unsafe { (self.count)(device, text.as_ptr()) };
        assert_ne!(count, u64::MAX, "the fake does not count `{what}`");
        count
    }
}

/// Writes a copy of a driver that lacks a function to a folder: for `LD_LIBRARY_PATH` of a
/// process.
///
/// # Errors
/// Errors of files, or if the function does not exist.
pub fn without(vendor: Vendor, function: &str, folder: &Path) -> io::Result<()> {
    let path = vendor.library();
    let mut bytes = fs::read(&path)?;
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let found: Vec<usize> = (0..bytes.len().saturating_sub(name.len()))
        .filter(|&at| bytes[at..].starts_with(&name))
        .collect();
    if found.is_empty() {
        return Err(io::Error::other(format!("the fake has no {function}")));
    }
    for at in found {
        bytes[at + 1] = b'X';
    }
    let name = path.file_name().unwrap_or_default();
    fs::write(folder.join(name), bytes)
}
