//! A fake device and its driver's functions.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::Library;
use thermocline_fakes::{Fake, Vendor};

pub(crate) type Raw = *mut c_void;
type Launch = unsafe extern "C" fn(
    Raw,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Raw,
    *mut Raw,
    *mut Raw,
) -> c_int;

/// Error codes that tests expect. CUDA and HIP use the same numbers.
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const ILLEGAL_ADDRESS: c_int = 700;
pub(crate) const LAUNCH_FAILED: c_int = 719;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    At(usize),
    Word(u32),
    Float(f32),
}

/// A lock per vendor and device, because all tests share the drivers.
static DEVICE_LOCKS: [[Mutex<()>; 8]; 2] = [const { [const { Mutex::new(()) }; 8] }; 2];

/// A device of a fake, which is locked as long as this value lives.
pub(crate) struct Device {
    pub(crate) fake: Fake,
    pub(crate) ordinal: i32,
    vendor: Vendor,
    library: Library,
    pub(crate) stream: Raw,
    _lock: MutexGuard<'static, ()>,
}

/// Opens device `ordinal` with default settings. Without fakes, prints the reason and returns
/// `None`, or fails the test if `THERMOCLINE_REQUIRE_GPU` is set.
pub(crate) fn open(vendor: Vendor, ordinal: i32) -> Option<Device> {
    let fake = match Fake::load(vendor) {
        Ok(fake) => fake,
        Err(reason) => {
            assert!(std::env::var_os("THERMOCLINE_REQUIRE_GPU").is_none(), "{reason}");
            eprintln!("skipped: {reason}");
            return None;
        }
    };
    let locks = &DEVICE_LOCKS[usize::from(vendor == Vendor::Hip)];
    // A test that uses both vendors locks CUDA's device first, which prevents a deadlock.
    let lock = locks[usize::try_from(ordinal).expect("an ordinal")].lock();
    let lock = lock.unwrap_or_else(PoisonError::into_inner);
    fake.set(&format!("devices=8 {ordinal}:reset=1"));
    // SAFETY: the library is already loaded.
    let library = unsafe { Library::new(vendor.library()) }.expect("the library is loaded");
    let stream = ptr::null_mut();
    let mut device = Device { fake, ordinal, vendor, library, stream, _lock: lock };
    device.enter();
    let mut stream = ptr::null_mut();
    assert_eq!(device.create("cuStreamCreate", "hipStreamCreateWithFlags", &mut stream, 1), 0);
    device.stream = stream;
    Some(device)
}

impl Device {
    /// A driver function, by its CUDA and its HIP name.
    ///
    /// # Safety
    /// `F` must be the function's type.
    pub(crate) unsafe fn find<F: Copy>(&self, cuda: &str, hip: &str) -> F {
        let name = if self.vendor == Vendor::Cuda { cuda } else { hip };
        // SAFETY: the caller guarantees the type.
        *unsafe { self.library.get::<F>(name) }.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Makes this device current for the thread.
    pub(crate) fn enter(&self) {
        // SAFETY: types as in the vendors' headers.
        unsafe {
            if self.vendor == Vendor::Cuda {
                let init: unsafe extern "C" fn(c_uint) -> c_int = self.find("cuInit", "");
                assert_eq!(init(0), 0);
                let retain: unsafe extern "C" fn(*mut Raw, c_int) -> c_int =
                    self.find("cuDevicePrimaryCtxRetain", "");
                let set: unsafe extern "C" fn(Raw) -> c_int = self.find("cuCtxSetCurrent", "");
                let mut context = ptr::null_mut();
                assert_eq!(retain(&raw mut context, self.ordinal), 0);
                assert_eq!(set(context), 0);
            } else {
                let set: unsafe extern "C" fn(c_int) -> c_int = self.find("", "hipSetDevice");
                assert_eq!(set(self.ordinal), 0);
            }
        }
    }

    /// Calls a function that takes a handle.
    pub(crate) fn call(&self, cuda: &str, hip: &str, handle: Raw) -> c_int {
        // SAFETY: types as in the vendors' headers; the fakes recognise invalid handles.
        unsafe { self.find::<unsafe extern "C" fn(Raw) -> c_int>(cuda, hip)(handle) }
    }

    /// Calls a function that creates an object, with flags, and stores the handle in `out`.
    pub(crate) fn create(&self, cuda: &str, hip: &str, out: &mut Raw, flags: c_uint) -> c_int {
        // SAFETY: types as in the vendors' headers.
        unsafe {
            self.find::<unsafe extern "C" fn(*mut Raw, c_uint) -> c_int>(cuda, hip)(out, flags)
        }
    }

    /// Calls a function that takes two handles.
    pub(crate) fn call_two(&self, cuda: &str, hip: &str, a: Raw, b: Raw) -> c_int {
        // SAFETY: types as in the vendors' headers.
        unsafe { self.find::<unsafe extern "C" fn(Raw, Raw) -> c_int>(cuda, hip)(a, b) }
    }

    pub(crate) fn try_alloc(&self, len: usize) -> Result<usize, c_int> {
        let mut at = 0;
        // SAFETY: types as in the vendors' headers.
        let code = unsafe {
            let alloc: unsafe extern "C" fn(*mut usize, usize) -> c_int =
                self.find("cuMemAlloc_v2", "hipMalloc");
            alloc(&raw mut at, len)
        };
        if code == 0 { Ok(at) } else { Err(code) }
    }

    pub(crate) fn alloc(&self, words: usize) -> usize {
        self.try_alloc(words * 4).expect("the allocation fits")
    }

    pub(crate) fn free(&self, at: usize) -> c_int {
        self.call("cuMemFree_v2", "hipFree", ptr::with_exposed_provenance_mut(at))
    }

    /// Copies words to the device and waits.
    pub(crate) fn try_write(&self, at: usize, words: &[u32]) -> c_int {
        type In = unsafe extern "C" fn(usize, *const c_void, usize, Raw) -> c_int;
        // SAFETY: types as in the vendors' headers; the words live until the copy is done.
        let code = unsafe {
            let copy: In = self.find("cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync");
            copy(at, words.as_ptr().cast(), words.len() * 4, self.stream)
        };
        if code == 0 { self.finish() } else { code }
    }

    pub(crate) fn buffer(&self, words: &[u32]) -> usize {
        let at = self.alloc(words.len());
        assert_eq!(self.try_write(at, words), 0);
        at
    }

    pub(crate) fn read(&self, at: usize, n: usize) -> Vec<u32> {
        type Out = unsafe extern "C" fn(*mut c_void, usize, usize, Raw) -> c_int;
        let mut words = vec![0u32; n];
        // SAFETY: types as in the vendors' headers.
        let code = unsafe {
            let copy: Out = self.find("cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync");
            copy(words.as_mut_ptr().cast(), at, n * 4, self.stream)
        };
        assert_eq!(code, 0);
        assert_eq!(self.finish(), 0);
        words
    }

    pub(crate) fn finish(&self) -> c_int {
        self.call("cuStreamSynchronize", "hipStreamSynchronize", self.stream)
    }

    pub(crate) fn try_module(&self, unit: &str) -> Result<Raw, c_int> {
        let mut module = ptr::null_mut();
        let image = CString::new(format!("// unit {unit}\n.version 8.0\n")).expect("no NUL");
        // SAFETY: types as in the vendors' headers.
        let code = unsafe {
            let load: unsafe extern "C" fn(*mut Raw, *const c_void) -> c_int =
                self.find("cuModuleLoadData", "hipModuleLoadData");
            load(&raw mut module, image.as_ptr().cast())
        };
        if code == 0 { Ok(module) } else { Err(code) }
    }

    pub(crate) fn try_function(&self, module: Raw, name: &str) -> Result<Raw, c_int> {
        let mut function = ptr::null_mut();
        let name = CString::new(name).expect("no NUL");
        // SAFETY: types as in the vendors' headers.
        let code = unsafe {
            let find: unsafe extern "C" fn(*mut Raw, Raw, *const c_char) -> c_int =
                self.find("cuModuleGetFunction", "hipModuleGetFunction");
            find(&raw mut function, module, name.as_ptr())
        };
        if code == 0 { Ok(function) } else { Err(code) }
    }

    pub(crate) fn function(&self, unit: &str, name: &str) -> Raw {
        let module = self.try_module(unit).expect("the unit exists");
        self.try_function(module, name).expect("the kernel exists")
    }

    /// Launches a kernel; returns the call's code.
    pub(crate) fn start(
        &self,
        function: Raw,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        args: &[Arg],
    ) -> c_int {
        let mut pointers: Vec<Raw> = args
            .iter()
            .map(|arg| match arg {
                Arg::At(at) => ptr::from_ref(at).cast_mut().cast(),
                Arg::Word(word) => ptr::from_ref(word).cast_mut().cast(),
                Arg::Float(float) => ptr::from_ref(float).cast_mut().cast(),
            })
            .collect();
        let [x, y, z] = grid;
        // SAFETY: tests pass arguments of the types that their kernels declare.
        unsafe {
            let launch: Launch = self.find("cuLaunchKernel", "hipModuleLaunchKernel");
            let (params, none) = (pointers.as_mut_ptr(), ptr::null_mut());
            launch(function, x, y, z, block, 1, 1, shared, self.stream, params, none)
        }
    }

    /// Launches a kernel in a one-dimensional grid and waits for its end; returns the first error.
    pub(crate) fn run(
        &self,
        kernel: (&str, &str),
        grid: u32,
        block: u32,
        shared: u32,
        args: &[Arg],
    ) -> c_int {
        let function = self.function(kernel.0, kernel.1);
        let code = self.start(function, [grid, 1, 1], block, shared, args);
        if code == 0 { self.finish() } else { code }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A lost device rejects this call.
        let _ = self.call("cuStreamDestroy_v2", "hipStreamDestroy", self.stream);
    }
}
