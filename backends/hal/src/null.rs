//! The null backend: shows that the contract can be implemented, and serves as a template.
//!
//! It accepts every op and computes nothing, so the conformance suite must fail on it.
//! `plan --assume` uses it as an assumed device, which reports sizes but refuses to allocate.

use std::ops::Range;
use std::sync::Arc;

use crate::{
    Backend, BackendQueue, Bytes, DeviceInfo, DeviceKind, Error, HostRows, MailboxShape,
    MemoryReport, Op, OpDesc, PackDesc, PlainStaging, Plan, PostedData, RawBuffer, RawMailbox,
    RawProgram, RawRun, RawStaging, RawTransfer, Result, Tensor, TensorDesc, pack,
};

/// Allocation granularity of typical GPU drivers, in bytes.
const GRANULE: u64 = 256;

/// A device without memory or arithmetic.
#[derive(Debug)]
pub struct NullBackend {
    info: DeviceInfo,
    memory: Option<Bytes>,
    is_present: bool,
}

impl Default for NullBackend {
    fn default() -> NullBackend {
        let info = DeviceInfo {
            name: "NULL".to_owned(),
            description: "does nothing".to_owned(),
            remark: None,
            kind: DeviceKind::Simulated,
            max_binding: Bytes::MAX,
            hand_off: true,
        };
        NullBackend { info, memory: None, is_present: true }
    }
}

impl NullBackend {
    /// A discrete device with this name and memory, for planning only. Its plans accept every op,
    /// since only a real device can report its limits. Calls that would use the device return
    /// [`Error::DeviceLost`].
    #[must_use]
    pub fn assumed(name: &str, memory: Bytes) -> NullBackend {
        let info = DeviceInfo {
            name: name.to_owned(),
            description: "assumed, not present".to_owned(),
            remark: None,
            kind: DeviceKind::Discrete,
            max_binding: Bytes::MAX,
            hand_off: true,
        };
        NullBackend { info, memory: Some(memory), is_present: false }
    }

    /// `value` if the device is present, [`Error::DeviceLost`] if it is only assumed.
    fn if_present<T>(&self, value: T) -> Result<T> {
        if self.is_present {
            return Ok(value);
        }
        let device = self.info.name.clone();
        let reason = "it is assumed for planning, not present in this machine".to_owned();
        Err(Error::DeviceLost { device, reason })
    }
}

#[derive(Debug)]
struct NullObject;

impl RawBuffer for NullObject {}
impl RawMailbox for NullObject {}
impl RawProgram for NullObject {}

impl Backend for NullBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryReport> {
        Ok(MemoryReport { total: self.memory, free: self.memory })
    }

    fn plan(&self, _op: &OpDesc) -> Plan {
        Plan::yes()
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        let size =
            pack::plain_size(desc).map(|size| (size as u64).checked_next_multiple_of(GRANULE));
        size.flatten().map_or(Bytes::MAX, Bytes)
    }

    fn alloc(&self, _label: &str, _desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        self.if_present(Box::new(NullObject) as Box<dyn RawBuffer>)
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        pack.packed_desc().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
    }

    fn import(
        &self,
        _label: &str,
        _pack: &PackDesc,
        _source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        self.if_present(Box::new(NullObject) as Box<dyn RawBuffer>)
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        pack::plain_size(desc)
    }

    fn pack_into(&self, _pack: &PackDesc, _source: &HostRows, _out: &mut [u8]) -> Result<()> {
        self.if_present(())
    }

    fn pack_rows(&self, _pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        self.if_present(vec![0; rows.len() * source.row_bytes()])
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        self.if_present(())?;
        Ok(PlainStaging::boxed(len.0 as usize))
    }

    fn mailbox(&self, _shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        self.if_present(Arc::new(NullObject) as Arc<dyn RawMailbox>)
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
        self.if_present(Arc::new(NullObject) as Arc<dyn RawProgram>)
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        self.if_present(Box::new(NullQueue) as Box<dyn BackendQueue>)
    }
}

#[derive(Debug)]
struct NullQueue;

impl BackendQueue for NullQueue {
    fn replay(&mut self, _program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        Ok(Box::new(NullRun))
    }

    fn upload(&mut self, src: Box<dyn RawStaging>, _dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        Ok(Box::new(NullTransfer(src)))
    }

    fn download(
        &mut self,
        _src: &Tensor,
        dst: Box<dyn RawStaging>,
    ) -> Result<Box<dyn RawTransfer>> {
        Ok(Box::new(NullTransfer(dst)))
    }

    fn refill(&mut self, _pack: &Tensor, _slots: Range<usize>, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, _dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        Ok(Box::new(NullTransfer(src)))
    }

    fn copy_rows(&mut self, _src: &Tensor, _dst: &Tensor) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct NullRun;

impl RawRun for NullRun {
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        Ok(None)
    }

    fn answer(&mut self, _mailbox: usize, _y: &[f32]) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn cancel(&mut self) {}
}

#[derive(Debug)]
struct NullTransfer(Box<dyn RawStaging>);

impl RawTransfer for NullTransfer {
    fn is_done(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        Ok(self.0)
    }
}
