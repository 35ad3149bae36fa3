//! Finds devices. The only file that names backends.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hal::null::NullBackend;
use hal::{Backend, Bytes, Device, DeviceId};

use cpu::CpuBackend;
pub use cpu::{CpuOptions, Notice, Numa, Priority};

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

/// Opens a device.
type Open = Arc<dyn Fn() -> hal::Result<Arc<dyn Backend>> + Send + Sync>;

/// A usable device besides the CPU.
#[derive(Clone)]
pub struct Candidate {
    /// `Vulkan0`, `Metal0`, ...
    pub name: String,
    /// Its description according to its driver.
    pub description: String,
    /// Its backend, one of [`BACKENDS`].
    pub backend: &'static str,
    /// Whether it computes on the CPU: such a device is used only when named.
    pub software: bool,
    /// The vendor driver's name of the same card, if it has one: this candidate is then used only
    /// when it or its backend is named.
    pub same_as: Option<String>,
    /// The driver's own memory on it, besides counted allocations.
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
        let open: Open = Arc::new(move || Ok(Arc::clone(&device) as Arc<dyn Backend>));
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

    /// Opens it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn open(&self) -> hal::Result<Arc<dyn Backend>> {
        (self.open)()
    }
}

fn device_description(open: &Open) -> String {
    open().map_or_else(|error| error.to_string(), |device| device.info().description.clone())
}

/// Memory that a card's driver uses besides counted allocations: pipelines, descriptors, page
/// tables. An estimate: no interface reports it on all platforms.
pub const DRIVER_RESERVE: Bytes = Bytes(64 << 20);

/// A backend without a usable device, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// One of [`BACKENDS`].
    pub backend: &'static str,
    /// Whether this program includes the backend, so that only a driver or a device is missing.
    pub is_built: bool,
    /// The missing library, driver or build feature.
    pub reason: String,
    /// How to get it.
    pub hint: String,
}

/// The names of all backends, including the CPU's.
pub const BACKENDS: [&str; 4] = ["cpu", "cuda", "hip", "wgpu"];

/// The backend of a device name.
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

/// Every device besides the CPU, best first, and the backends without one. Detection takes time,
/// so a command calls this once. Kernels compiled by drivers are cached in `folder`, where drivers
/// allow that. A new backend is added here.
#[must_use]
pub fn candidates(folder: Option<&Path>) -> (Vec<Candidate>, Vec<Missing>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    through_cuda(&mut found, &mut missing);
    through_hip(folder, &mut found, &mut missing);
    let cards = found.len();
    for adapter in wgpu_backend::adapters() {
        let same = found[..cards].iter().find(|card| card.is(&adapter));
        let same_as = same.map(|card: &Card| card.candidate.name.clone());
        let mut card = through_wgpu(adapter, folder);
        card.candidate.same_as = same_as;
        found.push(card);
    }
    let found: Vec<Candidate> = found.into_iter().map(|card| card.candidate).collect();
    missing.extend(without_wgpu(&found[cards..]));
    (found, missing)
}

/// A candidate and its hardware.
struct Card {
    candidate: Candidate,
    slot: String,
    vendor: u32,
}

impl Card {
    /// Whether it is the card that wgpu reports. If a driver does not report the slot, any card of
    /// the same vendor is assumed to be the same.
    fn is(&self, adapter: &wgpu_backend::Adapter) -> bool {
        let slots = [self.slot.clone(), simt::slot(adapter.slot())];
        if slots.iter().any(|slot| slot.is_empty()) {
            self.vendor == adapter.vendor()
        } else {
            slots[0] == slots[1]
        }
    }
}

/// Why a vendor's backend is not available, or not part of this program.
#[cfg(not(all(feature = "cuda", feature = "hip")))]
#[cfg_attr(
    not(all(target_os = "linux", target_arch = "x86_64")),
    allow(dead_code, reason = "HIP is only supported on Linux")
)]
fn not_built(backend: &'static str) -> Missing {
    Missing {
        backend,
        is_built: false,
        reason: "this program was built without it".to_owned(),
        hint: format!("cargo build --release --features {backend}"),
    }
}

/// NVIDIA GPUs.
#[cfg(feature = "cuda")]
fn through_cuda(found: &mut Vec<Card>, missing: &mut Vec<Missing>) {
    let open = |device: simt::Found| -> Open {
        Arc::new(move || cuda::open(&device).map(|backend| backend as Arc<dyn Backend>))
    };
    match cuda::devices() {
        Ok(devices) => of_vendor("cuda", NVIDIA, devices, &open, found, missing),
        Err(why) => missing.push(of_library("cuda", &why)),
    }
}

#[cfg(not(feature = "cuda"))]
fn through_cuda(_found: &mut Vec<Card>, missing: &mut Vec<Missing>) {
    missing.push(not_built("cuda"));
}

/// AMD GPUs.
#[cfg(all(feature = "hip", target_os = "linux", target_arch = "x86_64"))]
fn through_hip(folder: Option<&Path>, found: &mut Vec<Card>, missing: &mut Vec<Missing>) {
    let open = |device: simt::Found| -> Open {
        let folder = folder.map(Path::to_owned);
        Arc::new(move || {
            let opened = hip::open(&device, folder.as_deref());
            opened.map(|backend| backend as Arc<dyn Backend>)
        })
    };
    match hip::devices() {
        Ok(devices) => of_vendor("hip", AMD, devices, &open, found, missing),
        Err(why) => missing.push(of_library("hip", &why)),
    }
}

#[cfg(all(not(feature = "hip"), target_os = "linux", target_arch = "x86_64"))]
fn through_hip(_folder: Option<&Path>, _found: &mut Vec<Card>, missing: &mut Vec<Missing>) {
    missing.push(not_built("hip"));
}

/// ROCm exists only for Linux on x86-64.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn through_hip(_folder: Option<&Path>, _found: &mut Vec<Card>, _missing: &mut Vec<Missing>) {}

/// PCI vendor ids.
#[cfg(feature = "cuda")]
const NVIDIA: u32 = 0x10de;
#[cfg(all(feature = "hip", target_os = "linux", target_arch = "x86_64"))]
const AMD: u32 = 0x1002;

/// Reads the report of a vendor's driver.
#[cfg_attr(
    not(any(feature = "cuda", feature = "hip")),
    allow(dead_code, reason = "for vendors' backends")
)]
fn of_vendor(
    backend: &'static str,
    vendor: u32,
    devices: Vec<simt::Found>,
    open: &dyn Fn(simt::Found) -> Open,
    found: &mut Vec<Card>,
    missing: &mut Vec<Missing>,
) {
    for device in devices {
        if let Some(refusal) = &device.refusal {
            let reason = format!("{} cannot be used: {refusal}", device.description);
            let hint = format!("older cards work with Vulkan: {DRIVERS}");
            missing.push(Missing { backend, is_built: true, reason, hint });
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

/// The missing part of a vendor's library.
#[cfg_attr(
    not(any(feature = "cuda", feature = "hip")),
    allow(dead_code, reason = "for vendors' backends")
)]
fn of_library(backend: &'static str, why: &simt::Missing) -> Missing {
    let hint = match backend {
        "cuda" => CUDA_DRIVER,
        _ => ROCM,
    };
    Missing { backend, is_built: true, reason: why.to_string(), hint: hint.to_owned() }
}

/// The missing part for wgpu, if it reports no GPU.
fn without_wgpu(found: &[Candidate]) -> Option<Missing> {
    let reason = match found {
        [] => "no driver reports a device".to_owned(),
        [first, ..] if found.iter().all(|candidate| candidate.software) => format!(
            "the only driver found computes on the CPU ({}; --device {} uses it anyway)",
            first.description, first.name
        ),
        _ => return None,
    };
    let hint = format!("a GPU needs {DRIVERS}");
    Some(Missing { backend: "wgpu", is_built: true, reason, hint })
}

/// A device reported by Vulkan, Metal or DX12.
fn through_wgpu(adapter: wgpu_backend::Adapter, folder: Option<&Path>) -> Card {
    let pipelines = folder.map(Path::to_owned);
    let options = wgpu_backend::Options { pipelines, ..wgpu_backend::Options::default() };
    let (slot, vendor) = (simt::slot(adapter.slot()), adapter.vendor());
    let candidate = Candidate {
        name: adapter.name().to_owned(),
        description: adapter.description(),
        backend: "wgpu",
        software: adapter.is_software(),
        same_as: None,
        reserve: DRIVER_RESERVE,
        open: Arc::new(move || {
            let opened = adapter.open(&options);
            opened.map(|device| device as Arc<dyn Backend>)
        }),
    };
    Card { candidate, slot, vendor }
}

/// Requirements to detect a GPU.
const DRIVERS: &str = if cfg!(target_os = "linux") {
    "a Vulkan driver: mesa-vulkan-drivers (Debian, Ubuntu, Fedora) or vulkan-radeon, vulkan-intel (Arch) for AMD and Intel, NVIDIA's own driver package, and libvulkan1 or vulkan-loader; `vulkaninfo --summary` of vulkan-tools lists what it sees"
} else if cfg!(target_os = "macos") {
    "macOS with Metal"
} else {
    "the vendor's graphics driver, with Vulkan or DirectX 12"
};

/// Requirements of CUDA.
const CUDA_DRIVER: &str = if cfg!(target_os = "linux") {
    "an NVIDIA card needs NVIDIA's driver, 525 or newer, which includes libcuda.so.1: nvidia-driver (Debian), ubuntu-drivers install (Ubuntu), akmod-nvidia and xorg-x11-drv-nvidia-cuda (Fedora, RPM Fusion), nvidia-utils (Arch); a container is started with --gpus all; `nvidia-smi` lists what it sees; CUDA itself is not needed"
} else {
    "an NVIDIA card needs NVIDIA's driver, 525 or newer; CUDA itself is not needed"
};

/// Requirements of HIP.
const ROCM: &str = "an AMD card needs ROCm, 5 to 7, with libamdhip64 and libhiprtc: rocm-hip-runtime (AMD's packages), rocm-hip (Fedora), hip-runtime-amd (Arch); the user has to be in the groups render and video, and a container needs /dev/kfd and /dev/dri; `rocminfo` lists what it sees. Without ROCm such a card is used through Vulkan";
