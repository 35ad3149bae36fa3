//! [`CpuBackend`]: device description, allocation, and import of weights.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, thread};

use hal::format::Format;
use hal::pack::{
    check_row_places, check_stored, pack_plain, pack_rows_plain, pack_stored, plain_size,
    stored_plain,
};
use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, DeviceKind, Error, HostRows, MailboxShape,
    MemoryReport, Op, OpDesc, PackDesc, PlainStaging, Plan, RawBuffer, RawMailbox, RawProgram,
    RawStaging, Result, RowTable, Select, SharedBytes, Source, StoredPack, Tensor, TensorDesc,
};

use crate::buffer::{ALIGN, HostBuffer};
use crate::options::{CpuOptions, Notice};
use crate::prefetch::PrefetchDistance;
use crate::program::{CpuProgram, KernelChoice};
use crate::queue::CpuQueue;
use crate::thread_plan::{CpuBinding, ThreadPlan};
use crate::thread_pool::{IdleTimes, ThreadPool};
use crate::topology::Topology;
use crate::{affinity, kernels, machine};
use simd::Kernels;

/// The CPU as a device: tensors in host memory, programs run by a thread pool.
///
/// Calls are synchronous: the work is complete when a call returns. One lock serialises all queues.
#[derive(Debug)]
pub struct CpuBackend {
    info: DeviceInfo,
    kernels: Kernels,
    prefetch: PrefetchDistance,
    n_threads: usize,
    /// CPUs of each NUMA node over which weights are spread; empty if the operating system places
    /// the weights.
    nodes: Vec<Vec<usize>>,
    /// Whether to `mlock` new tensor memory; cleared after the first failure.
    lock: AtomicBool,
    notice: Notice,
    shared: Arc<DeviceState>,
}

/// State shared by the queues of one device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    pool: Mutex<ThreadPool>,
    /// Number of threads for programs of one token, and for programs of several tokens.
    active: [usize; 2],
}

impl DeviceState {
    pub(crate) fn n_active_threads(&self, several_tokens: bool) -> usize {
        self.active[usize::from(several_tokens)]
    }

    /// Locks the device: only the holder of the guard may access tensor memory.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ThreadPool> {
        // Each parallel region catches its own panics, so the pool stays usable after a poisoned
        // lock.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CpuBackend {
    /// Creates the CPU device with its own thread pool. The pool is smaller than requested if the
    /// system refuses to start some threads.
    #[must_use]
    pub fn new(options: CpuOptions) -> Arc<CpuBackend> {
        CpuBackend::with_topology(&Topology::of_this_machine(), options)
    }

    /// [`Self::new`] with a given `topology`; tests pass the topology of another machine.
    fn with_topology(topology: &Topology, options: CpuOptions) -> Arc<CpuBackend> {
        let mut plan = ThreadPlan::plan(topology, &options, affinity::current_cpu());
        let (notice, prefetch) = (options.notice, options.prefetch);
        if let Some(refused) = plan.refused.take() {
            notice.send(&refused);
        }
        check_bindings(&mut plan.bindings, &notice);
        if let Err(error) = affinity::set_priority(options.priority) {
            notice.send(&format!(
                "cannot change the thread priority: {error}; threads keep their priority"
            ));
        }
        let idle_times = options.poll.map_or_else(IdleTimes::default, IdleTimes::from_percent);
        let pool = ThreadPool::new(&plan.bindings, idle_times);
        let (n_threads, kernels) = (pool.n_threads(), Kernels::best());
        let active = plan.active.map(|n| n.min(n_threads));
        let processor = machine::processor().unwrap_or_else(|| "unknown processor".to_owned());
        let level = kernels.level().name();
        let info = DeviceInfo {
            name: "CPU".to_owned(),
            description: format!("{processor}, {} threads, {level}", active[0]),
            remark: None,
            kind: DeviceKind::Cpu,
            max_binding: Bytes::MAX,
            hand_off: false,
        };
        let shared = Arc::new(DeviceState { pool: Mutex::new(pool), active });
        let (nodes, lock) = (plan.nodes, AtomicBool::new(options.lock));
        Arc::new(CpuBackend { info, kernels, prefetch, n_threads, nodes, lock, notice, shared })
    }

    /// Number of threads of the pool.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Locks `buffer` in memory if the user requested it. Reports the first failure, then stops
    /// locking.
    fn lock_buffer(&self, mut buffer: HostBuffer) -> Box<HostBuffer> {
        if self.lock.load(Ordering::Relaxed)
            && let Err(error) = buffer.lock()
            && self.lock.swap(false, Ordering::Relaxed)
        {
            let limit = affinity::lock_limit().map_or_else(String::new, |limit| {
                format!(" (the limit is {}; raise it with ulimit -l)", Bytes(limit))
            });
            self.notice.send(&format!("cannot lock all memory: {error}{limit}"));
        }
        Box::new(buffer)
    }

    fn allocate(&self, label: &str, len: Option<usize>) -> Result<HostBuffer> {
        len.and_then(HostBuffer::zeroed).ok_or_else(|| Error::OutOfMemory {
            device: self.info.name.clone(),
            label: label.to_owned(),
            requested: len.map_or(Bytes::MAX, |len| Bytes(len as u64)),
            free: machine::memory().free.unwrap_or_default(),
        })
    }
}

/// Tests whether the planned CPU bindings work. If one fails, removes all of them and reports the
/// error.
fn check_bindings(bindings: &mut [CpuBinding], notice: &Notice) {
    let bind = |binding: &CpuBinding| {
        if binding.cpus.is_empty() {
            Ok(())
        } else {
            // A separate thread tests the binding, so the caller's affinity stays unchanged.
            thread::scope(|scope| {
                let bind = || affinity::bind(&binding.cpus);
                match thread::Builder::new().spawn_scoped(scope, bind)?.join() {
                    Ok(bound) => bound.map(drop),
                    Err(_) => Err(io::ErrorKind::Other.into()),
                }
            })
        }
    };
    if let Some(error) = bindings.iter().find_map(|binding| bind(binding).err()) {
        notice.send(&format!("threads are not bound to CPUs: {error}; the system schedules them"));
        bindings.iter_mut().for_each(|binding| binding.cpus.clear());
    }
}

/// The source bytes, if they already have the packed layout and kernels can read them in place.
fn packed_in_place(pack: &PackDesc, source: &HostRows) -> Option<SharedBytes> {
    let bytes = match source.source() {
        Source::Mapped(bytes) | Source::Owned(bytes) => bytes,
        Source::Paged(_) => return None,
    };
    // Kernels read quantised blocks at any address, but F32 and U32 tensors as slices, which must
    // be aligned.
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

    fn feature_notes(&self) -> Vec<String> {
        vec![format!("kernels prefetch rows {} ahead", Bytes(self.prefetch.bytes() as u64))]
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
        Ok(self.lock_buffer(self.allocate(label, plain_size(desc))?))
    }

    fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes {
        if mapped && is_whole(pack) {
            Bytes(0)
        } else {
            pack.packed_desc().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
        }
    }

    fn import(
        &self,
        label: &str,
        pack: &PackDesc,
        source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        if let Some(bytes) = packed_in_place(pack, source) {
            let mut buffer = HostBuffer::from_shared(bytes);
            buffer.place(&self.nodes);
            return Ok(self.lock_buffer(buffer));
        }
        let mut buffer = self.allocate(label, plain_size(&pack.packed_desc()?))?;
        buffer.place(&self.nodes);
        pack_plain(pack, source, buffer.bytes_mut(), self.n_threads)?;
        Ok(self.lock_buffer(buffer))
    }

    fn supports_column_views(&self) -> bool {
        true
    }

    fn stored_pack(&self, pack: &PackDesc, in_memory: bool) -> Option<StoredPack> {
        let keeps = !(in_memory && is_whole(pack)) && pack.spare == 0;
        keeps.then(|| stored_plain(pack))?
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        plain_size(desc)
    }

    fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        pack_stored(pack, source, out, self.n_threads)
    }

    fn adopt(&self, pack: &PackDesc, bytes: SharedBytes) -> Result<Box<dyn RawBuffer>> {
        let pitch = check_stored(pack, (*bytes).as_ref())?;
        let start = (*bytes).as_ref().as_ptr();
        if !start.addr().is_multiple_of(ALIGN) {
            return Err(Error::shape("adopt", "bytes", "64-byte aligned", format!("at {start:p}")));
        }
        let mut buffer = HostBuffer::from_shared(bytes);
        buffer.pitch = pitch;
        buffer.place(&self.nodes);
        Ok(self.lock_buffer(buffer))
    }

    fn adopt_rows(
        &self,
        pack: &PackDesc,
        memory: SharedBytes,
        table: RowTable,
    ) -> Result<Box<dyn RawBuffer>> {
        let pitch = check_row_places(pack, (*memory).as_ref().len() as u64, &table)?;
        let mut buffer = HostBuffer::from_shared(memory);
        (buffer.pitch, buffer.table) = (Some(pitch), Some(table));
        Ok(Box::new(buffer))
    }

    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        pack_rows_plain(pack, source, rows)
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        Ok(PlainStaging::boxed(len.0 as usize))
    }

    fn mailbox(&self, _shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        let reason = kernels::NO_HAND_OFF.to_owned();
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
        let choice = KernelChoice { simd: self.kernels, prefetch: self.prefetch.bytes() };
        let program = CpuProgram::new(label, ops, workspace, choice, self.n_threads);
        Ok(Arc::new(program))
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(CpuQueue::new(Arc::clone(&self.shared), &self.info.name)))
    }
}

/// Refuses ops that write to source bytes used in place, for example a mapped file.
fn check_writable(device: &str, ops: &[Op]) -> Result<()> {
    for op in ops {
        let mut read_only = None;
        op.visit(&mut |operand, how, tensor| {
            let writable = tensor.raw::<HostBuffer>().is_some_and(HostBuffer::is_writable);
            if how.writes() && !writable {
                read_only = Some(operand);
            }
        });
        if let Some(operand) = read_only {
            let reason =
                format!("operand {operand} is read-only: the device uses its source in place");
            return Err(Error::Unsupported { op: op.name(), device: device.to_owned(), reason });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "backend_tests.rs"]
mod tests;
