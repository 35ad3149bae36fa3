//! A device as the engine uses it. It books every allocation in the ledger and checks every op
//! once.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::format::Format;
use crate::program::Recorder;
use crate::tensor::Buffer;
use crate::{
    Backend, Batch, BatchShape, Bytes, DeviceInfo, Error, HostRows, KV_BLOCK, KvCache, KvRows,
    Ledger, MailboxShape, MemoryReport, OpDesc, PackDesc, Plan, Queue, RawMailbox, Reservation,
    Result, RowSet, RowTable, SharedBytes, Source, Staging, StoredPack, Tensor, TensorDesc,
};

/// Identifies a device by its index in the engine's device list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

/// A backend with an id and a memory budget. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) backend: Arc<dyn Backend>,
    id: DeviceId,
    ledger: Arc<Ledger>,
    /// The scratch memory that all programs of this device share. It never shrinks.
    workspace: Arc<Mutex<Option<Tensor>>>,
    /// Why ops are not run although the backend accepts them, by [`crate::Op::kind`].
    refused: Arc<Mutex<BTreeMap<String, String>>>,
    /// The reservation for the memory that the backend allocated at its start.
    _held: Arc<Option<Reservation>>,
}

/// The mailbox of a hand-off: its two blocks of memory, with their reservation.
#[derive(Clone, Debug)]
pub struct Mailbox {
    pub(crate) raw: Arc<dyn RawMailbox>,
    pub(crate) device: DeviceId,
    pub(crate) shape: MailboxShape,
    /// Shared by mailboxes that were allocated together.
    held: Arc<Reservation>,
}

impl Mailbox {
    /// Whether the two mailboxes were allocated together; only one of them may then hold data at a
    /// time.
    pub(crate) fn shares_memory_with(&self, other: &Mailbox) -> bool {
        Arc::ptr_eq(&self.held, &other.held)
    }

    /// Capacity.
    #[must_use]
    pub fn shape(&self) -> MailboxShape {
        self.shape
    }
}

impl Device {
    /// A device with number `id` that runs on `backend` and may book at most `budget`.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, id: DeviceId, budget: Bytes) -> Device {
        let ledger = Ledger::new(&backend.info().name, budget);
        // A budget smaller than the overhead is reserved entirely.
        let held = ledger.reserve("backend overhead", backend.overhead_bytes().min(budget)).ok();
        let (workspace, refused) = Default::default();
        Device { backend, id, ledger, workspace, refused, _held: Arc::new(held) }
    }

    /// Facts about the device.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        self.backend.info()
    }

    /// The device's index.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// The ledger that books this device's memory.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Current memory as the platform reports it.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn memory(&self) -> Result<MemoryReport> {
        self.backend.memory()
    }

    /// Whether this device can run an op of these shapes and formats.
    #[must_use]
    pub fn plan(&self, op: &OpDesc) -> Plan {
        match (op.check(), self.refusal(op)) {
            (Ok(()), None) => self.backend.plan(op),
            (Ok(()), Some(reason)) => Plan::No(reason),
            (Err(error), _) => Plan::No(error.to_string()),
        }
    }

    /// From now on, this device and its clones run no op of this [`crate::Op::kind`].
    pub fn refuse(&self, kind: &str, reason: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.insert(kind.to_owned(), reason.to_owned());
    }

    fn refusal(&self, op: &OpDesc) -> Option<String> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        // The name of an op's kind is not made for devices that refuse none.
        if refused.is_empty() { None } else { refused.get(&op.kind()).cloned() }
    }

    /// Identifies the driver and the kernels; see [`Backend::version`].
    #[must_use]
    pub fn version(&self) -> String {
        self.backend.version()
    }

    /// Makes later programs use another kernel in place of `unit`; see [`Backend::avoid`].
    #[must_use]
    pub fn avoid(&self, unit: &str) -> bool {
        self.backend.avoid(unit)
    }

    /// Bytes of a tensor of this shape on this device.
    #[must_use]
    pub fn alloc_size(&self, desc: &TensorDesc) -> Bytes {
        self.backend.alloc_size(desc)
    }

    /// Bytes of a pack on this device.
    #[must_use]
    pub fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes {
        self.backend.pack_size(pack, mapped)
    }

    /// A tensor with undefined contents.
    ///
    /// # Errors
    /// [`Error::Shape`] for a row that is not whole blocks, [`Error::OutOfMemory`] past the
    /// budget, errors of the backend.
    pub fn alloc(&self, label: &str, desc: TensorDesc) -> Result<Tensor> {
        if desc.bytes().is_none() {
            return Err(Error::shape("alloc", "desc", "whole blocks per row", desc));
        }
        let held = self.ledger.reserve(label, self.backend.alloc_size(&desc))?;
        let raw = self.backend.alloc(label, &desc)?;
        Ok(self.tensor(raw, held, desc))
    }

    /// [`Device::alloc`] for an F32 tensor.
    ///
    /// # Errors
    /// See [`Device::alloc`].
    pub fn alloc_f32(&self, label: &str, n_rows: usize, n_cols: usize) -> Result<Tensor> {
        self.alloc(label, TensorDesc::new(n_rows, n_cols, Format::F32))
    }

    fn tensor(
        &self,
        raw: Box<dyn crate::RawBuffer>,
        held: Reservation,
        desc: TensorDesc,
    ) -> Tensor {
        let buffer = Buffer { raw, device: self.id, desc, _held: held };
        Tensor { buffer: Arc::new(buffer), first_row: 0, first_col: 0, desc }
    }

    /// Imports weights in the device's own layout.
    ///
    /// # Errors
    /// [`Error::Shape`] if `pack` does not fit `source`, [`Error::OutOfMemory`] past the budget,
    /// errors of the backend.
    pub fn import(&self, label: &str, pack: &PackDesc, source: &HostRows) -> Result<Tensor> {
        let desc = pack.packed_desc()?;
        if pack.source != source.desc() {
            return Err(Error::shape("import", "source", pack.source, source.desc()));
        }
        let mapped = matches!(source.source(), Source::Mapped(_));
        let held = self.ledger.reserve(label, self.backend.pack_size(pack, mapped))?;
        let raw = self.backend.import(label, pack, source)?;
        Ok(self.tensor(raw, held, desc))
    }

    /// Whether weights may be columns of a wider matrix ([`Tensor::columns`]).
    #[must_use]
    pub fn supports_column_views(&self) -> bool {
        self.backend.supports_column_views()
    }

    /// How to store a pack in a file; `None` if this is impossible, or needless because the device
    /// uses the source in place.
    #[must_use]
    pub fn stored_pack(&self, pack: &PackDesc, source: &HostRows) -> Option<StoredPack> {
        let paged = matches!(source.source(), Source::Paged(_));
        self.backend.stored_pack(pack, !paged)
    }

    /// Number of bytes that [`Queue::repack`] needs for a pack of this shape; `None` if this
    /// device cannot replace a whole pack.
    #[must_use]
    pub fn packed_len(&self, desc: &TensorDesc) -> Option<usize> {
        self.backend.packed_len(desc)
    }

    /// Writes a pack in the device's layout, for [`Device::adopt`] or [`Queue::repack`]. `out` has
    /// the length of [`Device::stored_pack`] or [`Device::packed_len`].
    ///
    /// # Errors
    /// [`Error::Shape`] if `pack` does not fit `source` or `out` does not fit the pack, errors of
    /// the backend.
    pub fn pack_into(&self, pack: &PackDesc, source: &HostRows, out: &mut [u8]) -> Result<()> {
        if pack.source != source.desc() {
            return Err(Error::shape("pack_into", "source", pack.source, source.desc()));
        }
        self.backend.pack_into(pack, source, out)
    }

    /// A tensor over weights that are already in the device's layout. The device uses them in
    /// place, so they do not count against the budget.
    ///
    /// # Errors
    /// [`Error::Shape`] for bytes of another length or alignment, errors of the backend.
    pub fn adopt(&self, pack: &PackDesc, bytes: SharedBytes) -> Result<Tensor> {
        let desc = pack.packed_desc()?;
        let held = self.ledger.reserve("stored pack", Bytes(0))?;
        let raw = self.backend.adopt(pack, bytes)?;
        Ok(self.tensor(raw, held, desc))
    }

    /// As [`Device::adopt`], for rows whose places in `memory` `table` has. The caller may change
    /// them, and the bytes, while no program runs; each place must have room for a row.
    ///
    /// # Errors
    /// As for [`Device::adopt`]; [`Error::Shape`] for a place outside of `memory`.
    pub fn adopt_rows(
        &self,
        pack: &PackDesc,
        memory: SharedBytes,
        table: RowTable,
    ) -> Result<Tensor> {
        let desc = pack.packed_desc()?;
        let held = self.ledger.reserve("stored pack", Bytes(0))?;
        let raw = self.backend.adopt_rows(pack, memory, table)?;
        Ok(self.tensor(raw, held, desc))
    }

    /// The bytes of these rows for [`Queue::refill`]. `rows` counts rows of the source matrix, or
    /// its columns if the pack transposes it.
    ///
    /// # Errors
    /// [`Error::Shape`] for rows outside the source or a pack that does not fit it, errors of the
    /// backend.
    pub fn pack_rows(
        &self,
        pack: &PackDesc,
        source: &HostRows,
        rows: Range<u32>,
    ) -> Result<Vec<u8>> {
        if pack.source != source.desc() {
            return Err(Error::shape("pack_rows", "source", pack.source, source.desc()));
        }
        let limit = if pack.transpose { pack.source.n_cols } else { pack.source.n_rows };
        if rows.end as usize > limit || rows.is_empty() {
            let inside = format!("rows within 0..{limit}");
            return Err(Error::shape("pack_rows", "rows", inside, format!("{rows:?}")));
        }
        self.backend.pack_rows(pack, source, rows)
    }

    /// Host memory for copies.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] past the budget, errors of the backend.
    pub fn staging(&self, len: Bytes) -> Result<Staging> {
        let held = self.ledger.reserve("staging", len)?;
        Ok(Staging { raw: self.backend.staging(len)?, device: self.id, held })
    }

    /// Allocates the blocks of one hand-off.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] past the budget, errors of the backend.
    pub fn mailbox(&self, shape: MailboxShape) -> Result<Mailbox> {
        let held = self.ledger.reserve("mailbox", self.mailboxes_size(shape, 1))?;
        let raw = self.backend.mailbox(shape)?;
        Ok(Mailbox { raw, device: self.id, shape, held: Arc::new(held) })
    }

    /// Allocates the blocks of `n` consecutive hand-offs, such as those of a model's layers. A
    /// program merges each mailbox before it posts to the next, so they may share memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] past the budget, errors of the backend.
    pub fn mailboxes(&self, shape: MailboxShape, n: usize) -> Result<Vec<Mailbox>> {
        let held = Arc::new(self.ledger.reserve("mailboxes", self.mailboxes_size(shape, n))?);
        let raw = self.backend.mailboxes(shape, n)?;
        let device = self.id;
        let mailbox = |raw| Mailbox { raw, device, shape, held: Arc::clone(&held) };
        Ok(raw.into_iter().map(mailbox).collect())
    }

    /// Bytes that [`Device::mailboxes`] allocates on this device.
    #[must_use]
    pub fn mailboxes_size(&self, shape: MailboxShape, n: usize) -> Bytes {
        self.backend.mailboxes_size(shape, n)
    }

    /// Allocates the words of a batch.
    ///
    /// # Errors
    /// See [`Device::alloc`].
    pub fn batch(&self, shape: BatchShape) -> Result<Batch<Tensor>> {
        let words = self.alloc("batch", TensorDesc::new(1, shape.n_words(), Format::U32))?;
        Ok(Batch { words, shape })
    }

    /// A paged KV cache of `n_blocks` blocks for one layer. Keys and values each have their own
    /// width and format.
    ///
    /// # Errors
    /// See [`Device::alloc`].
    pub fn kv_cache(
        &self,
        n_blocks: usize,
        n_cols: KvCache<usize>,
        formats: KvCache<Format>,
    ) -> Result<KvCache<Tensor>> {
        let half = |n_cols, format| self.cache_half(n_blocks, n_cols, format);
        Ok(KvCache { k: half(n_cols.k, formats.k)?, v: half(n_cols.v, formats.v)? })
    }

    /// [`Device::kv_cache`], possibly without rows of values.
    ///
    /// # Errors
    /// See [`Device::alloc`].
    pub fn kv_rows(
        &self,
        n_blocks: usize,
        n_cols: KvRows<usize>,
        formats: KvCache<Format>,
    ) -> Result<KvRows<Tensor>> {
        let half = |n_cols, format| self.cache_half(n_blocks, n_cols, format);
        let v = n_cols.v.map(|n_cols| half(n_cols, formats.v)).transpose()?;
        Ok(KvRows { k: half(n_cols.k, formats.k)?, v })
    }

    fn cache_half(&self, n_blocks: usize, n_cols: usize, format: Format) -> Result<Tensor> {
        self.alloc("KV cache", TensorDesc::new(n_blocks * KV_BLOCK, n_cols, format))
    }

    /// A list of up to `capacity` rows for up to `max_tokens` tokens.
    ///
    /// # Errors
    /// See [`Device::alloc`].
    pub fn row_set(&self, capacity: usize, max_tokens: usize) -> Result<RowSet<Tensor>> {
        let u32s = |rows, cols| self.alloc("row set", TensorDesc::new(rows, cols, Format::U32));
        Ok(RowSet {
            ids: u32s(1, capacity)?,
            count: u32s(1, 1)?,
            members: u32s(capacity, max_tokens.div_ceil(32))?,
        })
    }

    /// Grows the workspace that programs share to at least this size, so that recording programs
    /// need not grow it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], errors of the backend.
    pub fn reserve_workspace(&self, bytes: Bytes) -> Result<()> {
        if bytes > Bytes(0) {
            self.workspace(bytes)?;
        }
        Ok(())
    }

    /// Starts recording a program. Record the program for the most tokens first, so that the
    /// workspace is allocated only once. All queues share the workspace, so programs that need it
    /// must run one after the other; an engine runs all its programs that way.
    #[must_use]
    pub fn record(&self, label: &str) -> Recorder {
        Recorder::new(self.clone(), label)
    }

    /// The shared scratch memory, grown to at least `bytes`.
    pub(crate) fn workspace(&self, bytes: Bytes) -> Result<Option<Tensor>> {
        let mut shared = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let words = bytes.0.div_ceil(4) as usize;
        if words > shared.as_ref().map_or(0, |tensor| tensor.desc.n_cols) {
            // Free the old workspace before booking the new one, so that both need not fit in
            // memory at once. Programs that hold the old workspace still keep it alive.
            *shared = None;
            *shared = Some(self.alloc("workspace", TensorDesc::new(1, words, Format::U32))?);
        }
        Ok(shared.clone())
    }

    /// A new in-order queue.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn queue(&self, label: &str) -> Result<Queue> {
        Ok(Queue::new(self.clone(), self.backend.queue(label)?))
    }
}
