//! A fake driver whose kernels are run by Rust code instead of the kernels compiled for the CPU.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::OnceLock;

/// A live allocation, in device memory or in pinned memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Range {
    /// Address of its first byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// Size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u64,
    /// Seed of the order of blocks and warps; 0 for sequential order.
    pub seed: u64,
}

/// Why a launch failed: the device is lost afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchFault {
    /// An access outside of every allocation, or misaligned.
    Address(String),
    /// Any other.
    Kernel(String),
}

/// Loads images and runs their kernels.
pub trait Executor: Sync {
    /// A number other than 0 for the loaded module.
    ///
    /// # Errors
    /// The text of the driver's error log.
    fn load(&self, device: i32, image: &str) -> Result<u64, String>;

    /// Forgets a module.
    fn unload(&self, module: u64);

    /// Sizes of a kernel's parameters, in bytes; `None` if the module has no such kernel.
    fn parameters(&self, module: u64, kernel: &str) -> Option<Vec<u32>>;

    /// Runs a kernel to its end. `values` are its arguments; it may access `ranges` alone.
    ///
    /// # Errors
    /// Why the kernel did not reach its end.
    ///
    /// # Safety
    /// All of `ranges` is memory of this process that stays readable and writable until the call
    /// returns. Other threads access it at the same time only as the host accesses memory that a
    /// kernel of a real device uses.
    unsafe fn launch(
        &self,
        module: u64,
        kernel: &str,
        geometry: &Geometry,
        values: &[u64],
        ranges: &[Range],
    ) -> Result<(), LaunchFault>;
}

/// `fake::Text` in `driver/fake.h`.
#[repr(C)]
pub(crate) struct Text {
    bytes: [u8; 1024],
}

/// `fake::Executor` in `driver/fake.h`.
#[repr(C)]
pub(crate) struct Table {
    load: unsafe extern "C" fn(c_int, *const c_char, *mut Text) -> u64,
    unload: unsafe extern "C" fn(u64),
    parameters: unsafe extern "C" fn(u64, *const c_char, *mut u32) -> c_int,
    launch: unsafe extern "C" fn(u64, *const c_char, *const Arguments, *mut Text) -> c_int,
}

/// `fake::Arguments` in `driver/fake.h`.
#[repr(C)]
pub(crate) struct Arguments {
    geometry: Geometry,
    values: *const u64,
    n_values: u64,
    ranges: *const Range,
    n_ranges: u64,
}

pub(crate) type SetExecutor = unsafe extern "C" fn(*const Table);

const ILLEGAL_ADDRESS: c_int = 700;
const LAUNCH_FAILED: c_int = 719;
/// Maximum number of parameters of a kernel.
const MAX_PARAMETERS: usize = 64;

static EXECUTOR: OnceLock<&'static dyn Executor> = OnceLock::new();
static TABLE: Table = Table { load, unload, parameters, launch };

pub(crate) fn set(call: SetExecutor, executor: &'static dyn Executor) {
    EXECUTOR.get_or_init(|| executor);
    // SAFETY: the table is never freed, and its types are those of the C++ declaration.
    unsafe { call(&raw const TABLE) };
}

/// The executor; the table with these functions is passed on after it is set.
fn executor() -> &'static dyn Executor {
    *EXECUTOR.get().expect("the executor is set before its table")
}

/// Runs a callback; a panic, which must not unwind into C++, becomes an error.
fn guarded<T>(call: impl FnOnce() -> Result<T, LaunchFault>) -> Result<T, LaunchFault> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        Err(LaunchFault::Kernel(format!("the executor panicked: {}", text.unwrap_or_default())))
    })
}

/// Writes as much of a text as fits, with a final NUL.
unsafe fn write(to: *mut Text, text: &str) {
    // SAFETY: the driver passes a pointer to a `Text` of its own.
    let bytes = unsafe { &mut (*to).bytes };
    let n = text.len().min(bytes.len() - 1);
    bytes[..n].copy_from_slice(&text.as_bytes()[..n]);
    bytes[n] = 0;
}

/// A text of the driver's caller.
unsafe fn read<'a>(text: *const c_char) -> &'a str {
    // SAFETY: images and names end in NUL and live until the call returns.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

// SAFETY: only the C++ driver calls this, with pointers that are valid during the call.
unsafe extern "C" fn load(device: c_int, image: *const c_char, log: *mut Text) -> u64 {
    // SAFETY: the driver passes an image that ends in NUL.
    let image = unsafe { read(image) };
    match guarded(|| executor().load(device, image).map_err(LaunchFault::Kernel)) {
        Ok(module) => module,
        Err(LaunchFault::Address(text) | LaunchFault::Kernel(text)) => {
            // SAFETY: the driver's buffer.
            unsafe { write(log, &text) };
            0
        }
    }
}

// SAFETY: only the C++ driver calls this, with pointers that are valid during the call.
unsafe extern "C" fn unload(module: u64) {
    let _ = guarded(|| {
        executor().unload(module);
        Ok(())
    });
}

// SAFETY: only the C++ driver calls this, with pointers that are valid during the call.
unsafe extern "C" fn parameters(module: u64, name: *const c_char, sizes: *mut u32) -> c_int {
    // SAFETY: the driver passes a name that ends in NUL.
    let name = unsafe { read(name) };
    let found = guarded(|| Ok(executor().parameters(module, name)));
    let Ok(Some(found)) = found else { return -1 };
    if found.len() > MAX_PARAMETERS {
        return -1;
    }
    // SAFETY: the driver's array has `MAX_PARAMETERS` elements.
    unsafe { slice::from_raw_parts_mut(sizes, found.len()) }.copy_from_slice(&found);
    found.len() as c_int
}

/// An array of the driver's.
unsafe fn array<'a, T>(at: *const T, n: u64) -> &'a [T] {
    if n == 0 {
        return &[];
    }
    // SAFETY: the driver passes an array of this length, which lives until the call returns.
    unsafe { slice::from_raw_parts(at, n as usize) }
}

// SAFETY: only the C++ driver calls this, with pointers that are valid during the call.
unsafe extern "C" fn launch(
    module: u64,
    name: *const c_char,
    arguments: *const Arguments,
    fault: *mut Text,
) -> c_int {
    // SAFETY: the driver passes a name that ends in NUL, and valid arguments.
    let (name, geometry, values, ranges) = unsafe {
        let Arguments { geometry, values, n_values, ranges, n_ranges } = &*arguments;
        (read(name), geometry, array(*values, *n_values), array(*ranges, *n_ranges))
    };
    // SAFETY: the driver lists its live allocations, and frees none of them before the call returns.
    let run = || unsafe { executor().launch(module, name, geometry, values, ranges) };
    let (code, text) = match guarded(run) {
        Ok(()) => return 0,
        Err(LaunchFault::Address(text)) => (ILLEGAL_ADDRESS, text),
        Err(LaunchFault::Kernel(text)) => (LAUNCH_FAILED, text),
    };
    // SAFETY: the driver's buffer.
    unsafe { write(fault, &text) };
    code
}
