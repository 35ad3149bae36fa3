//! Fake drivers of CUDA and HIP, for tests alone: libraries with the vendors' functions, whose devices are threads of the
//! CPU. The real code of our backends calls them, and the real kernels run, compiled for the CPU (`shim/`).
//!
//! A test that passes on a fake says that our code keeps to the rules as the fake knows them. It says nothing about a
//! driver or a device.
//!
//! Found by the fakes: reads and writes outside of an allocation, use of what was freed or destroyed, divergent barriers,
//! missing barriers (by shuffled orders), reads of what nobody wrote (memory begins as NaN), calls on the wrong device.
//! Not modelled: speed, the order in which devices see each other's writes, limits of registers.

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

    /// The variable of the environment that a process has its settings from ([`Fake::set`]), which finds the library
    /// because `LD_LIBRARY_PATH` is [`folder`].
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Vendor::Cuda => "THERMOCLINE_FAKE_CUDA",
            Vendor::Hip => "THERMOCLINE_FAKE_HIP",
        }
    }
}

/// Where the libraries are.
#[must_use]
pub fn folder() -> &'static Path {
    Path::new(env!("OUT_DIR"))
}

/// Why there are no fakes here, if there are none.
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
    /// Loads the fake driver, which from now on is what this process finds under the driver's name. All that is loaded in
    /// a process is one driver with the same devices.
    ///
    /// # Errors
    /// Why there is none.
    pub fn load(vendor: Vendor) -> Result<Fake, String> {
        if let Some(missing) = missing() {
            return Err(missing.to_owned());
        }
        let path = vendor.library();
        let fail = |error: libloading::Error| format!("{}: {error}", path.display());
        // SAFETY: our own library; what it does at its start is to read a variable of the environment.
        let library = unsafe { Library::new(&path) }.map_err(fail)?;
        // SAFETY: the types of these functions in `driver/world.cpp`.
        let (configure, count) = unsafe {
            let configure = *library.get::<Configure>("fake_configure").map_err(fail)?;
            (configure, *library.get::<Count>("fake_count").map_err(fail)?)
        };
        Ok(Fake { configure, count, _library: std::mem::ManuallyDrop::new(library) })
    }

    /// Sets what a test wants: `key=value` for all devices, `1:key=value` for one, parted by blanks.
    ///
    /// Of the library: `devices` (0 to 10), `version` (12040 is CUDA 12.4, 60032830 HIP 6.0), `init` (what the first call
    /// returns), `wave` (32 or 64, HIP), `arch` (HIP), `refuse_compiling` (hiprtc), `record` (a folder for launches).
    ///
    /// Of devices: `memory` (bytes), `hidden` (bytes of it that are told as free and cannot be had), `seed` (of the order of lanes; 0 for none), `delay_us` (before each piece of work),
    /// `lost` (a code: from now on), `lost_after` (launches from now) with `lost_code`, `refuse_after` (launches from now:
    /// one call fails) with `refuse_code`, `hang_after` (launches from now: kernels wait) until `release=1`, `watchdog`,
    /// `integrated`, `short_graphs` (they leave out
    /// what was recorded last), `blocking_graphs` (starting one waits for it), `units`, `wrong_matrix`, `major`, `minor`, and `reset=1` (all of this as at first).
    ///
    /// # Panics
    /// If a word is not one of these.
    pub fn set(&self, settings: &str) {
        let text = CString::new(settings).expect("settings have no NUL");
        // SAFETY: a text that ends in NUL.
        let code = unsafe { (self.configure)(text.as_ptr()) };
        assert_eq!(code, 0, "the fake does not know all of `{settings}`");
    }

    /// A number about a device: `launches` of kernels, `graphs` that were started, `copies`, `bytes_in`, `bytes_out`,
    /// `used` and `most_used` bytes, the code of its loss (`lost`); and of all devices `streams`, `events`, `modules`.
    ///
    /// # Panics
    /// If there is no such number.
    #[must_use]
    pub fn count(&self, device: i32, what: &str) -> u64 {
        let text = CString::new(what).expect("a word has no NUL");
        // SAFETY: a text that ends in NUL.
        let count = unsafe { (self.count)(device, text.as_ptr()) };
        assert_ne!(count, u64::MAX, "the fake does not count `{what}`");
        count
    }
}

/// Writes a copy of a driver that lacks a function to a folder: for `LD_LIBRARY_PATH` of a process.
///
/// # Errors
/// Of files; and if there is no such function.
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
