//! Fake CUDA and HIP drivers, for tests only: libraries with the vendors' functions, whose devices
//! are CPU threads. Our backends call them like real drivers, and they run our kernels, compiled
//! for the CPU (`shim/`).
//!
//! A test that passes on a fake shows that our code follows the API rules that the fake checks. It
//! shows nothing about a driver or a device.
//!
//! The fakes detect reads and writes outside of an allocation, use after free or destruction,
//! divergent barriers, and calls on the wrong device. They make other errors likely to show:
//! missing barriers, because lanes run in shuffled order, and reads of unwritten memory, because it
//! is initialised with NaN. They do not model speed, the order in which devices see each other's
//! writes, or register limits.

#![allow(unsafe_code, reason = "calls functions of the fake driver library")]

mod executor;
pub mod suite;

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use libloading::Library;

pub use executor::{Executor, Geometry, LaunchFault, Range};

/// A vendor whose driver is faked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Hip,
}

impl Vendor {
    /// Path of the fake library.
    #[must_use]
    pub fn library(self) -> PathBuf {
        library_folder().join(match self {
            Vendor::Cuda => "libcuda.so.1",
            Vendor::Hip => "libamdhip64.so.7",
        })
    }

    /// The environment variable from which the library reads its initial settings
    /// ([`Fake::set`]), for a process that finds the library through `LD_LIBRARY_PATH`.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Vendor::Cuda => "THERMOCLINE_FAKE_CUDA",
            Vendor::Hip => "THERMOCLINE_FAKE_HIP",
        }
    }
}

/// The folder of the fake libraries, for `LD_LIBRARY_PATH`.
#[must_use]
pub fn library_folder() -> &'static Path {
    Path::new(env!("OUT_DIR"))
}

/// Why this build has no usable fakes; `None` if it has.
#[must_use]
pub fn missing_reason() -> Option<&'static str> {
    let reason = env!("FAKES_MISSING");
    #[cfg(target_arch = "x86_64")]
    if env!("FAKES_LEVEL") == "x86-64-v3" {
        let can_run = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        if !can_run {
            return Some("the fakes need AVX2 and FMA; rebuild them on this machine");
        }
    }
    Some(reason).filter(|reason| !reason.is_empty())
}

type Configure = unsafe extern "C" fn(*const c_char) -> c_int;
type Count = unsafe extern "C" fn(c_int, *const c_char) -> u64;

/// A fake driver in this process.
pub struct Fake {
    configure: Configure,
    count: Count,
    set_executor: executor::SetExecutor,
    /// Never unloaded, because its devices are threads that run its code.
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
    /// The reason why this build has no fakes ([`missing_reason`]).
    pub fn load(vendor: Vendor) -> Result<Fake, String> {
        if let Some(reason) = missing_reason() {
            return Err(reason.to_owned());
        }
        let path = vendor.library();
        let fail = |error: libloading::Error| format!("{}: {error}", path.display());
        // SAFETY: this is our own library, whose initialiser only reads an environment variable.
        let library = unsafe { Library::new(&path) }.map_err(fail)?;
        // SAFETY: the types match the functions in `driver/world.cpp`.
        let (configure, count, set_executor) = unsafe {
            let configure = *library.get::<Configure>("fake_configure").map_err(fail)?;
            let count = *library.get::<Count>("fake_count").map_err(fail)?;
            let set = *library.get::<executor::SetExecutor>("fake_set_executor").map_err(fail)?;
            (configure, count, set)
        };
        let library = std::mem::ManuallyDrop::new(library);
        Ok(Fake { configure, count, set_executor, _library: library })
    }

    /// From now on, modules of this process are loaded and run by `executor`, not by the kernels
    /// compiled for the CPU. A later call has no effect.
    pub fn set_executor(&self, executor: &'static dyn Executor) {
        executor::set(self.set_executor, executor);
    }

    /// Applies settings, separated by blanks: `key=value` for all devices, `1:key=value` for
    /// device 1.
    ///
    /// Keys for the library: `devices` (number, 0 to 10), `version` (12040 is CUDA 12.4, 60032830
    /// is HIP 6.0), `init` (code that initialisation returns), `wave` (32 or 64, HIP), `arch`
    /// (HIP), `refuse_compiling` (1: hiprtc rejects every program), `crash_compiling` (1: hiprtc ends its
    /// process), `wrong_unit` (a kernel file whose
    /// kernels read wrong lanes and multiply matrices wrongly), `record` (folder to which launches
    /// are written), `log` (file to which each launch appends a line: kernel, three sizes of the grid,
    /// threads per block).
    ///
    /// Keys for devices:
    /// - `memory` (bytes), `hidden` (bytes of `memory` that are reported as free but cannot be
    ///   allocated), `granule` (allocations of 1 MiB and more take multiples of this), `units` (number of multiprocessors), `integrated` (0 or 1), `watchdog` (0 or
    ///   1), `major` and `minor` (compute capability);
    /// - `seed` (seed of the order of lanes; 0 for sequential order), `delay_us` (delay before
    ///   each work item), `wrong_matrix` (1: matrix instructions give wrong results);
    /// - `lost` (error code: the device is lost now), `lost_after` (it is lost after this many
    ///   launches) with `lost_code`;
    /// - `refuse_after` (one launch fails after this many launches) with `refuse_code`;
    /// - `hang_after` (kernels after this many launches wait until `release=1`);
    /// - `short_graphs` (1: graphs omit the last captured work), `blocking_graphs` (1: a graph
    ///   launch waits for its end), `blocking_calls` (1: allocations, loaded modules and new streams
    ///   wait for all work);
    /// - `reset=1` (resets all of these).
    ///
    /// # Panics
    /// If a key is unknown or a value is invalid.
    pub fn set(&self, settings: &str) {
        let text = CString::new(settings).expect("settings have no NUL");
        // SAFETY: `text` ends in NUL.
        let code = unsafe { (self.configure)(text.as_ptr()) };
        assert_eq!(code, 0, "unknown key or invalid value in the settings `{settings}`");
    }

    /// A counter. Counters of a device are `launches` (of kernels), `graphs` (launched graphs),
    /// `copies`, `bytes_in`, `bytes_out`, `used` and `most_used` (bytes of memory), and `lost` (the
    /// error code of the loss, or 0). `streams`, `events` and `modules` count the objects of all
    /// devices.
    ///
    /// # Panics
    /// If the counter does not exist.
    #[must_use]
    pub fn count(&self, device: i32, counter: &str) -> u64 {
        let text = CString::new(counter).expect("a name has no NUL");
        // SAFETY: `text` ends in NUL.
        let count = unsafe { (self.count)(device, text.as_ptr()) };
        assert_ne!(count, u64::MAX, "unknown counter `{counter}`");
        count
    }
}

/// Writes a copy of the fake driver without `function` to `folder`, for a process with that folder
/// in `LD_LIBRARY_PATH`.
///
/// # Errors
/// File errors, or an error if the driver has no such function.
pub fn copy_without(vendor: Vendor, function: &str, folder: &Path) -> io::Result<()> {
    let path = vendor.library();
    let mut bytes = fs::read(&path)?;
    let name = [b"\0", function.as_bytes(), b"\0"].concat();
    let found: Vec<usize> = (0..bytes.len().saturating_sub(name.len()))
        .filter(|&at| bytes[at..].starts_with(&name))
        .collect();
    if found.is_empty() {
        return Err(io::Error::other(format!("the fake driver has no function `{function}`")));
    }
    for at in found {
        bytes[at + 1] = b'X';
    }
    let name = path.file_name().unwrap_or_default();
    fs::write(folder.join(name), bytes)
}
