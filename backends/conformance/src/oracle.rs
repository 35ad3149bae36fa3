//! The reference as a device: synchronous, in host memory, in the plain layout.

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cpu::reference::{Memory, execute};
use hal::format::Format;
use hal::op::{HandOff, Merge, Post};
use hal::pack::{pack_plain, pack_rows_plain, plain_size, refill_plain};
use hal::{
    Backend, BackendQueue, Batch, Bytes, Device, DeviceId, DeviceInfo, DeviceKind, Error,
    HostRowSet, HostRows, MailboxShape, MemoryReport, Op, OpDesc, Operand, PackDesc, PlainStaging,
    Plan, Posted, RawBuffer, RawMailbox, RawProgram, RawRun, RawStaging, RawTransfer, Result,
    Tensor, TensorDesc,
};

/// Memory budget of [`oracle`].
const BUDGET: Bytes = Bytes(4 << 30);

/// The device that all others are compared with.
#[must_use]
pub fn oracle() -> Device {
    device(false)
}

/// The same device with working memory and ops that do nothing.
#[cfg(test)]
pub(crate) fn idle() -> Device {
    device(true)
}

fn device(idle: bool) -> Device {
    let info = DeviceInfo {
        name: "ORACLE".to_owned(),
        description: "reference kernels".to_owned(),
        kind: DeviceKind::Simulated,
        max_binding: Bytes::MAX,
        hand_off: true,
    };
    Device::new(Arc::new(OracleBackend { info, idle }), DeviceId(u32::MAX), BUDGET)
}

#[derive(Debug)]
struct OracleBackend {
    info: DeviceInfo,
    /// Programs are accepted and not run.
    idle: bool,
}

#[derive(Debug)]
struct Buffer(Mutex<Vec<u8>>);
#[derive(Debug)]
struct Mailbox;
#[derive(Debug)]
struct Program(Arc<[Op]>);

impl RawBuffer for Buffer {}
impl RawMailbox for Mailbox {}
impl RawProgram for Program {}

fn lock(tensor: &Tensor) -> MutexGuard<'_, Vec<u8>> {
    let buffer = tensor.raw::<Buffer>().expect("the device checks whose tensor it is");
    buffer.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Offset of a plain view in its buffer.
fn start(tensor: &Tensor) -> usize {
    let desc = tensor.desc();
    let row = desc.format.row_bytes(desc.n_cols).expect("tensors have whole blocks per row");
    tensor.first_row() * row
}

/// The four-byte words of a plain F32 or U32 view.
fn words(tensor: &Tensor) -> Vec<[u8; 4]> {
    let n = tensor.desc().n_rows * tensor.desc().n_cols;
    let bytes = lock(tensor);
    let words = bytes[start(tensor)..].chunks_exact(4).take(n);
    words.map(|w| [w[0], w[1], w[2], w[3]]).collect()
}

fn u32s(tensor: &Tensor) -> Vec<u32> {
    words(tensor).into_iter().map(u32::from_le_bytes).collect()
}

fn f32s(tensor: &Tensor) -> Vec<f32> {
    words(tensor).into_iter().map(f32::from_le_bytes).collect()
}

#[derive(Debug)]
struct Host;

impl Memory for Host {
    fn read(&self, tensor: &Tensor, f: &mut dyn FnMut(&[u8])) {
        f(&lock(tensor));
    }

    fn write(&self, tensor: &Tensor, f: &mut dyn FnMut(&mut [u8])) {
        f(&mut lock(tensor));
    }
}

impl Backend for OracleBackend {
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
        plain_size(desc).map_or(Bytes::MAX, |size| Bytes(size as u64))
    }

    fn alloc(&self, _label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>> {
        let size = plain_size(desc).expect("the ledger refused tensors of invalid size");
        Ok(Box::new(Buffer(Mutex::new(vec![0xff; size]))))
    }

    fn pack_size(&self, pack: &PackDesc, _mapped: bool) -> Bytes {
        pack.packed().map_or(Bytes::MAX, |desc| self.alloc_size(&desc))
    }

    fn import(
        &self,
        _label: &str,
        pack: &PackDesc,
        source: &HostRows,
    ) -> Result<Box<dyn RawBuffer>> {
        let mut bytes = vec![0; plain_size(&pack.packed()?).unwrap_or_default()];
        pack_plain(pack, source, &mut bytes, 1)?;
        Ok(Box::new(Buffer(Mutex::new(bytes))))
    }

    fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        plain_size(desc)
    }

    fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        pack_plain(pack, source, out, 1)
    }

    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>> {
        pack_rows_plain(pack, source, rows)
    }

    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>> {
        Ok(PlainStaging::boxed(len.0 as usize))
    }

    fn mailbox(&self, _shape: MailboxShape) -> Result<Arc<dyn RawMailbox>> {
        Ok(Arc::new(Mailbox))
    }

    fn compile(
        &self,
        _label: &str,
        ops: &[Op],
        _mailboxes: &[Arc<dyn RawMailbox>],
        _workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>> {
        let ops = if self.idle { &[] } else { ops };
        Ok(Arc::new(Program(ops.into())))
    }

    fn queue(&self, _label: &str) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(OracleQueue))
    }
}

#[derive(Debug)]
struct OracleQueue;

impl BackendQueue for OracleQueue {
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        let program: &dyn Any = &**program;
        let program = program.downcast_ref::<Program>().expect("the device checks whose it is");
        let mut run = OracleRun { ops: Arc::clone(&program.0), ..OracleRun::default() };
        run.advance()?;
        Ok(Box::new(run))
    }

    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        let bytes = src.bytes();
        lock(dst)[start(dst)..][..bytes.len()].copy_from_slice(bytes);
        Ok(Box::new(Done(src)))
    }

    fn download(
        &mut self,
        src: &Tensor,
        mut dst: Box<dyn RawStaging>,
    ) -> Result<Box<dyn RawTransfer>> {
        let bytes = dst.bytes_mut();
        bytes.copy_from_slice(&lock(src)[start(src)..][..bytes.len()]);
        Ok(Box::new(Done(dst)))
    }

    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        refill_plain(&pack.whole(), &mut lock(pack), pack.in_whole(slots), bytes)
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        lock(dst).copy_from_slice(src.bytes());
        Ok(Box::new(Done(src)))
    }

    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        let len = plain_size(&src.desc()).unwrap_or_default();
        let bytes = lock(src)[start(src)..][..len].to_vec();
        lock(dst)[start(dst)..][..len].copy_from_slice(&bytes);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Done(Box<dyn RawStaging>);

impl RawTransfer for Done {
    fn is_done(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        Ok(self.0)
    }
}

/// A program that has run up to its next post.
#[derive(Debug, Default)]
struct OracleRun {
    ops: Arc<[Op]>,
    at: usize,
    ready: Option<Letter>,
    open: Option<Letter>,
    answers: HashMap<usize, Vec<f32>>,
}

/// The data of a post, while the host reads it.
#[derive(Debug)]
struct Letter {
    mailbox: usize,
    n_tokens: usize,
    x: Vec<f32>,
    rows: Option<HostRowSet>,
    weights: Vec<f32>,
}

impl OracleRun {
    fn advance(&mut self) -> Result<()> {
        let ops = Arc::clone(&self.ops);
        while let (Some(op), None) = (ops.get(self.at), &self.ready) {
            match op.hand_off() {
                Some(HandOff::Post(post)) => self.ready = Some(letter(post)),
                Some(HandOff::Merge(merge)) => self.merge(merge)?,
                None => execute(op, &Host)?,
            }
            self.at += 1;
        }
        Ok(())
    }

    fn merge(&mut self, op: &Merge<Tensor>) -> Result<()> {
        // Nothing runs concurrently on this device, so a missing answer will never arrive.
        let answer = self.answers.remove(&op.mailbox).ok_or(Error::Cancelled)?;
        let at = start(&op.y);
        let mut bytes = lock(&op.y);
        for (y, a) in bytes[at..].chunks_exact_mut(4).zip(answer) {
            let before = f32::from_le_bytes([y[0], y[1], y[2], y[3]]);
            let after = if op.accumulate { before + a } else { a };
            y.copy_from_slice(&after.to_le_bytes());
        }
        Ok(())
    }
}

fn real_tokens(batch: &Batch<Tensor>, n_rows: usize) -> usize {
    (u32s(&batch.words)[0] as usize).min(n_rows)
}

fn letter(op: &Post<Tensor>) -> Letter {
    debug_assert_eq!(op.x.desc().format, Format::F32);
    let n_tokens = real_tokens(&op.batch, op.x.desc().n_rows);
    let first = |tensor: &Tensor| {
        let mut values = f32s(tensor);
        values.truncate(n_tokens * tensor.desc().n_cols);
        values
    };
    let (x, weights) = (first(&op.x), op.weights.as_ref().map(first).unwrap_or_default());
    let rows = op.rows.as_ref().map(|set| {
        let count = u32s(&set.count)[0] as usize;
        let (held, words) = (set.members.desc().n_cols, n_tokens.div_ceil(32));
        let mut ids = u32s(&set.ids);
        ids.truncate(count);
        let members = u32s(&set.members);
        let members = members.chunks_exact(held).take(count).flat_map(|row| &row[..words]);
        HostRowSet { ids, members: members.copied().collect(), words }
    });
    Letter { mailbox: op.mailbox, n_tokens, x, rows, weights }
}

impl RawRun for OracleRun {
    fn next_post(&mut self) -> Result<Option<Posted<'_>>> {
        self.advance()?;
        self.open = self.ready.take();
        Ok(self.open.as_ref().map(|letter| Posted {
            mailbox: letter.mailbox,
            n_tokens: letter.n_tokens,
            x: &letter.x,
            rows: letter.rows.as_ref(),
            weights: &letter.weights,
        }))
    }

    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()> {
        self.answers.insert(mailbox, y.to_vec());
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        self.advance()?;
        if self.ready.is_some() { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn cancel(&mut self) {
        self.at = self.ops.len();
        self.ready = None;
    }
}
