//! Data of the rules, and the exceptions with their reasons.

/// The crates of `src/`, which no backend may depend on. The compiler checks the dependencies among
/// them.
pub(crate) const SRC_CRATES: &[&str] = &[
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
    "scheduler",
    "serve",
    "constrain",
    "hub",
    "store",
    "planes",
];

/// Dependencies that only one crate may have: they take longest to compile.
pub(crate) const OWNED: &[(&str, &str)] = &[("faer", "src/learn/Cargo.toml")];

/// Dependencies that only tests may have, with the reason.
pub(crate) const TESTS_ONLY: &[(&str, &str)] = &[("hip-sys", "its build script wants ROCm")];

/// Code that must not use a device.
pub(crate) const PURE: &[&str] = &[
    "src/gguf/",
    "src/text/",
    "src/model/",
    "src/placement/",
    "src/convert/",
    "src/learn/",
    "src/constrain/",
    "src/hub/",
    "src/planes/",
    "src/measure/synthetic/",
    "src/runtime/embedded.rs",
];

/// Code of the engine that computes ops and sizes, and allocates no device memory.
pub(crate) const ENGINE_PURE: &[&str] = &["src/engine/ops/", "src/engine/size/"];

/// Types of `hal` that give access to a device.
#[rustfmt::skip]
pub(crate) const DEVICE_NAMES: &[&str] = &[
    "Backend", "BackendQueue", "Device", "DeviceId", "Mailbox", "Program", "Queue", "Recorder", "Run", "Tensor",
];

pub(crate) const BACKENDS: &[&str] =
    &["cpu", "simd", "sim", "simt", "lower", "cuda", "hip", "wgpu", "conformance"];

/// Allowed dependencies of `hal`.
pub(crate) const HAL_NEEDS: &[&str] = &["bytemuck", "half", "thiserror"];

/// Maximum number of lines of a Rust file.
pub(crate) const MAX_LINES: usize = 500;

/// Exceptions to [`MAX_LINES`], with the reason: only files that are one long list.
pub(crate) const LONG: &[(&str, &str)] = &[];

/// Files of more than 1 MB, with the reason.
pub(crate) const LARGE: &[(&str, &str)] = &[
    ("assets/tinystories-relu-f16.gguf.planes.gz", "the built-in model"),
    ("kernels-cuda/ptx.zst", "PTX of all kernels, compressed (scripts/make_ptx)"),
];

/// Files that may contain `unsafe`, with the reason.
pub(crate) const UNSAFE: &[(&str, &str)] = &[
    ("src/gguf/map.rs", "maps a file and releases its pages"),
    ("src/store/region.rs", "memory that is filled and released page by page"),
    ("src/store/ring.rs", "requests to io_uring, whose memory the kernel writes"),
    ("src/cli/allocation.rs", "an allocator that notes failures"),
    ("src/cli/backtrace.rs", "removes an environment variable before any thread starts"),
    ("src/cli/signal_actions.rs", "signal handlers"),
    ("src/cli/windows.rs", "handlers of exceptions and console events"),
    ("backends/simd/src/", "vector instructions"),
    ("backends/cpu/src/buffer.rs", "tensor memory shared by threads"),
    ("backends/cpu/src/buffer/views.rs", "tensor memory shared by threads"),
    ("backends/cpu/src/thread_pool.rs", "workers borrow a job"),
    ("backends/cpu/src/macos.rs", "functions of macOS"),
    ("backends/cpu/src/windows.rs", "functions of Windows"),
    ("backends/own_file/src/windows.rs", "functions of Windows"),
    ("backends/cpu/src/program.rs", "creates the tensor views of a program"),
    ("backends/fakes/", "calls functions of the fake drivers"),
    ("backends/ptx/", "kernels access memory by address"),
    ("backends/simt/src/driver.rs", "declares driver calls and their requirements"),
    ("backends/simt/src/native/", "calls a driver and owns its handles"),
    ("backends/cuda/src/library.rs", "functions of CUDA's driver"),
    ("backends/cuda/src/vendor.rs", "a CUDA context"),
    ("backends/hip/src/library.rs", "functions of HIP"),
    ("backends/hip/src/compiler.rs", "functions of ROCm's compiler"),
    ("backends/hip/src/vendor.rs", "a HIP device"),
    ("backends/simt/src/pinned.rs", "pinned memory that a device shares"),
    ("backends/simt/src/stream.rs", "meets the requirements of driver calls"),
    ("backends/wgpu/src/native.rs", "free memory and the pipeline cache"),
    ("backends/wgpu/src/radv.rs", "Mesa's null device, in tests"),
    ("tests/allocations.rs", "a counting allocator"),
    ("src/main.rs", "sets an environment variable before any thread starts"),
];
