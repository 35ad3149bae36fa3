//! Finds devices. The only file that names backends.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hal::null::NullBackend;
use hal::{Backend, Bytes, Device, DeviceId};

use cpu::CpuBackend;
pub use cpu::{
    CpuOptions, Notice, Numa, PrefetchDistance, Priority, last_level_cache, memory_beside,
};

use crate::switches::{DeviceSwitches, Switches};

/// The CPU with `threads` workers (`None`: one per core that this process may use), as the first
/// device of an engine's list.
#[must_use]
pub fn cpu(threads: Option<usize>) -> Device {
    cpu_with(CpuOptions { threads, ..CpuOptions::default() })
}

/// The CPU with `options`.
#[must_use]
pub fn cpu_with(options: CpuOptions) -> Device {
    Device::new(cpu_backend(options), DeviceId(0), Bytes::MAX)
}

/// The CPU with `options`, without a memory ledger.
#[must_use]
pub fn cpu_backend(options: CpuOptions) -> Arc<dyn Backend> {
    CpuBackend::new(options)
}

/// Number of workers of [`cpu()`].
#[must_use]
pub fn cpu_threads(threads: Option<usize>) -> usize {
    CpuOptions { threads, ..CpuOptions::default() }.n_threads()
}

type Open = Arc<dyn Fn(&Switches) -> hal::Result<Arc<dyn Backend>> + Send + Sync>;

/// A usable device other than the CPU.
#[derive(Clone)]
pub struct Candidate {
    /// The device's name, such as `Vulkan0` or `Metal0`.
    pub name: String,
    /// The driver's description of the device.
    pub description: String,
    /// The backend, one of [`BACKENDS`].
    pub backend: &'static str,
    /// Whether the driver computes on the CPU. Such a device is used only if the user names it.
    pub software: bool,
    /// The name of the same card in a vendor's backend; this candidate is then used only if the
    /// user names it or its backend. `None` if only this backend lists the card.
    pub same_as: Option<String>,
    /// Estimate of the device memory that the driver uses beyond the counted allocations.
    pub reserve: Bytes,
    open: Open,
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Candidate {
    /// A device to plan for that this machine does not have.
    #[must_use]
    pub fn assumed(name: &str, memory: Bytes) -> Candidate {
        let device = Arc::new(NullBackend::assumed(name, memory));
        let open: Open = Arc::new(move |_| Ok(Arc::clone(&device) as Arc<dyn Backend>));
        let (name, description) = (name.to_owned(), device_description(&open));
        Candidate {
            name,
            description,
            backend: "assumed",
            software: false,
            same_as: None,
            reserve: DRIVER_RESERVE,
            open,
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn open(&self) -> hal::Result<Arc<dyn Backend>> {
        self.open_with(&DeviceSwitches::default())
    }

    /// Opens the device, with its switches.
    ///
    /// # Errors
    /// The driver's error.
    pub fn open_with(&self, switches: &DeviceSwitches) -> hal::Result<Arc<dyn Backend>> {
        (self.open)(&switches.of(&self.name))
    }

    /// This device, with a driver that fails for this reason.
    #[cfg(test)]
    pub(crate) fn failing(self, reason: &str) -> Candidate {
        let message = reason.to_owned();
        let open: Open = Arc::new(move |_| {
            let (call, message) = ("open".to_owned(), message.clone());
            Err(hal::Error::Driver { call, code: 1, message })
        });
        Candidate { open, ..self }
    }
}

fn device_description(open: &Open) -> String {
    open(&Switches::default())
        .map_or_else(|error| error.to_string(), |device| device.info().described())
}

/// Estimate of the memory that a card's driver uses beyond the counted allocations: pipelines,
/// descriptors, page tables. No API reports this memory on all platforms.
pub const DRIVER_RESERVE: Bytes = Bytes(64 << 20);

/// A backend without a usable device, or a rejected device, and a hint for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingBackend {
    /// One of [`BACKENDS`].
    pub backend: &'static str,
    /// Whether this program includes the backend, so that only a driver or a device is missing.
    pub is_built: bool,
    /// The missing library, driver or build feature, or why the device is rejected.
    pub reason: String,
    /// What the user can install or do.
    pub hint: String,
}

/// The names of all backends, including the CPU's.
pub const BACKENDS: [&str; 4] = ["cpu", "cuda", "hip", "wgpu"];

/// The backends of this build.
#[must_use]
pub fn built() -> Vec<&'static str> {
    let is_built = |name: &&str| match *name {
        "cuda" => cfg!(feature = "cuda"),
        "hip" => cfg!(all(feature = "hip", target_os = "linux", target_arch = "x86_64")),
        _ => true,
    };
    BACKENDS.into_iter().filter(is_built).collect()
}

/// The backend that a device name belongs to.
#[must_use]
pub fn backend_of(device: &str) -> &'static str {
    let name = device.to_lowercase();
    match () {
        () if name.starts_with("cpu") => "cpu",
        () if name.starts_with("cuda") => "cuda",
        () if name.starts_with("hip") || name.starts_with("rocm") => "hip",
        () => "wgpu",
    }
}

/// How kernels are compiled that have to be compiled on this machine.
#[derive(Clone, Default)]
pub struct KernelCompilation {
    /// Folder for compiled kernels, if the driver allows it.
    pub folder: Option<PathBuf>,
    /// A program that calls [`compile_kernel`] if its argument is [`COMPILE_COMMAND`]: a crash of
    /// the compiler then ends that process. `None` compiles in this process.
    pub program: Option<PathBuf>,
    /// Called when a compilation begins (`true`) and ends (`false`), by several threads at once.
    pub watch: Option<Arc<dyn Fn(bool) + Send + Sync>>,
}

impl fmt::Debug for KernelCompilation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelCompilation { folder, program, .. } = self;
        f.debug_struct("KernelCompilation")
            .field("folder", folder)
            .field("program", program)
            .finish_non_exhaustive()
    }
}

/// The argument with which [`KernelCompilation::program`] compiles a kernel.
pub const COMPILE_COMMAND: &str = "compile-kernel";

/// Compiles the kernel that a parent process asks for.
///
/// # Errors
/// Errors of the streams, an invalid request, or a build that compiles no kernels.
pub fn compile_kernel(input: &mut dyn Read, output: &mut dyn Write) -> io::Result<()> {
    #[cfg(all(feature = "hip", target_os = "linux", target_arch = "x86_64"))]
    return hip::serve_compilation(input, output);
    #[cfg(not(all(feature = "hip", target_os = "linux", target_arch = "x86_64")))]
    {
        let _ = (input, output);
        Err(io::Error::new(io::ErrorKind::Unsupported, "this program compiles no kernels"))
    }
}

/// [`candidates_with`] that compile in this process, with compiled kernels in `folder`.
#[must_use]
pub fn candidates(folder: Option<&Path>) -> (Vec<Candidate>, Vec<MissingBackend>) {
    let folder = folder.map(Path::to_owned);
    candidates_with(&KernelCompilation { folder, ..KernelCompilation::default() })
}

/// Every device other than the CPU, wgpu's last, and the backends without a usable device.
/// Detection takes time, so a command calls this once. Add a new backend here.
#[must_use]
pub fn candidates_with(compilation: &KernelCompilation) -> (Vec<Candidate>, Vec<MissingBackend>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    find_cuda_cards(&mut found, &mut missing);
    find_hip_cards(compilation, &mut found, &mut missing);
    let folder = compilation.folder.as_deref();
    let cards = found.len();
    for adapter in wgpu_backend::adapters() {
        let same = found[..cards].iter().find(|card| card.matches(&adapter));
        let same_as = same.map(|card: &Card| card.candidate.name.clone());
        let mut card = wgpu_card(adapter, folder);
        card.candidate.same_as = same_as;
        found.push(card);
    }
    let found: Vec<Candidate> = found.into_iter().map(|card| card.candidate).collect();
    missing.extend(missing_wgpu(&found[cards..]));
    if IS_STATIC {
        for missing in &mut missing {
            missing.reason = "this program is static, so it cannot load drivers".to_owned();
            missing.hint = "use a program for Linux with glibc (linux-gnu)".to_owned();
        }
    }
    (found, missing)
}

/// Whether this program has its C library in itself, as those for Linux with musl have: such
/// programs have no loader for libraries.
const IS_STATIC: bool = cfg!(all(target_os = "linux", target_feature = "crt-static"));

/// A candidate with its PCI slot and PCI vendor id.
struct Card {
    candidate: Candidate,
    slot: String,
    vendor: u32,
}

impl Card {
    /// Whether this is the card of `adapter`. If one of the drivers does not report the PCI slot,
    /// any card of the same vendor counts as the same card.
    fn matches(&self, adapter: &wgpu_backend::Adapter) -> bool {
        let slots = [self.slot.clone(), simt::normalise_pci_slot(adapter.slot())];
        if slots.iter().any(|slot| slot.is_empty()) {
            self.vendor == adapter.vendor()
        } else {
            slots[0] == slots[1]
        }
    }
}

/// The entry for a backend that this program was built without.
#[cfg(not(all(feature = "cuda", feature = "hip")))]
#[cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    allow(dead_code, reason = "HIP is only supported on Linux")
)]
fn missing_at_build(backend: &'static str) -> MissingBackend {
    MissingBackend {
        backend,
        is_built: false,
        reason: format!("this program was built without the {backend} backend"),
        hint: format!("build it with `cargo build --release --features {backend}`"),
    }
}

/// Adds NVIDIA GPUs to `found`, or the reason why CUDA has none to `missing`.
#[cfg(feature = "cuda")]
fn find_cuda_cards(found: &mut Vec<Card>, missing: &mut Vec<MissingBackend>) {
    let open = |device: simt::FoundDevice| -> Open {
        Arc::new(move |switches| {
            let opened = cuda::open_with(&device, simt_options(switches));
            opened.map(|backend| backend as Arc<dyn Backend>)
        })
    };
    match cuda::devices() {
        Ok(devices) => add_vendor_cards("cuda", NVIDIA, devices, &open, found, missing),
        Err(why) => missing.push(missing_library("cuda", &why)),
    }
}

#[cfg(not(feature = "cuda"))]
fn find_cuda_cards(_found: &mut Vec<Card>, missing: &mut Vec<MissingBackend>) {
    missing.push(missing_at_build("cuda"));
}

/// Adds AMD GPUs to `found`, or the reason why HIP has none to `missing`.
#[cfg(all(feature = "hip", target_os = "linux", target_arch = "x86_64"))]
fn find_hip_cards(
    compilation: &KernelCompilation,
    found: &mut Vec<Card>,
    missing: &mut Vec<MissingBackend>,
) {
    let open = |device: simt::FoundDevice| -> Open {
        let KernelCompilation { folder, program, watch } = compilation.clone();
        let helper = program.map(|program| (program, COMPILE_COMMAND));
        let compilation = hip::Compilation { folder, helper, watch };
        Arc::new(move |switches| {
            let opened = hip::open_with(&device, &compilation, simt_options(switches));
            opened.map(|backend| backend as Arc<dyn Backend>)
        })
    };
    match hip::devices() {
        Ok(devices) => add_vendor_cards("hip", AMD, devices, &open, found, missing),
        Err(why) => missing.push(missing_library("hip", &why)),
    }
}

#[cfg(all(not(feature = "hip"), target_os = "linux", target_arch = "x86_64"))]
fn find_hip_cards(
    _compilation: &KernelCompilation,
    _found: &mut Vec<Card>,
    missing: &mut Vec<MissingBackend>,
) {
    missing.push(missing_at_build("hip"));
}

/// The HIP backend supports only Linux on x86-64.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn find_hip_cards(
    _compilation: &KernelCompilation,
    _found: &mut Vec<Card>,
    missing: &mut Vec<MissingBackend>,
) {
    missing.push(MissingBackend {
        backend: "hip",
        is_built: false,
        reason: "it is for Linux on x86-64 alone".to_owned(),
        hint: "AMD's cards work through the backend wgpu here".to_owned(),
    });
}

/// Options of a device that runs the kernels of `kernels-cuda`.
#[cfg(any(feature = "cuda", feature = "hip"))]
fn simt_options(switches: &Switches) -> simt::Options {
    let Switches { graphs, flags, mma, prefetch, subgroups: _, self_test: _ } = *switches;
    simt::Options { graphs, flags, matrix_units: mma, prefetch, ..simt::Options::default() }
}

/// PCI vendor id.
#[cfg(feature = "cuda")]
const NVIDIA: u32 = 0x10de;
#[cfg(all(feature = "hip", target_os = "linux", target_arch = "x86_64"))]
const AMD: u32 = 0x1002;

/// Adds a vendor's usable devices to `found`, and devices that its backend rejects to `missing`.
#[cfg_attr(
    not(any(feature = "cuda", feature = "hip")),
    allow(dead_code, reason = "only vendors' backends use it")
)]
fn add_vendor_cards(
    backend: &'static str,
    vendor: u32,
    devices: Vec<simt::FoundDevice>,
    open: &dyn Fn(simt::FoundDevice) -> Open,
    found: &mut Vec<Card>,
    missing: &mut Vec<MissingBackend>,
) {
    for device in devices {
        if let Some(refusal) = &device.refusal {
            let reason = format!("{} cannot be used: {refusal}", device.description);
            let hint = format!("use the card with --backend wgpu, which needs {DRIVERS}");
            missing.push(MissingBackend { backend, is_built: true, reason, hint });
            continue;
        }
        let candidate = Candidate {
            name: device.name.clone(),
            description: device.description.clone(),
            backend,
            software: false,
            same_as: None,
            reserve: DRIVER_RESERVE,
            open: open(device.clone()),
        };
        found.push(Card { candidate, slot: device.pci, vendor });
    }
}

/// The entry for a backend whose vendor library cannot be used.
#[cfg_attr(
    not(any(feature = "cuda", feature = "hip")),
    allow(dead_code, reason = "only vendors' backends use it")
)]
fn missing_library(backend: &'static str, why: &simt::LibraryError) -> MissingBackend {
    let hint = match backend {
        "cuda" => CUDA_DRIVER,
        _ => ROCM,
    };
    MissingBackend { backend, is_built: true, reason: why.to_string(), hint: hint.to_owned() }
}

/// The entry for wgpu if it reports no GPU; `None` if it reports one.
fn missing_wgpu(found: &[Candidate]) -> Option<MissingBackend> {
    let reason = match found {
        [] => "no driver reports a device".to_owned(),
        [first, ..] if found.iter().all(|candidate| candidate.software) => format!(
            "the only driver found, {}, computes on the CPU (--device {} uses it anyway)",
            first.name, first.name
        ),
        _ => return None,
    };
    let hint = format!("a GPU needs {DRIVERS}");
    Some(MissingBackend { backend: "wgpu", is_built: true, reason, hint })
}

/// The card of a device that Vulkan, Metal or DX12 reports.
fn wgpu_card(adapter: wgpu_backend::Adapter, folder: Option<&Path>) -> Card {
    let pipeline_cache = folder.map(Path::to_owned);
    let options = wgpu_backend::Options { pipeline_cache, ..wgpu_backend::Options::default() };
    let (slot, vendor) = (simt::normalise_pci_slot(adapter.slot()), adapter.vendor());
    let candidate = Candidate {
        name: adapter.name().to_owned(),
        description: adapter.description(),
        backend: "wgpu",
        software: adapter.is_software(),
        same_as: None,
        reserve: DRIVER_RESERVE,
        open: Arc::new(move |switches| {
            let no_subgroups = switches.subgroups == Some(false);
            let opened = adapter.open(&wgpu_backend::Options { no_subgroups, ..options.clone() });
            opened.map(|device| device as Arc<dyn Backend>)
        }),
    };
    Card { candidate, slot, vendor }
}

/// Help text: the drivers with which Vulkan, Metal or DX12 find a GPU.
const DRIVERS: &str = if cfg!(target_os = "linux") {
    "libvulkan1 or vulkan-loader and a Vulkan driver, such as mesa-vulkan-drivers (Debian, Ubuntu, Fedora), vulkan-radeon or vulkan-intel (Arch) for AMD and Intel, or NVIDIA's own driver package; `vulkaninfo --summary` from vulkan-tools lists the devices that Vulkan finds"
} else if cfg!(target_os = "macos") {
    "macOS with Metal"
} else {
    "the vendor's graphics driver, with Vulkan or DirectX 12"
};

const CUDA_DRIVER: &str = if cfg!(target_os = "linux") {
    "an NVIDIA card needs NVIDIA's driver, 525 or newer, which includes libcuda.so.1: nvidia-driver (Debian), ubuntu-drivers install (Ubuntu), akmod-nvidia and xorg-x11-drv-nvidia-cuda (Fedora, RPM Fusion), nvidia-utils (Arch); start a container with --gpus all; `nvidia-smi` lists the devices that the driver finds; the CUDA toolkit is not needed"
} else if cfg!(target_os = "macos") {
    "NVIDIA has no driver for macOS; Metal runs on the GPUs of Macs"
} else {
    "an NVIDIA card needs NVIDIA's driver, 525 or newer; the CUDA toolkit is not needed"
};

const ROCM: &str = "an AMD card needs ROCm, 5 to 7, with libamdhip64 and libhiprtc: rocm-hip-runtime (AMD's packages), rocm-hip (Fedora), hip-runtime-amd (Arch); the user must be in the groups render and video, and a container needs /dev/kfd and /dev/dri; `rocminfo` lists the devices that ROCm finds; without ROCm, the card is used through Vulkan";
