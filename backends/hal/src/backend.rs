//! The traits that a backend implements. The engine calls them only through [`crate::Device`] and
//! [`crate::Queue`], which check every call once.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{
    Bytes, HostRowSet, HostRows, Op, OpDesc, PackDesc, RawBuffer, RawStaging, Result, RowTable,
    SharedBytes, Tensor, TensorDesc, Times,
};

/// Class of a device; used by placement and in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU, with tensors in system memory.
    Cpu,
    /// A GPU with dedicated memory.
    Discrete,
    /// A GPU that shares system memory.
    Integrated,
    /// The CPU presented as a discrete device, either by the simulated backend or by a software
    /// driver.
    Simulated,
}

/// Constant facts about a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Short name, such as `CPU`, `CUDA0` or `Vulkan1`.
    pub name: String,
    /// The name that the driver reports.
    pub description: String,
    /// Why work is submitted in a slower way than usual, as measured when the device was opened: a
    /// busy machine may cause it, so it can differ from one start to the next.
    pub remark: Option<&'static str>,
    /// Class of the device.
    pub kind: DeviceKind,
    /// Largest size of one tensor. [`Backend::plan`] says whether a given op can read a tensor of
    /// this size.
    pub max_binding: Bytes,
    /// Whether its programs may contain `Post` and `Merge`, which split a layer's neurons between
    /// this device and the host.
    pub hand_off: bool,
}

impl DeviceInfo {
    /// The description with the remark.
    #[must_use]
    pub fn described(&self) -> String {
        let Self { description, remark, .. } = self;
        remark.map_or_else(|| description.clone(), |remark| format!("{description}; {remark}"))
    }
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
    /// Name and version of the layout. A file in another layout must be repacked.
    pub layout: &'static str,
    /// Length in bytes.
    pub len: usize,
}

fn cannot_store_packs(device: &str) -> crate::Error {
    let reason = "this device's packed weights cannot be stored in a file".to_owned();
    crate::Error::Unsupported { op: "adopt", device: device.to_owned(), reason }
}

/// Whether a device can run an op; returned by [`Backend::plan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The op can run.
    Yes {
        /// Scratch memory the op needs while it runs. All ops of a device share one workspace of
        /// the largest size.
        workspace: Bytes,
        /// Why this op is slow on this device; `None` if it is not. Reported to the user once.
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

/// Capacity of a mailbox: a block of memory for the post and one for the answer. Both the host and
/// the device can access them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxShape {
    /// Maximum number of tokens of a step.
    pub max_tokens: usize,
    /// Floats per token sent to the host.
    pub n_in: usize,
    /// Expert weights per token, sent with the floats; 0 if none are sent.
    pub n_weights: usize,
    /// Floats per token sent back.
    pub n_out: usize,
    /// Maximum number of rows in the row list; 0 if no list is sent.
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
/// 3. The caller has checked every op (`Op::check`, aliasing, ownership) and `plan` returned
///    [`Plan::Yes`] for it. A backend may panic on any other op.
/// 4. Results match `cpu::reference` within the tolerance of the conformance case, and a program
///    gives the same bits every time it runs on the same inputs. Backends therefore use no float
///    atomics: they cut sums into fixed slices and add the slices in a fixed order.
/// 5. The contents of a new tensor are undefined, and so are the rows of padding tokens after an
///    op.
/// 6. Errors report only conditions that a correct caller cannot prevent: too little memory, a
///    lost device, a driver fault. After [`crate::Error::DeviceLost`] every later call on the
///    device gives the same error, and every wait ends.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Facts about the device.
    fn info(&self) -> &DeviceInfo;

    /// Sentences for the user about the optional features of the device: those in use, those
    /// missing, and the limits of ops.
    fn feature_notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Identifies what the device computes with: the driver's version and a hash of the kernels. A
    /// self-test's result holds as long as this does not change.
    fn version(&self) -> String {
        String::new()
    }

    /// Makes programs that are compiled from now on use another kernel in place of the kernel file
    /// `unit` ([`RawProgram::units`]), or a plainer variant of it. Returns whether there is one that
    /// was not in use.
    fn avoid(&self, _unit: &str) -> bool {
        false
    }

    /// Current memory.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] or [`crate::Error::Driver`].
    fn memory(&self) -> Result<MemoryReport>;

    /// Bytes of device memory that the backend allocates at start and holds until it is dropped.
    fn overhead_bytes(&self) -> Bytes {
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

    /// Bytes that [`Backend::import`] allocates. `mapped` means that the source is a mapped file,
    /// which a device that uses host memory may use in place.
    fn pack_size(&self, pack: &PackDesc, mapped: bool) -> Bytes;

    /// Copies weights to the device in its own layout. Either blocks until the source is no longer
    /// needed, or keeps a reference to the source.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`], a lost device, or an error of a paged source.
    fn import(&self, label: &str, pack: &PackDesc, source: &HostRows)
    -> Result<Box<dyn RawBuffer>>;

    /// Whether matrix products and feed-forward blocks accept weights that are columns of a wider
    /// matrix ([`Tensor::columns`]). Such a matrix keeps a neuron's rows of several matrices
    /// adjacent in memory.
    fn supports_column_views(&self) -> bool {
        false
    }

    /// How to store a pack of this device in a file that [`Backend::adopt`] can use; `None` if
    /// this is impossible, or needless because the device uses the source in place. `in_memory`
    /// means that the whole source is in memory.
    fn stored_pack(&self, _pack: &PackDesc, _in_memory: bool) -> Option<StoredPack> {
        None
    }

    /// Number of bytes that [`Backend::pack_into`] writes for [`BackendQueue::repack`]; `None` if
    /// this device cannot replace a whole pack.
    fn packed_len(&self, _desc: &TensorDesc) -> Option<usize> {
        None
    }

    /// Writes a pack in the device's layout, for [`Backend::adopt`] and [`BackendQueue::repack`].
    /// Fills all of `out`, whose length is that of [`Backend::stored_pack`] or
    /// [`Backend::packed_len`].
    ///
    /// # Errors
    /// Errors of a paged source; [`crate::Error::Unsupported`] if packs are neither stored nor
    /// replaced.
    fn pack_into(&self, _pack: &PackDesc, _source: &HostRows, _out: &mut [u8]) -> Result<()> {
        Err(cannot_store_packs(&self.info().name))
    }

    /// A read-only tensor that uses the bytes written by [`Backend::pack_into`] in place. The
    /// bytes may come from a file, so this function checks every index in them.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for bytes that do not fit, [`crate::Error::Unsupported`] if packs
    /// cannot be stored.
    fn adopt(&self, _pack: &PackDesc, _bytes: SharedBytes) -> Result<Box<dyn RawBuffer>> {
        Err(cannot_store_packs(&self.info().name))
    }

    /// As [`Backend::adopt`], for rows whose places in `memory` `table` has, now and after each of its
    /// changes.
    ///
    /// # Errors
    /// As for [`Backend::adopt`]; [`crate::Error::Shape`] for a place outside of `memory`.
    fn adopt_rows(
        &self,
        _pack: &PackDesc,
        _memory: SharedBytes,
        _table: RowTable,
    ) -> Result<Box<dyn RawBuffer>> {
        Err(cannot_store_packs(&self.info().name))
    }

    /// Consecutive rows in the device's layout, for [`BackendQueue::refill`]. Rows of a transposed
    /// matrix in a block format have the plain layout on every device, so that any pack of that
    /// matrix can supply them ([`crate::pack::slot_plain`]).
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

    /// Allocates the blocks of `n` hand-offs that never overlap in time and may therefore share
    /// memory.
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

    /// Prepares a program for replay, including all decisions that do not depend on the step.
    /// `workspace` is at least as large as the largest plan of `ops`; the programs of a device
    /// share it. The program clones the ops, their tensors and the workspace to keep their memory
    /// alive.
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
pub trait RawProgram: Any + fmt::Debug + Send + Sync {
    /// The kernel files that the program runs; empty if the backend does not compile kernels.
    fn units(&self) -> Vec<String> {
        Vec::new()
    }
}

/// An in-order queue.
pub trait BackendQueue: fmt::Debug + Send {
    /// Starts a program.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>>;

    /// As [`BackendQueue::replay`]. A backend whose call returns only at the end of the program
    /// polls `cancel` within programs for more than [`crate::op::MAX_COUNTED_TOKENS`] tokens.
    ///
    /// # Errors
    /// [`crate::Error::Cancelled`] once `cancel` is set, a lost device or a driver fault.
    fn replay_cancellable(
        &mut self,
        program: &Arc<dyn RawProgram>,
        _cancel: &AtomicBool,
    ) -> Result<Box<dyn RawRun>> {
        self.replay(program)
    }

    /// Starts a program and measures when each of its parts runs. `cuts` holds the index of the
    /// first op of every part except the first, ascending. The results have the same bits as in an
    /// untimed run. A backend without timers runs the program untimed.
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

    /// Fills `dst` with the first bytes of `src` (a plain tensor or view).
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>>;

    /// Copies host bytes to the first bytes of `dst` (a plain tensor or view) without staging, and
    /// returns when the copy is complete. `None` if the host cannot access the device's memory.
    fn write_directly(&mut self, _dst: &Tensor, _bytes: &[u8]) -> Option<Result<()>> {
        None
    }

    /// Copies the first bytes of `src` (a plain tensor or view) to the host without staging; see
    /// [`BackendQueue::write_directly`].
    fn read_directly(&mut self, _src: &Tensor, _out: &mut [u8]) -> Option<Result<()>> {
        None
    }

    /// Overwrites consecutive slots of a resident pack with the same number of rows from
    /// [`Backend::pack_rows`].
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()>;

    /// Overwrites a whole pack with the [`Backend::packed_len`] bytes from
    /// [`Backend::pack_into`].
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>>;

    /// Copies a plain tensor or view to another of the same shape: KV blocks, and snapshots of
    /// recurrent state.
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

/// A running program, whose posts the host answers.
pub trait RawRun: fmt::Debug + Send {
    /// Waits for the next post in program order; `None` when the program has ended. The wait has
    /// no timeout. If the driver cannot detect a hanging device, the backend must do so and report
    /// the device as lost.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if the device stops, [`crate::Error::Driver`] on a fault.
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>>;

    /// Answers the post of `mailbox` with `[n_tokens, n_out]` floats.
    ///
    /// # Errors
    /// [`crate::Error::DeviceLost`] if the device stopped.
    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()>;

    /// Waits for the end of the program. If a post is still unanswered, the backend cancels the
    /// program, because no answer can arrive during the wait.
    ///
    /// # Errors
    /// The error that ended the program early; [`crate::Error::Cancelled`] if it was cancelled.
    fn wait(&mut self) -> Result<()>;

    /// When the parts of the program ran. Called once, after the end of a run that
    /// [`BackendQueue::replay_timed`] started.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn times(&mut self) -> Result<Times> {
        Ok(Times::none())
    }

    /// Cancels the step. The device stops waiting for answers. It skips the rest of the program,
    /// or runs it with results that the next step overwrites. Returns promptly.
    fn cancel(&mut self);
}

/// The data of a [`crate::op::Post`], borrowed from the mailbox. Copy anything that must outlive
/// the answer.
#[derive(Clone, Copy, Debug)]
pub struct PostedData<'a> {
    /// Index of the mailbox in its program.
    pub mailbox: usize,
    /// Number of tokens of the step, without padding.
    pub n_tokens: usize,
    /// Input of the rows that the host computes, `[n_tokens, n_in]`.
    pub x: &'a [f32],
    /// The rows to compute, if the post carries a list.
    pub rows: Option<&'a HostRowSet>,
    /// Expert weights, `[n_tokens, n_weights]`; empty if the post sends none.
    pub weights: &'a [f32],
}

/// A copy in flight. It owns the staging memory until the copy is done.
pub trait RawTransfer: fmt::Debug + Send {
    /// Whether the copy is done.
    fn is_done(&self) -> bool;

    /// Waits for the copy and returns the staging memory.
    ///
    /// # Errors
    /// A lost device or a driver fault.
    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>>;
}
