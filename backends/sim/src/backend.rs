//! The simulated device: limits, memory, programs, and the methods by which tests inject failures.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, Error, HostRows, MailboxShape, MemoryReport, Op,
    OpDesc, PackDesc, PlainStaging, Plan, RawBuffer, RawMailbox, RawProgram, RawStaging, Result,
    Tensor, TensorDesc, pack,
};

use crate::Counters;
use crate::memory::{SimBuffer, allocation_size, buffer};
use crate::options::{Failures, SimOptions};
use crate::queue::SimQueue;
use crate::shared::DeviceState;

/// A simulated device. To make it fail while it runs, a test keeps its own reference in addition to
/// that of the [`hal::Device`].
#[derive(Debug)]
pub struct SimBackend {
    shared: Arc<DeviceState>,
}

impl SimBackend {
    /// A device with these options.
    #[must_use]
    pub fn new(options: SimOptions) -> Arc<SimBackend> {
        Arc::new(SimBackend { shared: Arc::new(DeviceState::new(options)) })
    }

    /// The device's counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Changes the injected failures, all at once.
    pub fn change_failures(&self, change: impl FnOnce(&mut Failures)) {
        self.shared.change_failures(change);
    }

    /// The failures that are still pending.
    #[must_use]
    pub fn failures(&self) -> Failures {
        let mut failures = Failures::default();
        self.change_failures(|fail| failures = fail.clone());
        failures
    }

    /// Loses the device now: from here on every call gives the same [`Error::DeviceLost`], and
    /// every wait ends.
    pub fn lose_now(&self) {
        self.shared.mark_lost("lost on request");
    }

    /// Loses the device after `n_items` more work items (ops or copies).
    pub fn lose_after(&self, n_items: u64) {
        self.change_failures(|fail| fail.lose_after = Some(n_items));
    }

    /// Makes the device's thread panic after `n_items` more work items, which loses the device.
    pub fn panic_after(&self, n_items: u64) {
        self.change_failures(|fail| fail.panic_after = Some(n_items));
    }

    /// Makes the device hang after `n_items` more work items, until [`SimBackend::resume`] is
    /// called, the run is cancelled, or the device is lost.
    pub fn hang_after(&self, n_items: u64) {
        self.change_failures(|fail| fail.hang_after = Some(n_items));
    }

    /// Ends the current hang and removes a pending one.
    pub fn resume(&self) {
        self.shared.resume();
    }

    /// Makes the `nth` allocation from now on (1 is the next one) run out of memory, once.
    pub fn out_of_memory_at(&self, nth: u64) {
        self.change_failures(|fail| fail.out_of_memory_at = Some(nth));
    }

    /// From now on, planning rejects all ops of this name.
    pub fn refuse(&self, op: &'static str) {
        self.change_failures(|fail| fail.refuse.push(op));
    }
}

impl Backend for SimBackend {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn memory(&self) -> Result<MemoryReport> {
        self.shared.check()?;
        let total = self.shared.options.memory;
        Ok(MemoryReport { total: Some(total), free: Some(total - self.counters().used) })
    }

    fn plan(&self, op: &OpDesc) -> Plan {
        if self.shared.is_refused(op.name()) {
            return Plan::No("refused by the test".to_owned());
        }
        let limit = self.shared.options.max_binding;
        let mut refusal = None;
        op.visit(&mut |operand, _, desc| {
            let size = pack::plain_size(desc).map_or(Bytes::MAX, |len| Bytes(len as u64));
            if size > limit && refusal.is_none() {
                refusal = Some(format!(
                    "operand {operand} takes {size}, but a binding covers at most {limit}"
                ));
            }
        });
        match refusal {
            Some(reason) => Plan::No(reason),
            None => Plan::Yes { workspace: self.shared.options.workspace, slow: None },
        }
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        pack::plain_size(desc).map_or(Bytes::MAX, allocation_size)
    }

    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        Ok(Box::new(self.allocate(label, desc)?))
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        pack.packed_desc().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
    }

    fn import(
        &self,
        label: &str,
        pack: &PackDesc,
        source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        let buffer = self.allocate(label, &pack.packed_desc()?)?;
        buffer.write(|out| pack::pack_plain(pack, source, out, 1))?;
        Ok(Box::new(buffer))
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        pack::plain_size(desc)
    }

    fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        self.shared.check()?;
        pack::pack_plain(pack, source, out, 1)
    }

    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        self.shared.check()?;
        pack::pack_rows_plain(pack, source, rows)
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        // Staging is host memory: it can fail, but uses no device memory.
        self.shared.allocate("staging", Bytes(0))?;
        Ok(PlainStaging::boxed(len.0 as usize))
    }

    fn mailbox(&self, shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        self.shared.allocate("mailbox", Bytes(0))?;
        Ok(Arc::new(SimMailbox { shape }))
    }

    fn compile(
        &self,
        label: &str,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        self.shared.check()?;
        let len = workspace.map_or(0, |tensor| buffer(tensor).read(<[u8]>::len));
        assert!(
            ops.is_empty() || len as u64 >= self.shared.options.workspace.0,
            "program {label} got a workspace of {len} bytes; its plan needs {}",
            self.shared.options.workspace
        );
        let mailboxes = mailboxes.iter().map(|mailbox| {
            let any: &dyn Any = &**mailbox;
            let mailbox: &SimMailbox =
                any.downcast_ref().expect("hal rejects mailboxes of another backend");
            mailbox.shape
        });
        let ops = if self.shared.options.computes { ops } else { &[] };
        Ok(Arc::new(SimProgram { ops: ops.into(), mailboxes: mailboxes.collect() }))
    }

    fn queue(&self, label: &str) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(SimQueue::new(&self.shared, label)?))
    }
}

impl SimBackend {
    fn allocate(&self, label: &str, desc: &TensorDesc) -> Result<SimBuffer> {
        match pack::plain_size(desc) {
            // Rejects a tensor larger than the device before it allocates host memory.
            Some(len) => SimBuffer::new(&self.shared, label, len),
            None => Err(Error::shape("alloc", "desc", "a size that fits in memory", desc)),
        }
    }
}

/// A mailbox. The messages of a run carry its two blocks, so only its shape is stored.
#[derive(Debug)]
struct SimMailbox {
    shape: MailboxShape,
}

impl RawMailbox for SimMailbox {}

/// The ops of a program, which keep its tensors alive.
#[derive(Clone, Debug)]
pub(crate) struct SimProgram {
    pub(crate) ops: Arc<[Op]>,
    pub(crate) mailboxes: Arc<[MailboxShape]>,
}

impl RawProgram for SimProgram {}
