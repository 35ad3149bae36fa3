//! The traits a device implements. The engine never calls these: it goes through [`crate::Device`]
//! and [`crate::Queue`], which check everything once.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{
    Bytes, HostRowSet, HostRows, Op, OpDesc, PackDesc, RawBuffer, RawStaging, Result, SharedBytes,
    Tensor, TensorDesc, Times,
};

/// Class of a device; used by placement and in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor, in system memory.
    Cpu,
    /// A GPU with dedicated memory.
    Discrete,
    /// A GPU that shares system memory.
    Integrated,
    /// The CPU presented as a discrete device: used in tests, and for software drivers that were
    /// named explicitly.
    Simulated,
}

/// Constant facts about a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// `CPU`, `CUDA0`, `Vulkan1`, ...
    pub name: String,
    /// The name that the driver reports.
    pub description: String,
    /// Class of the device.
    pub kind: DeviceKind,
    /// Largest size of one tensor. Whether an op can read a tensor of this size, or splits it, is
    /// answered by its plan.
    pub max_binding: Bytes,
    /// Whether programs on it may contain `Post` and `Merge`, so that it can be the home of a
    /// split layer.
    pub hand_off: bool,
}

/// Memory of a device at the time of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Physical size, if the platform reports it.
    pub total: Option<Bytes>,
    /// Free memory, if the platform reports it.
    pub free: Option<Bytes>,
}

/// How a pack is stored in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPack {
    /// Name and version of the layout. A file with another layout cannot be used.
    pub layout: &'static str,
    /// Length in bytes.
    pub len: usize,
}

fn not_kept(device: &str) -> crate::Error {
    let reason = "this device's packs cannot be stored in a file".to_owned();
    crate::Error::Unsupported { op: "adopt", device: device.to_owned(), reason }
}

/// The answer to "can you run this?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The op can run.
    Yes {
        /// Scratch memory the op needs while it runs; programs share the largest.
        workspace: Bytes,
        /// Why this op is slow on this device, if it is. Reported to the user once.
        slow: Option<String>,
    },
    /// The op cannot run, with the reason.
    No(String),
}

impl Plan {
    /// `Yes` without workspace.
    #[must_use]
    pub fn yes() -> Plan {
        Plan::Yes { workspace: Bytes(0), slow: None }
    }
}

/// Capacity of a mailbox: two fixed blocks that both the host and the device can access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxShape {
    /// Maximum number of tokens of a step.
    pub max_tokens: usize,
    /// Floats per token sent to the host.
    pub n_in: usize,
    /// Group weights per token sent along with them; 0 if none are sent.
    pub n_weights: usize,
    /// Floats per token sent back.
    pub n_out: usize,
    /// Maximum number of rows in the list; 0 if none is sent.
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
/// 1. Work given to one queue runs in submission order; each item sees the results of the items
///    before it.
/// 2. Calls on a queue may return before the work is done. Only a finished [`RawRun`], a finished
///    [`RawTransfer`] and [`BackendQueue::finish`] prove completion. A tensor is used by one queue
///    at a time.
/// 3. Ops arrive checked (`Op::check`, aliasing, ownership) and planned (`plan` returned yes). A
///    backend that meets anything else has found a bug in its caller and may panic.
/// 4. Results match `cpu::reference` within the tolerance of the conformance case, and the same
///    program on the same inputs gives the same bits twice: no float atomics, fixed slices merged
///    in a fixed order.
/// 5. Contents of a fresh tensor are undefined. Rows of padded tokens may hold anything afterwards.
/// 6. Errors report only conditions that a correct caller cannot prevent: memory, a lost device, a
///    driver fault. After [`crate::Error::DeviceLost`] every later call on the device gives the
///    same error, and every wait ends.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// Sentences for the user: which optional features of the device the backend uses, which are
    /// missing, and what limits an op.
    fn ways(&self) -> Vec<String> {
        Vec::new()
    }

    /// Current memory.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] or [`crate::Error::Driver`].
    fn memory(&self) -> Result<MemoryReport>;

    /// Bytes of device memory that the backend allocates at start and holds until it is dropped.
    fn held(&self) -> Bytes {
        Bytes(0)
    }

    /// Whether the device can run an op of these shapes and formats. Asked before anything is
    /// allocated.
    fn plan(&self, op: &OpDesc) -> Plan;

    /// Bytes that [`Backend::alloc`] allocates for `desc`.
    fn alloc_size(&self, desc: &TensorDesc) -> Bytes;

    /// Allocates a tensor; contents undefined.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] or a lost device.
    fn alloc(&self, label: &str, desc: &TensorDesc) -> Result<Box<dyn RawBuffer>>;

    /// Bytes that [`Backend::import`] allocates. `mapped` means that the source is mapped memory,
    /// which a device in host memory uses in place.
    fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes;

    /// Copies weights to the device in its own layout. Blocks until the source is no longer
    /// needed, or keeps a reference to it.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], a lost device, or what a paged source reports.
    fn import(&self, label: &str, pack: &PackDesc, source: &HostRows)
    -> Result<Box<dyn RawBuffer>>;

    /// Whether the weights of a matrix product and a feed-forward block may be columns of a wider
    /// matrix ([`Tensor::columns`]), which makes the rows of a neuron adjacent in memory.
    fn takes_columns(&self) -> bool {
        false
    }

    /// How a pack of this device can be stored in a file and used from there; `None` where it
    /// cannot, or where weights are used in place. `in_memory` means that the whole source is in
    /// memory.
    fn stored(&self, _pack: &PackDesc, _in_memory: bool) -> Option<StoredPack> {
        None
    }

    /// Bytes of a pack of this shape as [`Backend::pack_into`] writes them for
    /// [`BackendQueue::repack`]; `None` if this device cannot replace a whole pack.
    fn packed_len(&self, _desc: &TensorDesc) -> Option<usize> {
        None
    }

    /// Writes to `out` the bytes that [`Backend::adopt`] and [`BackendQueue::repack`] take. `out`
    /// has the length given by [`Backend::stored`] or [`Backend::packed_len`], and all of it is
    /// written.
    ///
    /// # Errors
    /// Errors of a paged source; [`crate::Error::Unsupported`] if packs are neither stored nor
    /// replaced.
    fn pack_into(&self, _pack: &PackDesc, _source: &HostRows, _out: &mut [u8]) -> Result<()> {
        Err(not_kept(&self.info().name))
    }

    /// A read-only tensor that uses the bytes written by [`Backend::pack_into`] in place. The
    /// bytes may come from a file, so every index in them is checked here.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for bytes that do not fit, [`crate::Error::Unsupported`] if packs
    /// cannot be stored.
    fn adopt(&self, _pack: &PackDesc, _bytes: SharedBytes) -> Result<Box<dyn RawBuffer>> {
        Err(not_kept(&self.info().name))
    }

    /// The device's bytes for consecutive rows of a pack, for [`BackendQueue::refill`]. For a
    /// transposed matrix in blocks they are in the plain layout on every device, so that they may
    /// come from any pack of that matrix ([`crate::pack::slot_plain`]).
    ///
    /// # Errors
    /// Errors of a paged source.
    fn pack_rows(&self, pack: &PackDesc, source: &HostRows, rows: Range<u32>) -> Result<Vec<u8>>;

    /// Host memory that this device can copy to and from.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] or a lost device.
    fn staging(&self, len: Bytes) -> Result<Box<dyn RawStaging>>;

    /// Allocates the blocks of one hand-off.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], a lost device, or [`crate::Error::Unsupported`] if
    /// [`DeviceInfo::hand_off`] is false.
    fn mailbox(&self, shape: MailboxShape) -> Result<Arc<dyn RawMailbox>>;

    /// The blocks of `n` hand-offs that never overlap in time, so that they may share memory.
    ///
    /// # Errors
    /// See [`Backend::mailbox`].
    fn mailboxes(&self, shape: MailboxShape, n: usize) -> Result<Vec<Arc<dyn RawMailbox>>> {
        (0..n).map(|_| self.mailbox(shape)).collect()
    }

    /// Bytes that [`Backend::mailboxes`] allocates.
    fn mailboxes_size(&self, shape: MailboxShape, n: usize) -> Bytes {
        Bytes(n as u64 * shape.bytes().0)
    }

    /// Prepares a program for replay. All decisions that do not depend on the step are made here.
    /// `workspace` is at least as large as the largest plan of `ops`; programs of one device share
    /// it. The program holds clones of the ops with their tensors and of the workspace, which keep
    /// the memory alive.
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

    /// Starts a program and records when its parts run; `cuts` are the first ops of all parts but
    /// the first, ascending. The results have the same bits as an untimed run. A backend without
    /// timers runs the program untimed.
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

    /// Copies host bytes to the first bytes of `dst` (a plain tensor or view) without staging;
    /// returns when the copy is complete. `None` if the host cannot access the device's memory.
    fn write_directly(&mut self, _dst: &Tensor, _bytes: &[u8]) -> Option<Result<()>> {
        None
    }

    /// Copies the first bytes of `src` (a plain tensor or view) to the host without staging; see
    /// [`BackendQueue::write_directly`].
    fn read_directly(&mut self, _src: &Tensor, _out: &mut [u8]) -> Option<Result<()>> {
        None
    }

    /// Replaces consecutive slots of a resident pack by the bytes of the same number of rows from
    /// [`Backend::pack_rows`].
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()>;

    /// Replaces the whole contents of a pack by bytes from [`Backend::pack_into`],
    /// [`Backend::packed_len`] of them.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>>;

    /// Copies rows of one plain tensor to another of the same shape: snapshots of recurrent state,
    /// KV blocks.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()>;

    /// Blocks until all queued work is done.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn finish(&mut self) -> Result<()>;
}

/// A program under way: the host's side of its hand-offs.
pub trait RawRun: fmt::Debug + Send {
    /// Waits for the next post in program order; `None` when the program has ended. The wait has
    /// no timeout: a backend whose device can hang unnoticed by its driver must watch for that and
    /// report the device as lost.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if the device stops, [`crate::Error::Driver`] on a fault.
    fn next_post(&mut self) -> Result<Option<Posted<'_>>>;

    /// Answers the post of `mailbox` with `[n_tokens, n_out]` floats.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if the device stopped.
    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()>;

    /// Waits for the end of the program. A program with a post that can no longer be answered is
    /// cancelled.
    ///
    /// # Errors
    /// The error that ended it early; [`crate::Error::Cancelled`] if it was cancelled.
    fn wait(&mut self) -> Result<()>;

    /// When the parts of the program ran. Called once, after the end of a run that
    /// [`BackendQueue::replay_timed`] started.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn times(&mut self) -> Result<Times> {
        Ok(Times::none())
    }

    /// Cancels the step: the device's waits end and the rest of the program is skipped (or runs
    /// into memory that the next step overwrites). Never blocks for long.
    fn cancel(&mut self);
}

/// The data that a [`crate::op::Post`] delivered. Borrowed from the mailbox; copy anything that
/// must outlive the answer.
#[derive(Clone, Copy, Debug)]
pub struct Posted<'a> {
    /// Index of the mailbox in its program.
    pub mailbox: usize,
    /// Real tokens of the step.
    pub n_tokens: usize,
    /// `[n_tokens, n_in]`.
    pub x: &'a [f32],
    /// The rows to compute, if the post carries a list.
    pub rows: Option<&'a HostRowSet>,
    /// `[n_tokens, n_weights]`; empty if the post sends none.
    pub weights: &'a [f32],
}

/// A copy in flight; it owns the staging memory until it is done.
pub trait RawTransfer: fmt::Debug + Send {
    /// Whether the copy is done.
    fn is_done(&self) -> bool;

    /// Waits for the copy and returns the staging memory.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>>;
}
