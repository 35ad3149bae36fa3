//! The null backend: shows that the contract can be implemented, and serves as a template.
//!
//! It accepts every op and computes nothing, so the conformance suite must fail on it.

use std::ops::Range;
use std::sync::Arc;

use crate::{
    Backend, BackendQueue, Bytes, DeviceInfo, DeviceKind, HostRows, MailboxShape, MemoryReport, Op,
    OpDesc, PackDesc, PlainStaging, Plan, Posted, RawBuffer, RawMailbox, RawProgram, RawRun,
    RawStaging, RawTransfer, Result, Tensor, TensorDesc, pack,
};

/// A device without memory or arithmetic.
#[derive(Debug)]
pub struct NullBackend {
    info: DeviceInfo,
}

impl Default for NullBackend {
    fn default() -> NullBackend {
        let info = DeviceInfo {
            name: "NULL".to_owned(),
            description: "does nothing".to_owned(),
            kind: DeviceKind::Simulated,
            max_binding: Bytes::MAX,
            hand_off: true,
        };
        NullBackend { info }
    }
}

#[derive(Debug)]
struct Nothing;

impl RawBuffer for Nothing {}
impl RawMailbox for Nothing {}
impl RawProgram for Nothing {}

impl Backend for NullBackend {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> Result<MemoryReport> {
        Ok(MemoryReport { total: None, free: None })
    }

    fn plan(&self, _op: &OpDesc) -> Plan {
        Plan::yes()
    }

    fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        desc.bytes().unwrap_or(Bytes::MAX)
    }

    fn alloc(&self, _label: &str, _desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        Ok(Box::new(Nothing))
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        pack.packed().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
    }

    fn import(
        &self,
        _label: &str,
        _pack: &PackDesc,
        _source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        Ok(Box::new(Nothing))
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        pack::plain_size(desc)
    }

    fn pack_into(&self, _pack: &PackDesc, _source: &HostRows, _out: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn pack_rows(&self, _pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        Ok(vec![0; rows.len() * source.row_bytes()])
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        Ok(PlainStaging::boxed(len.0 as usize))
    }

    fn mailbox(&self, _shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        Ok(Arc::new(Nothing))
    }

    fn compile(
        &self,
        _label: &str,
        _ops: &[Op],
        _mailboxes: &[Arc<dyn RawMailbox>],
        _workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        Ok(Arc::new(Nothing))
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(NullQueue))
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
    fn next_post(&mut self) -> Result<Option<Posted<'_>>> {
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
