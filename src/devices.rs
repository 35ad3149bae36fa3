//! Which devices there are. The only file that names a backend.

mod assumed;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hal::{Backend, Bytes, Device, DeviceId};

use cpu::CpuBackend;
pub use cpu::{CpuOptions, Notice, Numa, Priority};

/// The CPU with `threads` workers (`None`: one per core that this process may use) as the first device of an
/// engine's list.
#[must_use]
pub fn cpu(threads: Option<usize>) -> Device {
    cpu_with(CpuOptions { threads, ..CpuOptions::default() })
}

/// The CPU, used as `options` say.
#[must_use]
pub fn cpu_with(options: CpuOptions) -> Device {
    Device::new(cpu_backend(options), DeviceId(0), Bytes::MAX)
}

/// The CPU, used as `options` say, without an account.
#[must_use]
pub fn cpu_backend(options: CpuOptions) -> Arc<dyn Backend> {
    CpuBackend::new(options)
}

/// How many workers [`cpu()`] takes.
#[must_use]
pub fn cpu_threads(threads: Option<usize>) -> usize {
    CpuOptions { threads, ..CpuOptions::default() }.n_threads()
}

/// Opens a device.
type Open = Arc<dyn Fn() -> hal::Result<Arc<dyn Backend>> + Send + Sync>;

/// A device beside the CPU that can be used.
#[derive(Clone)]
pub struct Candidate {
    /// `Vulkan0`, `Metal0`, ...
    pub name: String,
    /// What its driver calls it.
    pub description: String,
    /// What it is reached by: `wgpu`.
    pub backend: &'static str,
    /// It computes on the processor: taken only when it is named.
    pub software: bool,
    /// What its driver takes of its memory beside what is counted.
    pub reserve: Bytes,
    open: Open,
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Candidate {
    /// A device that is not there, to plan for.
    #[must_use]
    pub fn assumed(name: &str, memory: Bytes) -> Candidate {
        let device = assumed::Assumed::new(name, memory);
        let open: Open = Arc::new(move || Ok(Arc::clone(&device) as Arc<dyn Backend>));
        let (name, description) = (name.to_owned(), device_description(&open));
        Candidate {
            name,
            description,
            backend: "assumed",
            software: false,
            reserve: DRIVER_RESERVE,
            open,
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// What its driver reports.
    pub fn open(&self) -> hal::Result<Arc<dyn Backend>> {
        (self.open)()
    }
}

fn device_description(open: &Open) -> String {
    open().map_or_else(|error| error.to_string(), |device| device.info().description.clone())
}

/// What a card's driver takes for itself beside what is counted: pipelines, descriptors, page tables. Not measured:
/// no interface tells it on all platforms.
pub const DRIVER_RESERVE: Bytes = Bytes(64 << 20);

/// A backend of which no device can be used, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// `wgpu`.
    pub backend: &'static str,
    /// Whether this program has it, so that only a driver or a device is missing.
    pub is_built: bool,
    /// What is missing.
    pub reason: String,
    /// How to get it.
    pub hint: String,
}

/// The backends that can be asked for by name, the CPU's among them.
pub const BACKENDS: [&str; 2] = ["cpu", "wgpu"];

/// Every device beside the CPU, the best first, and the backends without one. Asking takes time, so it is done once
/// for a command. What drivers compile is kept in `folder`, where they give it out. This is the place where a backend
/// is added.
#[must_use]
pub fn candidates(folder: Option<&Path>) -> (Vec<Candidate>, Vec<Missing>) {
    let adapters = wgpu_backend::adapters().into_iter();
    let found: Vec<Candidate> = adapters.map(|adapter| through_wgpu(adapter, folder)).collect();
    let missing = |reason| Missing {
        backend: "wgpu",
        is_built: true,
        reason,
        hint: format!("a GPU needs {DRIVERS}"),
    };
    let missing = match &found[..] {
        [] => vec![missing("no driver shows a device".to_owned())],
        [first, ..] if found.iter().all(|candidate| candidate.software) => {
            vec![missing(format!(
                "the only driver there computes on the CPU ({}; --device {} uses it nevertheless)",
                first.description, first.name
            ))]
        }
        _ => Vec::new(),
    };
    (found, missing)
}

/// A device that Vulkan, Metal or DX12 shows.
fn through_wgpu(adapter: wgpu_backend::Adapter, folder: Option<&Path>) -> Candidate {
    let pipelines = folder.map(Path::to_owned);
    let options = wgpu_backend::Options { pipelines, ..wgpu_backend::Options::default() };
    Candidate {
        name: adapter.name().to_owned(),
        description: adapter.description(),
        backend: "wgpu",
        software: adapter.is_software(),
        reserve: DRIVER_RESERVE,
        open: Arc::new(move || {
            let opened = adapter.open(&options);
            opened.map(|device| device as Arc<dyn Backend>)
        }),
    }
}

/// What a GPU needs to be seen.
const DRIVERS: &str = if cfg!(target_os = "linux") {
    "a Vulkan driver: mesa-vulkan-drivers (Debian, Ubuntu, Fedora) or vulkan-radeon, vulkan-intel (Arch) for AMD and Intel, NVIDIA's own driver package, and libvulkan1 or vulkan-loader; `vulkaninfo --summary` of vulkan-tools lists what it sees"
} else if cfg!(target_os = "macos") {
    "macOS with Metal"
} else {
    "the maker's graphics driver, with Vulkan or DirectX 12"
};
