//! An assumed device, to plan for: reports sizes and support, runs nothing.

use std::ops::Range;
use std::sync::Arc;

use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, DeviceKind, Error, HostRows, MailboxShape,
    MemoryReport, Op, OpDesc, PackDesc, Plan, RawBuffer, RawMailbox, RawProgram, RawStaging,
    Result, Tensor, TensorDesc, pack,
};

/// Allocation granularity of drivers.
const GRANULE: u64 = 256;

/// Properties of an assumed device.
#[derive(Debug)]
pub(super) struct Assumed {
    info: DeviceInfo,
    memory: Bytes,
}

impl Assumed {
    pub(super) fn new(name: &str, memory: Bytes) -> Arc<Assumed> {
        let info = DeviceInfo {
            name: name.to_owned(),
            description: "assumed, not present".to_owned(),
            kind: DeviceKind::Discrete,
            max_binding: Bytes::MAX,
            hand_off: true,
        };
        Arc::new(Assumed { info, memory })
    }

    fn not_there(&self) -> Error {
        let (device, reason) = (self.info.name.clone(), "it is assumed, not present".to_owned());
        Error::DeviceLost { device, reason }
    }
}

/// Supports every op of plain tensors: only real devices can report what they lack.
impl Backend for Assumed {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryReport> {
        Ok(MemoryReport { total: Some(self.memory), free: Some(self.memory) })
    }

    fn plan(&self, _op: &OpDesc) -> Plan {
        Plan::yes()
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        let size =
            pack::plain_size(desc).map(|size| (size as u64).checked_next_multiple_of(GRANULE));
        size.flatten().map_or(Bytes::MAX, Bytes)
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        pack.packed().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        pack::plain_size(desc)
    }

    fn alloc(&self, _label: &str, _desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        Err(self.not_there())
    }

    fn import(
        &self,
        _label: &str,
        _pack: &PackDesc,
        _source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        Err(self.not_there())
    }

    fn pack_rows(
        &self,
        _pack: &PackDesc,
        _source: &HostRows,
        _rows: Range<u32>,
    ) -> Result<Vec<u8>> {
        Err(self.not_there())
    }

    fn staging(&self, _len: Bytes) -> Result<Box<dyn RawStaging>> {
        Err(self.not_there())
    }

    fn mailbox(&self, _shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        Err(self.not_there())
    }

    fn mailboxes_size(&self, shape: MailboxShape, _n: usize) -> Bytes {
        shape.bytes()
    }

    fn compile(
        &self,
        _label: &str,
        _ops: &[Op],
        _mailboxes: &[Arc<dyn RawMailbox>],
        _workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        Err(self.not_there())
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        Err(self.not_there())
    }
}
