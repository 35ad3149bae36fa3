//! What macOS says of the processor and memory, and its calls for threads.
#![allow(unsafe_code, reason = "functions of macOS")]

use std::ffi::CStr;
use std::mem::size_of;
use std::ptr;

use hal::{Bytes, MemoryReport};

use crate::system_topology::of_levels;
use crate::topology::Topology;

/// The physical memory, and what of it is free: unused pages and pages that the system can take back without writing
/// them, which is what other tools call available.
pub(crate) fn memory() -> Option<MemoryReport> {
    let total = number(c"hw.memsize").map(Bytes);
    total.map(|total| MemoryReport { total: Some(total), free: free().map(|free| free.min(total)) })
}

fn free() -> Option<Bytes> {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut found: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut n = libc::HOST_VM_INFO64_COUNT;
    #[allow(deprecated, reason = "another crate for one function")]
    // SAFETY: at most `n` numbers of 32 bits are written, which the structure has; the port is this process's.
    let code = unsafe {
        libc::host_statistics64(
            libc::mach_host_self(),
            libc::HOST_VM_INFO64,
            (&raw mut found).cast(),
            &raw mut n,
        )
    };
    let pages = u64::from(found.free_count) + u64::from(found.inactive_count);
    (code == libc::KERN_SUCCESS)
        .then(|| Bytes(pages.saturating_mul(number(c"hw.pagesize").unwrap_or(4096))))
}

/// The processor's name, such as `Apple M1`.
pub(crate) fn processor() -> Option<String> {
    let mut text = [0_u8; 128];
    let n = value(c"machdep.cpu.brand_string", &mut text)?;
    let text = String::from_utf8_lossy(text.get(..n)?).trim_end_matches('\0').trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The cores of each performance level, the fastest first; on Intel's processors, all cores.
pub(crate) fn topology() -> Option<Topology> {
    const LEVELS: [[&CStr; 2]; 4] = [
        [c"hw.perflevel0.physicalcpu", c"hw.perflevel0.logicalcpu"],
        [c"hw.perflevel1.physicalcpu", c"hw.perflevel1.logicalcpu"],
        [c"hw.perflevel2.physicalcpu", c"hw.perflevel2.logicalcpu"],
        [c"hw.perflevel3.physicalcpu", c"hw.perflevel3.logicalcpu"],
    ];
    let of = |[cores, cpus]: [&CStr; 2]| Some((number(cores)?, number(cpus)?));
    let levels: Vec<_> = LEVELS.into_iter().map_while(of).collect();
    of_levels(&levels).or_else(|| of_levels(&[of([c"hw.physicalcpu", c"hw.logicalcpu"])?]))
}

/// A number of 32 or 64 bits.
fn number(name: &CStr) -> Option<u64> {
    let mut bytes = [0; 8];
    let n = value(name, &mut bytes)?;
    // Both processors of Macs store the low byte first, so a shorter number is the same.
    matches!(n, 4 | 8).then(|| u64::from_le_bytes(bytes))
}

/// Reads a value of the system into `out`; returns its bytes.
fn value(name: &CStr, out: &mut [u8]) -> Option<usize> {
    let mut n = out.len();
    // SAFETY: the name ends with a zero, and at most `n` bytes are written.
    let code = unsafe {
        libc::sysctlbyname(name.as_ptr(), out.as_mut_ptr().cast(), &raw mut n, ptr::null_mut(), 0)
    };
    (code == 0 && n <= out.len()).then_some(n)
}

const _: () = assert!(size_of::<usize>() == 8, "Macs have 64 bits");

/// The priority of threads. macOS has no calls that bind them to CPUs.
pub(crate) mod threads {
    use std::io;

    use rustix::process::{Resource, getpriority_process, getrlimit, setpriority_process};

    use crate::affinity::unsupported;
    use crate::options::Priority;

    /// Nothing: threads are not bound.
    #[derive(Debug)]
    pub(crate) struct PreviousAffinity(());

    pub(crate) fn current_cpu() -> Option<usize> {
        None
    }

    pub(crate) fn bind(_cpus: &[usize]) -> io::Result<PreviousAffinity> {
        Err(unsupported("macOS has no calls for it; threads ask for performance cores instead"))
    }

    pub(crate) fn unbind(_before: &PreviousAffinity) {}

    /// Asks for performance cores for the calling thread, as programs do whose user waits for them: the system moves
    /// threads of a lower class to efficiency cores, also while performance cores are idle. Does nothing if the process
    /// has less priority than other programs.
    pub(crate) fn prefer_performance_cores() {
        if getpriority_process(None).is_ok_and(|niceness| niceness > 0) {
            return;
        }
        // SAFETY: has no requirements. If it fails, the thread keeps its class.
        let _ = unsafe {
            libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_USER_INTERACTIVE, 0)
        };
    }

    /// Sets the niceness of the process.
    pub(crate) fn set_priority(priority: Priority) -> io::Result<()> {
        let Some(niceness) = priority.niceness() else { return Ok(()) };
        Ok(setpriority_process(None, niceness)?)
    }

    /// Maximum bytes that this process may lock in memory; `None` without a limit.
    pub(crate) fn lock_limit() -> Option<u64> {
        getrlimit(Resource::Memlock).current
    }
}
