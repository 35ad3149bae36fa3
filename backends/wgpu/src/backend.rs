//! [`hal::Backend`] for a device of Vulkan, Metal or DX12.

use std::ops::Range;
use std::sync::Arc;

use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, HostRows, MailboxShape, MemoryReport, Op, OpDesc,
    PackDesc, Plan, RawBuffer, RawMailbox, RawProgram, RawStaging, Result, Tensor, TensorDesc,
};

use crate::buffer::{RowLayout, WgpuBuffer, rounded, stored_size};
use crate::copies::WgpuStaging;
use crate::gpu::{Counts, Gpu};
use crate::layout;
use crate::mailbox::WgpuMailbox;
use crate::native;
use crate::ops;
use crate::program::WgpuProgram;
use crate::queue::WgpuQueue;
use crate::shader;

/// A GPU that wgpu controls.
#[derive(Debug)]
pub struct WgpuBackend {
    gpu: Arc<Gpu>,
    info: DeviceInfo,
}

impl WgpuBackend {
    pub(crate) fn new(gpu: Gpu, info: DeviceInfo) -> WgpuBackend {
        WgpuBackend { gpu: Arc::new(gpu), info }
    }

    /// Marks the device as lost: every later call and every wait returns
    /// [`hal::Error::DeviceLost`] with this reason.
    pub fn mark_lost(&self, reason: &str) {
        self.gpu.health.mark_lost(reason);
        self.gpu.device.destroy();
    }

    /// Work and waits since the device was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.gpu.counts()
    }
}

impl Backend for WgpuBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn feature_notes(&self) -> Vec<String> {
        let facts = &self.gpu.facts;
        let has = |feature| self.gpu.device.features().contains(feature);
        let subgroups = match facts.subgroup_size {
            Some(size) => format!("sums use subgroups of {size} invocations"),
            None => "sums use workgroup memory, since subgroups cannot be used".to_owned(),
        };
        let clock = if has(wgpu::Features::TIMESTAMP_QUERY) {
            "timestamps measure when the device worked"
        } else {
            "no timestamps: a trace shows when the host saw work end"
        };
        let (most, buffer) = (facts.max_binding(), facts.limits.max_buffer_size);
        let limits = format!(
            "an op binds up to {} of an operand at once; a buffer holds up to {}",
            Bytes(most),
            Bytes(buffer)
        );
        vec![subgroups, clock.to_owned(), limits]
    }

    fn version(&self) -> String {
        // The description has the driver and its version.
        format!("kernels {:016x}", shader::hash())
    }

    fn avoid(&self, unit: &str) -> bool {
        self.gpu.facts.subgroup_size.is_some() && self.gpu.without_subgroups.add(unit)
    }

    fn memory(&self) -> Result<MemoryReport> {
        self.gpu.health.check()?;
        Ok(native::memory(&self.gpu.device))
    }

    fn overhead_bytes(&self) -> Bytes {
        Bytes(self.gpu.dummy.size() + self.gpu.tables.size())
    }

    fn plan(&self, op: &OpDesc) -> Plan {
        ops::plan(op, &self.gpu.facts)
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        stored_size(desc).map_or(Bytes::MAX, |size| rounded(size.0))
    }

    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        let buffer = self.gpu.storage(label, self.alloc_size(desc).0)?;
        Ok(Box::new(WgpuBuffer { buffer, layout: RowLayout::Plain }))
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        layout::size(pack)
    }

    fn import(
        &self,
        label: &str,
        pack: &PackDesc,
        source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        Ok(Box::new(layout::import(&self.gpu, label, pack, source)?))
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        ::layout::packed_len(desc)
    }

    fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        ::layout::pack_into(pack, source, out)
    }

    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        ::layout::pack_rows(pack, source, rows)
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        Ok(Box::new(WgpuStaging::new(&self.gpu, len)?))
    }

    fn mailbox(&self, shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        Ok(Arc::new(WgpuMailbox::new(&self.gpu, shape)?))
    }

    fn mailboxes(&self, shape: MailboxShape, n: usize) -> Result<Vec<Arc<dyn RawMailbox>>> {
        // All hand-offs can share one mailbox: the device reads an answer before it copies the next
        // post, and the host does not read a post after it has answered.
        Ok(vec![self.mailbox(shape)?; n])
    }

    fn mailboxes_size(&self, shape: MailboxShape, _n: usize) -> Bytes {
        shape.bytes()
    }

    fn compile(
        &self,
        label: &str,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        self.gpu.health.check()?;
        Ok(Arc::new(WgpuProgram::new(&self.gpu, label, ops, mailboxes, workspace)?))
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        self.gpu.health.check()?;
        Ok(Box::new(WgpuQueue::new(&self.gpu)))
    }
}
