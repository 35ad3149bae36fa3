//! Data of the rules, and the exceptions with their reasons.

/// The crates of `src/`, which no backend may depend on. The compiler checks which
/// of them uses which.
pub(crate) const HOUSE: &[&str] = &[
    "thermocline",
    "gguf",
    "text",
    "model",
    "placement",
    "engine",
    "learn",
    "convert",
    "measure",
    "runtime",
];

/// Dependencies that only one crate may have: they take longest to compile.
pub(crate) const OWNED: &[(&str, &str)] = &[("faer", "src/learn/Cargo.toml")];

/// Code that never sees a device: data in, data out.
pub(crate) const PURE: &[&str] = &[
    "src/gguf/",
    "src/text/",
    "src/model/",
    "src/placement/",
    "src/convert/",
    "src/learn/",
    "src/measure/synthetic/",
    "src/runtime/embedded.rs",
];

/// Code of the engine that asks devices for sizes and plans, and allocates nothing.
pub(crate) const ENGINE_PURE: &[&str] = &["src/engine/ops/", "src/engine/size/"];

/// Names in `hal` that stand for a device.
#[rustfmt::skip]
pub(crate) const DEVICE_NAMES: &[&str] = &[
    "Backend", "BackendQueue", "Device", "DeviceId", "Mailbox", "Program", "Queue", "Recorder", "Run", "Tensor",
];

pub(crate) const BACKENDS: &[&str] = &["cpu", "sim", "simt", "cuda", "hip", "wgpu", "conformance"];

/// Allowed dependencies of `hal`.
pub(crate) const HAL_NEEDS: &[&str] = &["bytemuck", "half", "thiserror"];

/// Maximum number of lines of a Rust file.
pub(crate) const MOST_LINES: usize = 500;

/// Exceptions to [`MOST_LINES`], with the reason: only files that are one long list.
pub(crate) const LONG: &[(&str, &str)] = &[];

/// Files of more than 1 MB, with the reason.
pub(crate) const LARGE: &[(&str, &str)] = &[
    ("assets/tinystories-relu-f16.gguf", "the built-in model"),
    ("kernels-cuda/ptx.zst", "PTX of all kernels, compressed (scripts/make_ptx)"),
];

/// Files that may contain `unsafe`, with the reason.
pub(crate) const UNSAFE: &[(&str, &str)] = &[
    ("src/gguf/map.rs", "a file mapped into memory, and its pages let go"),
    ("backends/cpu/src/simd/", "vector instructions"),
    ("backends/cpu/src/buffer.rs", "tensor memory that threads share"),
    ("backends/cpu/src/thread_pool.rs", "a job lent to the workers"),
    ("backends/cpu/src/program.rs", "the views of a program are made"),
    ("backends/fakes/", "a test's functions in a fake driver, and the vendors' in its tests"),
    ("backends/simt/src/driver.rs", "the calls of a driver, and what they want to be promised"),
    ("backends/simt/src/native/", "the calls of a driver are made, its handles kept"),
    ("backends/cuda/src/library.rs", "functions of CUDA's driver"),
    ("backends/cuda/src/vendor.rs", "a context of CUDA's driver"),
    ("backends/hip/src/library.rs", "functions of HIP"),
    ("backends/hip/src/compiler.rs", "functions of ROCm's compiler"),
    ("backends/hip/src/vendor.rs", "a device of HIP"),
    ("backends/simt/src/pinned.rs", "memory that a driver hands out and a device shares"),
    ("backends/simt/src/stream.rs", "what a driver wants to be promised is kept here"),
    ("backends/wgpu/src/native.rs", "free memory and kept pipelines: not wgpu's business"),
    ("tests/allocations.rs", "an allocator that counts"),
    ("src/main.rs", "an environment variable, before there are threads"),
];
