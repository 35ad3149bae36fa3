//! A device that is not there, to plan for: it knows what things would take on it and runs nothing.

use std::ops::Range;
use std::sync::Arc;

use hal::{
    Backend, BackendQueue, Bytes, DeviceInfo, DeviceKind, Error, HostRows, MailboxShape,
    MemoryReport, Op, OpDesc, PackDesc, Plan, RawBuffer, RawMailbox, RawProgram, RawStaging,
    Result, Tensor, TensorDesc, pack,
};

/// Drivers hand memory out in such pieces.
const GRANULE: u64 = 256;

/// What is assumed of a device.
#[derive(Debug)]
pub(super) struct Assumed {
    info: DeviceInfo,
    memory: Bytes,
}

impl Assumed {
    pub(super) fn new(name: &str, memory: Bytes) -> Arc<Assumed> {
        let info = DeviceInfo {
            name: name.to_owned(),
            description: "assumed, not there".to_owned(),
            kind: DeviceKind::Discrete,
            max_binding: Bytes::MAX,
            hand_off: true,
        };
        Arc::new(Assumed { info, memory })
    }

    fn not_there(&self) -> Error {
        let (device, reason) = (self.info.name.clone(), "it is assumed, not there".to_owned());
        Error::DeviceLost { device, reason }
    }
}

/// Any op of plain tensors: what real devices lack, only they can tell.
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
