//! [`hal::Backend`] for a GPU of either vendor.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, HostRows, MailboxShape, MemoryReport, Op, OpDesc,
    PackDesc, Plan, RawBuffer, RawMailbox, RawProgram, RawStaging, Result, Tensor, TensorDesc,
};

use crate::buffer::{Memory, RowLayout, SimtBuffer, Span, stored_size};
use crate::card::Card;
use crate::driver::Driver;
use crate::error::failure;
use crate::mailbox::{BlockLayout, SimtMailbox};
use crate::ops;
use crate::pinned::Pinned;
use crate::probe::{Options, SubmissionMode};
use crate::program::SimtProgram;
use crate::queue::SimtQueue;

/// A GPU that a vendor's driver controls.
#[derive(Debug)]
pub struct SimtBackend<D: Driver> {
    card: Arc<Card<D>>,
    info: DeviceInfo,
}

impl<D: Driver> SimtBackend<D> {
    /// Opens a device and measures the fastest way to submit work to it.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn open(driver: D) -> Result<Arc<SimtBackend<D>>> {
        SimtBackend::open_with(driver, Options::default())
    }

    /// [`SimtBackend::open`] with fixed submission options, so that tests can cover all of them.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn open_with(driver: D, options: Options) -> Result<Arc<SimtBackend<D>>> {
        let card = Arc::new(Card::new(Arc::new(driver), options)?);
        let facts = &card.checked.facts;
        let mut description = facts.description.clone();
        if let Some(remark) = &card.checked.remark {
            description = format!("{description}; {remark}");
        }
        let info = DeviceInfo {
            name: facts.name.clone(),
            description,
            remark: card.submission.remark,
            kind: facts.kind,
            max_binding: facts.total,
            hand_off: true,
        };
        Ok(Arc::new(SimtBackend { card, info }))
    }

    /// How work is submitted to the device.
    #[must_use]
    pub fn submission(&self) -> SubmissionMode {
        self.card.submission
    }

    fn new_buffer(&self, label: &str, len: u64, layout: RowLayout) -> Result<SimtBuffer> {
        let memory = Memory::new(&self.card.driver, label, len)?;
        let span: Span = memory.span();
        Ok(SimtBuffer { span, layout, _memory: Box::new(memory) })
    }
}

impl<D: Driver> Backend for SimtBackend<D> {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn feature_notes(&self) -> Vec<String> {
        let SubmissionMode { graphs, flags, launch, in_graph, echo, .. } = self.card.submission;
        let us = |time: Duration| format!("{:.1} us", time.as_secs_f64() * 1e6);
        let separate = us(launch);
        let launches = match in_graph.filter(|_| graphs) {
            Some(graph) => {
                format!(
                    "steps run as graphs: {} per launch in a graph, {separate} separately",
                    us(graph)
                )
            }
            None if graphs => "steps run as graphs".to_owned(),
            None => format!("kernels are launched separately: {separate} each"),
        };
        let waits = match echo.filter(|_| flags) {
            Some(echo) => {
                format!(
                    "the device itself waits for the CPU's answers, and sees an answer after {}",
                    us(echo)
                )
            }
            None if flags => "the device itself waits for the CPU's answers".to_owned(),
            None => "a submission ends at each hand-off".to_owned(),
        };
        let prefetch = match self.card.checked.facts.prefetch {
            0 => "weights are not prefetched into the L2 cache".to_owned(),
            bytes => format!(
                "a short kernel prefetches up to {} of the next weight into the L2 cache",
                Bytes(bytes)
            ),
        };
        vec![launches, waits, prefetch]
    }

    fn version(&self) -> String {
        self.card.driver.version()
    }

    fn avoid(&self, unit: &str) -> bool {
        self.card.avoided.add(unit)
    }

    fn memory(&self) -> Result<MemoryReport> {
        self.card.driver.memory()
    }

    fn overhead_bytes(&self) -> Bytes {
        Bytes(self.card.tables.len)
    }

    fn plan(&self, op: &OpDesc) -> Plan {
        ops::plan(op, self.card.driver.facts())
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        stored_size(desc).map_or(Bytes::MAX, |bytes| self.card.granule.allocation(bytes))
    }

    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        Ok(Box::new(self.new_buffer(label, self.alloc_size(desc).0, RowLayout::Plain)?))
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        layout::pack_size(pack).map_or(Bytes::MAX, |bytes| self.card.granule.allocation(bytes))
    }

    fn import(
        &self,
        label: &str,
        pack: &PackDesc,
        source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        let layout = match pack.source.format.quants() {
            None => RowLayout::Plain,
            Some(_) => RowLayout::Packed,
        };
        let buffer = self.new_buffer(label, self.pack_size(pack, false).0, layout)?;
        let sink = &mut |at, bytes: &[u8]| self.card.upload(buffer.span, at, bytes);
        match layout::pack(pack, source, sink) {
            Ok(()) => Ok(Box::new(buffer)),
            Err(error) => {
                // Copies in flight write to the buffer, which is freed on return.
                self.card.wait_for_uploads()?;
                Err(error)
            }
        }
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        layout::packed_len(desc)
    }

    fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        layout::pack_into(pack, source, out)
    }

    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        layout::pack_rows(pack, source, rows)
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        Ok(Box::new(Pinned::new(&self.card.driver, "staging", len.0 as usize)?))
    }

    fn mailbox(&self, shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        let mailbox = SimtMailbox::allocate(&self.card.driver, shape, 1)?.pop();
        mailbox
            .map(|mailbox| Arc::new(mailbox) as Arc<dyn RawMailbox>)
            .ok_or_else(|| failure("mailbox", "no mailbox was allocated"))
    }

    fn mailboxes(&self, shape: MailboxShape, n: usize) -> Result<Vec<Arc<dyn RawMailbox>>> {
        let mailboxes = SimtMailbox::allocate(&self.card.driver, shape, n)?.into_iter();
        Ok(mailboxes.map(|mailbox| Arc::new(mailbox) as Arc<dyn RawMailbox>).collect())
    }

    fn mailboxes_size(&self, shape: MailboxShape, n: usize) -> Bytes {
        Bytes(4 * BlockLayout::new(&shape, n).len as u64)
    }

    fn compile(
        &self,
        _label: &str,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        Ok(Arc::new(SimtProgram::new(&self.card, ops, mailboxes, workspace)?))
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(SimtQueue::new(&self.card)?))
    }
}
