//! The device itself: its facts, allocation and import of weights.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use hal::format::Format;
use hal::pack::{PLAIN_LAYOUT, check_plain, pack_plain, pack_rows_plain, plain_size};
use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, DeviceKind, Error, HostRows, MailboxShape,
    MemoryReport, Op, OpDesc, PackDesc, PlainStaging, Plan, RawBuffer, RawMailbox, RawProgram,
    RawStaging, Result, Select, SharedBytes, Source, StoredPack, Tensor, TensorDesc,
};

use crate::buffer::{ALIGN, HostBuffer};
use crate::options::{CpuOptions, Notice, Priority};
use crate::program::CpuProgram;
use crate::queue::CpuQueue;
use crate::seats::{Seat, Seats};
use crate::simd::Kernels;
use crate::thread_pool::{IdleTimes, ThreadPool};
use crate::topology::Topology;
use crate::{affinity, kernels, machine};

/// The CPU as a device: tensors in host memory, programs run by a thread pool.
///
/// All work is done when a call returns; one lock serialises all queues.
#[derive(Debug)]
pub struct CpuBackend {
    info: DeviceInfo,
    kernels: Kernels,
    n_threads: usize,
    /// CPUs of the nodes over which weights are placed; empty where the system places them.
    nodes: Vec<Vec<usize>>,
    /// Whether memory is still locked; cleared after the first failure.
    lock: AtomicBool,
    notice: Notice,
    shared: Arc<Shared>,
}

/// State shared by the queues of one device.
#[derive(Debug)]
pub(crate) struct Shared {
    pool: Mutex<ThreadPool>,
    /// Threads that run programs of one token, and of more.
    active: [usize; 2],
}

impl Shared {
    /// Number of threads for a program of one token, or of `many`.
    pub(crate) fn n_active(&self, many: bool) -> usize {
        self.active[usize::from(many)]
    }

    /// Locks tensor memory: only the holder of this guard may access it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ThreadPool> {
        // A panic in a region is caught inside it, so the pool stays usable after a poisoned lock.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CpuBackend {
    /// The CPU with a thread pool of its own. If the system refuses some threads, the pool is
    /// smaller.
    #[must_use]
    pub fn new(options: CpuOptions) -> Arc<CpuBackend> {
        CpuBackend::on(&Topology::of_this_machine(), options)
    }

    /// A thread pool for `topology`, on this machine.
    fn on(topology: &Topology, options: CpuOptions) -> Arc<CpuBackend> {
        let mut plan = Seats::plan(topology, &options, affinity::here());
        let notice = options.notice;
        if let Some(refused) = plan.refused.take() {
            notice.tell(&refused);
        }
        bind_or_tell(&mut plan.seats, &notice);
        if let Some(niceness) = niceness(options.priority)
            && let Err(error) = affinity::nice(niceness)
        {
            notice.tell(&format!("cannot change the thread priority: {error}"));
        }
        let idle_times = options.poll.map_or_else(IdleTimes::default, IdleTimes::percent);
        let pool = ThreadPool::new(&plan.seats, idle_times);
        let (n_threads, kernels) = (pool.n_threads(), Kernels::best());
        let active = plan.active.map(|n| n.min(n_threads));
        let processor = machine::processor().unwrap_or_else(|| "unknown processor".to_owned());
        let level = kernels.level().name();
        let info = DeviceInfo {
            name: "CPU".to_owned(),
            description: format!("{processor}, {} threads, {level}", active[0]),
            kind: DeviceKind::Cpu,
            max_binding: Bytes::MAX,
            hand_off: false,
        };
        let shared = Arc::new(Shared { pool: Mutex::new(pool), active });
        let (nodes, lock) = (plan.nodes, AtomicBool::new(options.lock));
        Arc::new(CpuBackend { info, kernels, n_threads, nodes, lock, notice, shared })
    }

    /// Threads of the pool.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Locks the memory so that the system cannot page it out, if the user requested that.
    fn locked(&self, mut buffer: HostBuffer) -> Box<HostBuffer> {
        if self.lock.load(Ordering::Relaxed)
            && let Err(error) = buffer.lock()
            && self.lock.swap(false, Ordering::Relaxed)
        {
            let limit = affinity::lock_limit().map_or_else(String::new, |limit| {
                format!(" (the limit is {}: ulimit -l)", Bytes(limit))
            });
            self.notice.tell(&format!("cannot lock all memory: {error}{limit}"));
        }
        Box::new(buffer)
    }

    fn room(&self, label: &str, len: Option<usize>) -> Result<HostBuffer> {
        len.and_then(HostBuffer::zeroed).ok_or_else(|| Error::OutOfMemory {
            device: self.info.name.clone(),
            label: label.to_owned(),
            wanted: len.map_or(Bytes::MAX, |len| Bytes(len as u64)),
            free: machine::memory().free.unwrap_or_default(),
        })
    }
}

/// Tests whether threads can be bound as planned; if not, none is bound.
fn bind_or_tell(seats: &mut [Seat], notice: &Notice) {
    let bind = |seat: &Seat| {
        if seat.cpus.is_empty() {
            Ok(())
        } else {
            // Tested on a separate thread, so that the caller's affinity is unchanged.
            thread::scope(|scope| match scope.spawn(|| affinity::bind(&seat.cpus)).join() {
                Ok(bound) => bound.map(drop),
                Err(_) => Err(io::ErrorKind::Other.into()),
            })
        }
    };
    if let Some(error) = seats.iter().find_map(|seat| bind(seat).err()) {
        notice.tell(&format!("threads are not bound to CPUs: {error}"));
        seats.iter_mut().for_each(|seat| seat.cpus.clear());
    }
}

/// The Linux niceness of a priority, in llama.cpp's steps.
fn niceness(priority: Priority) -> Option<i32> {
    match priority {
        Priority::Low => Some(5),
        Priority::Normal => None,
        Priority::Medium => Some(-5),
        Priority::High => Some(-10),
        Priority::Realtime => Some(-20),
    }
}

/// The source's own bytes, if the pack equals them and kernels can read them in place.
fn in_place(pack: &PackDesc, source: &HostRows) -> Option<SharedBytes> {
    let bytes = match source.source() {
        Source::Mapped(bytes) | Source::Owned(bytes) => bytes,
        Source::Paged(_) => return None,
    };
    // Blocks are read at any address, but F32 and U32 tensors are also used as plain slices.
    let aligned = !matches!(pack.source.format, Format::F32 | Format::U32)
        || (**bytes).as_ref().as_ptr().cast::<f32>().is_aligned();
    (is_whole(pack) && aligned).then(|| Arc::clone(bytes))
}

fn is_whole(pack: &PackDesc) -> bool {
    pack.select == Select::All && !pack.transpose && pack.spare == 0
}

impl Backend for CpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryReport> {
        Ok(machine::memory())
    }

    fn plan(&self, op: &OpDesc) -> Plan {
        kernels::plan(op, self.n_threads)
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        plain_size(desc).map_or(Bytes::MAX, |len| Bytes((len + ALIGN) as u64))
    }

    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        Ok(self.locked(self.room(label, plain_size(desc))?))
    }

    fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes {
        if mapped && is_whole(pack) {
            Bytes(0)
        } else {
            pack.packed().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
        }
    }

    fn import(
        &self,
        label: &str,
        pack: &PackDesc,
        source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        if let Some(bytes) = in_place(pack, source) {
            let mut buffer = HostBuffer::kept(bytes);
            buffer.place(&self.nodes);
            return Ok(self.locked(buffer));
        }
        let mut buffer = self.room(label, plain_size(&pack.packed()?))?;
        buffer.place(&self.nodes);
        pack_plain(pack, source, buffer.bytes_mut(), self.n_threads)?;
        Ok(self.locked(buffer))
    }

    fn takes_columns(&self) -> bool {
        true
    }

    fn stored(&self, pack: &PackDesc, in_memory: bool) -> Option<StoredPack> {
        let keeps = !(in_memory && is_whole(pack)) && pack.spare == 0;
        let len = keeps.then(|| plain_size(&pack.packed().ok()?))??;
        Some(StoredPack { layout: PLAIN_LAYOUT, len })
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        plain_size(desc)
    }

    fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        pack_plain(pack, source, out, self.n_threads)
    }

    fn adopt(&self, pack: &PackDesc, bytes: SharedBytes) -> Result<Box<dyn RawBuffer>> {
        check_plain(pack, (*bytes).as_ref())?;
        let start = (*bytes).as_ref().as_ptr();
        if !start.addr().is_multiple_of(ALIGN) {
            return Err(Error::shape("adopt", "bytes", "an aligned pack", format!("{start:p}")));
        }
        let mut buffer = HostBuffer::kept(bytes);
        buffer.place(&self.nodes);
        Ok(self.locked(buffer))
    }

    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        pack_rows_plain(pack, source, rows)
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        Ok(PlainStaging::boxed(len.0 as usize))
    }

    fn mailbox(&self, _shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        let reason = kernels::OTHER_SIDE.to_owned();
        Err(Error::Unsupported { op: "Post", device: self.info.name.clone(), reason })
    }

    fn compile(
        &self,
        label: &str,
        ops: &[Op],
        _mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        check_writable(&self.info.name, ops)?;
        let program = CpuProgram::new(label, ops, workspace, self.kernels, self.n_threads);
        Ok(Arc::new(program))
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(CpuQueue::new(Arc::clone(&self.shared), &self.info.name)))
    }
}

/// Refuses ops that write to memory used in place, which belongs to a file.
fn check_writable(device: &str, ops: &[Op]) -> Result<()> {
    for op in ops {
        let mut kept = None;
        op.visit(&mut |operand, how, tensor| {
            let writable = tensor.raw::<HostBuffer>().is_some_and(HostBuffer::is_writable);
            if how.writes() && !writable {
                kept = Some(operand);
            }
        });
        if let Some(operand) = kept {
            let reason = format!("operand {operand} is read-only memory of a file");
            return Err(Error::Unsupported { op: op.name(), device: device.to_owned(), reason });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
