//! The traits a device implements. The engine never calls these: it goes through [`crate::Device`] and
//! [`crate::Queue`], which check everything once.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{
    Bytes, HostRowSet, HostRows, Op, OpDesc, PackDesc, RawBuffer, RawStaging, Result, SharedBytes,
    Tensor, TensorDesc, Times,
};

/// What kind of device this is; placement and messages use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor, in system memory.
    Cpu,
    /// A card with memory of its own.
    Discrete,
    /// A graphics unit that shares system memory.
    Integrated,
    /// The processor as if it were a card: tests, and software drivers that were asked for by name.
    Simulated,
}

/// Facts about a device that do not change.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `CPU`, `CUDA0`, `Vulkan1`, ...
    pub name: String,
    /// What the driver calls it.
    pub description: String,
    /// Kind.
    pub kind: DeviceKind,
    /// Most bytes of one tensor. Whether an op can read one so large, or cuts it, its plan knows.
    pub max_binding: Bytes,
    /// Whether programs on it may contain `Post` and `Merge`, so that a layer can be split from here.
    pub hand_off: bool,
}

/// Memory of a device, now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Physical size, if the platform tells it.
    pub total: Option<Bytes>,
    /// Free, if the platform tells it.
    pub free: Option<Bytes>,
}

/// A pack as a file keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPack {
    /// Name and version of the layout: bytes of another one are of no use.
    pub layout: &'static str,
    /// Bytes.
    pub len: usize,
}

fn not_kept(device: &str) -> crate::Error {
    let reason = "its packs cannot be kept in a file".to_owned();
    crate::Error::Unsupported { op: "adopt", device: device.to_owned(), reason }
}

/// The answer to "can you run this?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It can, with so much workspace.
    Yes {
        /// Scratch the op needs while it runs; programs share the largest.
        workspace: Bytes,
        /// Why this one is slow here, if it is: said to the user once.
        slow: Option<String>,
    },
    /// It cannot, and why.
    No(String),
}

impl Plan {
    /// A plain yes without workspace.
    #[must_use]
    pub fn yes() -> Plan {
        Plan::Yes { workspace: Bytes(0), slow: None }
    }
}

/// Capacity of a mailbox: two fixed blocks that both sides can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxShape {
    /// Most tokens of a step.
    pub max_tokens: usize,
    /// Floats per token on the way out.
    pub n_in: usize,
    /// Weights of groups per token beside them; 0 if none are sent.
    pub n_weights: usize,
    /// Floats per token on the way back.
    pub n_out: usize,
    /// Most rows in the list; 0 if none is sent.
    pub max_rows: usize,
}

impl MailboxShape {
    /// Size of both blocks.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let words = self.max_tokens.div_ceil(32);
        let floats = self.max_tokens * (self.n_in + self.n_weights + self.n_out);
        Bytes(4 * (4 + floats + self.max_rows * (1 + words)) as u64)
    }
}

/// One compute device: the memory it owns and the queues that run on it.
///
/// # Contract
/// 1. What is given to one queue happens in that order; each piece sees the results of those before it.
/// 2. Calls on a queue may return before the work is done. Only a finished [`RawRun`], a finished
///    [`RawTransfer`] and [`BackendQueue::finish`] say that it is. Tensors are used by one queue at a time.
/// 3. Ops arrive checked (`Op::check`, aliasing, ownership) and planned (`plan` said yes). A backend that meets
///    anything else has found a bug above it and may panic.
/// 4. Results match `cpu::reference` within the tolerance of the conformance case, and the same program on the
///    same inputs gives the same bits twice: no float atomics, fixed slices merged in a fixed order.
/// 5. Contents of a fresh tensor are undefined. Rows of padded tokens may hold anything afterwards.
/// 6. Errors are only what a correct caller cannot prevent: memory, a lost device, a driver fault. After
///    [`crate::Error::DeviceLost`] every later call on the device gives the same error, and every wait ends.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Facts.
    fn info(&self) -> &DeviceInfo;

    /// What the backend makes use of here and what it does without, and what limits an op: sentences for people.
    fn ways(&self) -> Vec<String> {
        Vec::new()
    }

    /// Memory now.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] or [`crate::Error::Driver`].
    fn memory(&self) -> Result<MemoryReport>;

    /// Bytes of the device's memory that the backend holds from the beginning, whatever it is used for.
    fn held(&self) -> Bytes {
        Bytes(0)
    }

    /// Whether the device can run an op of these shapes and formats. Asked before anything is allocated.
    fn plan(&self, op: &OpDesc) -> Plan;

    /// Bytes that [`Backend::alloc`] takes for `desc`.
    fn alloc_size(&self, desc: &TensorDesc) -> Bytes;

    /// Memory for a tensor; contents undefined.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] or a lost device.
    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>>;

    /// Bytes that [`Backend::import`] takes. `mapped` says that the source is mapped memory, which a device in
    /// host memory uses in place.
    fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes;

    /// Brings weights to the device in its own layout. Blocks until the source is no longer needed, or keeps it.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], a lost device, or what a paged source reports.
    fn import(&self, label: &str, pack: &PackDesc, source: &HostRows)
    -> Result<Box<dyn RawBuffer>>;

    /// Whether the weights of a matrix product and a feed-forward block may be columns of a wider matrix
    /// ([`Tensor::columns`]), so that the rows of a neuron lie side by side.
    fn takes_columns(&self) -> bool {
        false
    }

    /// How a pack of this device can be kept in a file and used from there; `None` where it cannot, or where the
    /// weights are used as they are anyway. `in_memory` says that the source is, as a whole.
    fn stored(&self, _pack: &PackDesc, _in_memory: bool) -> Option<StoredPack> {
        None
    }

    /// Bytes of a pack of this shape as [`Backend::pack_into`] makes them for [`BackendQueue::repack`]; `None` where no
    /// pack is replaced as a whole.
    fn packed_len(&self, _desc: &TensorDesc) -> Option<usize> {
        None
    }

    /// Makes the bytes that [`Backend::adopt`] and [`BackendQueue::repack`] take, as many as [`Backend::stored`] or
    /// [`Backend::packed_len`] says, in `out`. All of it is written.
    ///
    /// # Errors
    /// What a paged source reports; [`crate::Error::Unsupported`] where packs are neither kept nor replaced.
    fn pack_into(&self, _pack: &PackDesc, _source: &HostRows, _out: &mut [u8]) -> Result<()> {
        Err(not_kept(&self.info().name))
    }

    /// A tensor that is the bytes of [`Backend::pack_into`], kept where they are, for reading. They come out of a
    /// file: whatever in them points anywhere is checked here.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for bytes that do not suit, [`crate::Error::Unsupported`] where packs cannot be kept.
    fn adopt(&self, _pack: &PackDesc, _bytes: SharedBytes) -> Result<Box<dyn RawBuffer>> {
        Err(not_kept(&self.info().name))
    }

    /// The device's bytes for neighbouring rows of a pack, one after the other, for [`BackendQueue::refill`]. Those of a
    /// transposed matrix in blocks are the plain layout's on every device, so that they may come from any pack of it
    /// ([`crate::pack::slot_plain`]).
    ///
    /// # Errors
    /// What a paged source reports.
    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>>;

    /// Host memory this device copies to and from.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] or a lost device.
    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>>;

    /// The blocks of a hand-off.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], a lost device, or [`crate::Error::Unsupported`] if
    /// [`DeviceInfo::hand_off`] is false.
    fn mailbox(&self, shape: MailboxShape) -> Result<Arc<dyn RawMailbox>>;

    /// The blocks of `n` hand-offs of which each is over before the next begins: they may be the same.
    ///
    /// # Errors
    /// See [`Backend::mailbox`].
    fn mailboxes(&self, shape: MailboxShape, n: usize) -> Result<Vec<Arc<dyn RawMailbox>>> {
        (0..n).map(|_| self.mailbox(shape)).collect()
    }

    /// Bytes that [`Backend::mailboxes`] takes.
    fn mailboxes_size(&self, shape: MailboxShape, n: usize) -> Bytes {
        Bytes(n as u64 * shape.bytes().0)
    }

    /// Prepares a program for replay: everything that can be decided once is decided here. `workspace` is at
    /// least as large as the largest plan of `ops`; programs of one device share it. The program holds what it
    /// uses: clones of the ops with their tensors, and of the workspace, keep the memory.
    ///
    /// # Errors
    /// [`crate::Error::Driver`], [`crate::Error::OutOfMemory`] or a lost device.
    fn compile(
        &self,
        label: &str,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<Arc<dyn RawProgram>>;

    /// A new in-order queue.
    ///
    /// # Errors
    /// [`crate::Error::Driver`] or a lost device.
    fn queue(&self, label: &str) -> Result<Box<dyn BackendQueue>>;
}

/// A mailbox as its backend sees it.
pub trait RawMailbox: Any + fmt::Debug + Send + Sync {}

/// A compiled program as its backend sees it.
pub trait RawProgram: Any + fmt::Debug + Send + Sync {}

/// An in-order queue.
pub trait BackendQueue: fmt::Debug + Send {
    /// Starts a program.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>>;

    /// Starts a program and finds out when its parts run; `cuts` are the first ops of all parts but the first,
    /// ascending. The results have the same bits. A backend that knows nothing of time runs it as it is.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn replay_timed(
        &mut self,
        program: &Arc<dyn RawProgram>,
        _cuts: &[usize],
    ) -> Result<Box<dyn RawRun>> {
        self.replay(program)
    }

    /// Copies `src` to the first bytes of `dst` (a plain tensor or view).
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>>;

    /// Copies the first bytes of `src` (a plain tensor or view) to `dst`, as many as `dst` has.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>>;

    /// Replaces neighbouring slots of a resident pack by bytes of as many rows from [`Backend::pack_rows`].
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()>;

    /// Replaces all that a pack holds by bytes from [`Backend::pack_into`], as many as [`Backend::packed_len`] says.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>>;

    /// Copies rows of one plain tensor to another of the same shape: snapshots of recurrent state, KV blocks.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()>;

    /// Blocks until everything queued is done.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn finish(&mut self) -> Result<()>;
}

/// A program under way: the host's side of its hand-offs.
pub trait RawRun: fmt::Debug + Send {
    /// Waits for the next post in program order; `None` when the program has ended. No clock ends this wait: a
    /// device that can hang without its driver noticing is for its backend to watch, and to report as lost.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if the device stops, [`crate::Error::Driver`] on a fault.
    fn next_post(&mut self) -> Result<Option<Posted<'_>>>;

    /// Answers the post of `mailbox` with `[n_tokens, n_out]` floats.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if the device stopped.
    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()>;

    /// Waits for the end of the program. One with a post that nobody can answer any more is given up.
    ///
    /// # Errors
    /// What ended it early; [`crate::Error::Cancelled`] if it was given up.
    fn wait(&mut self) -> Result<()>;

    /// When the parts of the program ran, after its end; asked once, of runs that
    /// [`BackendQueue::replay_timed`] started.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn times(&mut self) -> Result<Times> {
        Ok(Times::none())
    }

    /// Gives the step up: the device's waits end and what is left of the program is not run (or runs into
    /// memory that the next step overwrites). Never blocks for long.
    fn cancel(&mut self);
}

/// What a [`crate::op::Post`] delivered. Borrowed from the mailbox; copy what must outlive the answer.
#[derive(Clone, Copy, Debug)]
pub struct Posted<'a> {
    /// Index of the mailbox in its program.
    pub mailbox: usize,
    /// Real tokens of the step.
    pub n_tokens: usize,
    /// `[n_tokens, n_in]`.
    pub x: &'a [f32],
    /// Wanted rows, if the post carries a list.
    pub rows: Option<&'a HostRowSet>,
    /// `[n_tokens, n_weights]`; empty if the post carries none.
    pub weights: &'a [f32],
}

/// A copy in flight; it owns the staging memory until it is done.
pub trait RawTransfer: fmt::Debug + Send {
    /// Whether the copy is done.
    fn is_done(&self) -> bool;

    /// Waits for the copy and gives the memory back.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>>;
}
