//! What Windows says of the processor and memory, and its calls for threads.
#![allow(unsafe_code, reason = "functions of Windows")]

use std::io;
use std::mem::size_of;
use std::ptr::{self, NonNull};

use hal::{Bytes, MemoryReport};
use windows_sys::Win32::Foundation::{ERROR_SUCCESS, ERROR_WORKING_SET_QUOTA};
use windows_sys::Win32::System::Memory::{VirtualLock, VirtualUnlock};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_SZ, RegGetValueW};
use windows_sys::Win32::System::SystemInformation::{
    GetLogicalProcessorInformationEx, GlobalMemoryStatusEx, MEMORYSTATUSEX, RelationAll,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetProcessAffinityMask, GetProcessGroupAffinity, GetProcessWorkingSetSize,
    SetProcessWorkingSetSize,
};
use windows_sys::w;

use crate::system_topology::of_records;
use crate::topology::Topology;

/// The physical memory, and what of it is free: at most what the page file still lets this process allocate. Limits of
/// a job (a container) are not seen.
pub(crate) fn memory() -> Option<MemoryReport> {
    let mut status = MEMORYSTATUSEX {
        dwLength: size_of::<MEMORYSTATUSEX>() as u32,
        ..MEMORYSTATUSEX::default()
    };
    // SAFETY: the structure says its own size, and is filled before the call returns.
    let filled = unsafe { GlobalMemoryStatusEx(&raw mut status) };
    let free = status.ullAvailPhys.min(status.ullAvailPageFile);
    let report = MemoryReport { total: Some(Bytes(status.ullTotalPhys)), free: Some(Bytes(free)) };
    (filled != 0).then_some(report)
}

/// The processor's name, as its makers write it.
pub(crate) fn processor() -> Option<String> {
    let mut text = [0_u16; 128];
    let mut n_bytes = size_of_val(&text) as u32;
    // SAFETY: the names end with a zero, and at most `n_bytes` are written.
    let code = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!(r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"),
            w!("ProcessorNameString"),
            RRF_RT_REG_SZ,
            ptr::null_mut(),
            text.as_mut_ptr().cast(),
            &raw mut n_bytes,
        )
    };
    let text = String::from_utf16_lossy(text.split(|&unit| unit == 0).next()?);
    (code == ERROR_SUCCESS && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The CPUs that this process may use: those of all groups, or of its own group if its affinity is a part of that.
pub(crate) fn topology() -> Option<Topology> {
    let mut size = 0;
    // SAFETY: without a buffer, the call only says which size it needs, and fails.
    unsafe { GetLogicalProcessorInformationEx(RelationAll, ptr::null_mut(), &raw mut size) };
    // Words, because the records begin with numbers.
    let mut records = vec![0_u64; (size as usize).div_ceil(8)];
    let start = records.as_mut_ptr();
    // SAFETY: at most `size` bytes are written, which the buffer has.
    let filled =
        unsafe { GetLogicalProcessorInformationEx(RelationAll, start.cast(), &raw mut size) };
    let records: Vec<u8> = records.iter().flat_map(|word| word.to_le_bytes()).collect();
    if filled == 0 {
        return None;
    }
    of_records(records.get(..size as usize)?, allowed())
}

/// The process's group and its allowed CPUs, if they are not all of the group. Processes that use several groups have no
/// such mask.
fn allowed() -> Option<(usize, u64)> {
    let (mut ours, mut all, mut group, mut n_groups) = (0, 0, 0, 1);
    // SAFETY: each call writes its numbers, and the second at most one group.
    let known = unsafe {
        GetProcessAffinityMask(GetCurrentProcess(), &raw mut ours, &raw mut all) != 0
            && GetProcessGroupAffinity(GetCurrentProcess(), &raw mut n_groups, &raw mut group) != 0
    };
    (known && n_groups == 1 && ours != 0 && ours != all).then_some((group.into(), ours as u64))
}

/// Locks memory, so that the system cannot page it out. The process may lock a little less than its smallest working
/// set, which grows with each call.
///
/// # Errors
/// The system's error.
pub(crate) fn lock(start: NonNull<u8>, len: usize) -> io::Result<()> {
    /// For the pages at both ends, and what the system keeps for itself.
    const BESIDE: usize = 1 << 20;
    // SAFETY: locking changes no contents; an address without memory is an error.
    let lock = || unsafe { VirtualLock(start.as_ptr().cast(), len) } != 0;
    if lock() {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(ERROR_WORKING_SET_QUOTA as i32) {
        return Err(error);
    }
    let (mut least, mut most) = (0, 0);
    // SAFETY: the first call writes two numbers; neither has other requirements.
    let grown = unsafe {
        let process = GetCurrentProcess();
        GetProcessWorkingSetSize(process, &raw mut least, &raw mut most) != 0 && {
            let least = least.saturating_add(len).saturating_add(BESIDE);
            SetProcessWorkingSetSize(process, least, most.max(least.saturating_add(BESIDE))) != 0
        }
    };
    if grown && lock() { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Undoes [`lock`]. If that fails, the memory stays locked until it is freed.
pub(crate) fn unlock(start: NonNull<u8>, len: usize) {
    // SAFETY: unlocking changes no contents.
    let _ = unsafe { VirtualUnlock(start.as_ptr().cast(), len) };
}

/// The affinity and priority of threads.
pub(crate) mod threads {
    use std::io;

    use windows_sys::Win32::System::Kernel::PROCESSOR_NUMBER;
    use windows_sys::Win32::System::SystemInformation::GROUP_AFFINITY;
    use windows_sys::Win32::System::Threading::{
        ABOVE_NORMAL_PRIORITY_CLASS, BELOW_NORMAL_PRIORITY_CLASS, GetCurrentProcess,
        GetCurrentProcessorNumberEx, GetCurrentThread, HIGH_PRIORITY_CLASS, SetPriorityClass,
        SetThreadGroupAffinity,
    };

    use crate::affinity::unsupported;
    use crate::options::Priority;
    use crate::system_topology::GROUP;

    /// The affinity of the calling thread before [`bind`].
    pub(crate) struct PreviousAffinity(GROUP_AFFINITY);

    impl std::fmt::Debug for PreviousAffinity {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "PreviousAffinity(group {}, {:#x})", self.0.Group, self.0.Mask)
        }
    }

    pub(crate) fn current_cpu() -> Option<usize> {
        let mut number = PROCESSOR_NUMBER::default();
        // SAFETY: the call fills the structure.
        unsafe { GetCurrentProcessorNumberEx(&raw mut number) };
        Some(usize::from(number.Group) * GROUP + usize::from(number.Number))
    }

    pub(crate) fn bind(cpus: &[usize]) -> io::Result<PreviousAffinity> {
        let group = cpus.first().map_or(0, |cpu| cpu / GROUP);
        if cpus.iter().any(|cpu| cpu / GROUP != group) {
            return Err(unsupported(
                "Windows binds a thread to CPUs of one group of 64; select CPUs of one group, or one CPU per thread \
                 (--cpu-strict 1)",
            ));
        }
        let mask = cpus.iter().fold(0, |mask, cpu| mask | 1_usize << (cpu % GROUP));
        let group = u16::try_from(group).map_err(|_| io::ErrorKind::InvalidInput)?;
        let affinity = GROUP_AFFINITY { Mask: mask, Group: group, Reserved: [0; 3] };
        set(&affinity)
    }

    pub(crate) fn unbind(before: &PreviousAffinity) {
        // This fails only if the CPUs are no longer allowed; the thread then keeps its affinity.
        let _ = set(&before.0);
    }

    fn set(affinity: &GROUP_AFFINITY) -> io::Result<PreviousAffinity> {
        let mut before = GROUP_AFFINITY::default();
        // SAFETY: the call reads one structure and fills the other.
        let done = unsafe { SetThreadGroupAffinity(GetCurrentThread(), affinity, &raw mut before) };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(PreviousAffinity(before)) }
    }

    /// Sets the priority class of the process. The class for real time, which llama.cpp asks for, can make the machine
    /// stop answering, so the highest is the one below it.
    pub(crate) fn set_priority(priority: Priority) -> io::Result<()> {
        let class = match priority {
            Priority::Low => BELOW_NORMAL_PRIORITY_CLASS,
            Priority::Normal => return Ok(()),
            Priority::Medium => ABOVE_NORMAL_PRIORITY_CLASS,
            Priority::High | Priority::Realtime => HIGH_PRIORITY_CLASS,
        };
        // SAFETY: has no requirements.
        let done = unsafe { SetPriorityClass(GetCurrentProcess(), class) };
        if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Unknown: see [`super::lock`].
    pub(crate) fn lock_limit() -> Option<u64> {
        None
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::affinity::{BoundThread, current_cpu};

    #[test]
    fn the_machine_has_memory_and_cpus() {
        let memory = memory().unwrap();
        assert!(memory.free.unwrap() > Bytes(1 << 20) && memory.free <= memory.total);
        let topology = topology().unwrap();
        let n = std::thread::available_parallelism().unwrap().get();
        assert!(topology.cpus.len() >= n, "{topology:?}");
        assert!(topology.cpus.iter().any(|cpu| Some(cpu.id) == current_cpu()), "{topology:?}");
    }

    #[test]
    fn a_bound_thread_runs_on_its_cpu() {
        for cpu in topology().unwrap().cpus {
            let bound = BoundThread::new(&[cpu.id]);
            let now = threads::bind(&[cpu.id]).unwrap();
            assert!(
                format!("{now:?}").contains(&format!("{:#x})", 1_u64 << (cpu.id % 64))),
                "{now:?}"
            );
            assert_eq!(current_cpu(), Some(cpu.id));
            drop(bound);
        }
        assert!(threads::bind(&[1, 65]).is_err());
    }

    #[test]
    fn memory_is_locked_beyond_the_first_working_set() {
        let bytes = vec![1_u8; 8 << 20];
        let start = NonNull::from(&bytes[..]).cast();
        lock(start, bytes.len()).unwrap();
        unlock(start, bytes.len());
    }
}
