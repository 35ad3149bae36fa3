//! The engine's in-order queue, running programs with their hand-offs, and copies in flight.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::{
    BackendQueue, Bytes, Device, DeviceId, Error, Layout, Mailbox, PostedData, Program, RawRun,
    RawTransfer, Reservation, Result, Staging, Tensor, Times,
};

/// An in-order queue: work runs in the order of submission.
#[derive(Debug)]
pub struct Queue {
    device: Device,
    raw: Box<dyn BackendQueue>,
    /// Idle staging memory that [`Queue::write`] and [`Queue::read`] reuse, so that a step
    /// allocates nothing.
    pool: Vec<Staging>,
}

impl Queue {
    pub(crate) fn new(device: Device, raw: Box<dyn BackendQueue>) -> Queue {
        Queue { device, raw, pool: Vec::new() }
    }

    /// The device this queue runs on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Starts a program. Dropping the run cancels the step.
    ///
    /// # Errors
    /// [`Error::ForeignBuffer`] for another device's program, errors of the backend.
    pub fn replay(&mut self, program: &Program) -> Result<Run> {
        self.check_program(program)?;
        let raw = self.raw.replay(&program.raw)?;
        Ok(Run::new(raw, program))
    }

    /// Like [`Queue::replay`], for programs that may run for seconds. A device whose programs run
    /// inside this call ends them soon after `cancel` is set, if they are for more than
    /// [`crate::op::MAX_COUNTED_TOKENS`] tokens; their output is then incomplete.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once `cancel` is set; see [`Queue::replay`].
    pub fn replay_cancellable(&mut self, program: &Program, cancel: &AtomicBool) -> Result<Run> {
        self.check_program(program)?;
        let raw = self.raw.replay_cancellable(&program.raw, cancel)?;
        Ok(Run::new(raw, program))
    }

    /// Like [`Queue::replay`], but also measures when each part of the program
    /// ([`crate::Recorder::begin_part`]) runs. It may allocate, and may run slightly slower.
    ///
    /// # Errors
    /// See [`Queue::replay`].
    pub fn replay_timed(&mut self, program: &Program) -> Result<Run> {
        self.check_program(program)?;
        let raw = self.raw.replay_timed(&program.raw, &program.cuts)?;
        Ok(Run::new(raw, program))
    }

    fn check_program(&self, program: &Program) -> Result<()> {
        if program.device == self.device.id() {
            Ok(())
        } else {
            Err(self.foreign_device_error("replay", "program"))
        }
    }

    /// Starts a copy of `src` to the first bytes of `dst`.
    ///
    /// # Errors
    /// [`Error::Shape`] if `src` does not fit or `dst` is not plain, [`Error::ForeignBuffer`],
    /// errors of the backend.
    pub fn upload(&mut self, src: Staging, dst: &Tensor) -> Result<Transfer> {
        self.check_staging("upload", &src)?;
        self.check_copy("upload", src.bytes().len(), dst)?;
        let Staging { raw, device, held } = src;
        Ok(Transfer { raw: Some(self.raw.upload(raw, dst)?), device, held: Some(held) })
    }

    /// Starts a copy that fills `dst` with the first bytes of `src`.
    ///
    /// # Errors
    /// See [`Queue::upload`].
    pub fn download(&mut self, src: &Tensor, dst: Staging) -> Result<Transfer> {
        self.check_staging("download", &dst)?;
        self.check_copy("download", dst.bytes().len(), src)?;
        let Staging { raw, device, held } = dst;
        Ok(Transfer { raw: Some(self.raw.download(src, raw)?), device, held: Some(held) })
    }

    fn foreign_device_error(&self, op: &'static str, operand: &'static str) -> Error {
        Error::ForeignBuffer { op, operand, device: self.device.info().name.clone() }
    }

    fn check_staging(&self, op: &'static str, staging: &Staging) -> Result<()> {
        if staging.device != self.device.id() {
            return Err(self.foreign_device_error(op, "staging"));
        }
        Ok(())
    }

    fn check_copy(&self, op: &'static str, len: usize, tensor: &Tensor) -> Result<()> {
        if tensor.device() != self.device.id() {
            return Err(self.foreign_device_error(op, "tensor"));
        }
        let capacity = match tensor.desc.layout {
            Layout::Rows => tensor.desc.bytes().unwrap_or_default(),
            Layout::Transposed { .. } => Bytes(0),
        };
        if len as u64 <= capacity.0 {
            Ok(())
        } else {
            Err(Error::shape(op, "bytes", format!("at most {}", capacity.0), len))
        }
    }

    /// Copies host bytes to a tensor and waits for the copy.
    ///
    /// # Errors
    /// See [`Queue::upload`].
    pub fn write(&mut self, dst: &Tensor, bytes: &[u8]) -> Result<()> {
        self.check_copy("write", bytes.len(), dst)?;
        if let Some(written) = self.raw.write_directly(dst, bytes) {
            return written;
        }
        let mut staging = self.take_staging(bytes.len())?;
        staging.bytes_mut().copy_from_slice(bytes);
        let staging = self.upload(staging, dst)?.wait()?;
        self.pool.push(staging);
        Ok(())
    }

    /// Copies the first bytes of a tensor to host memory and waits for the copy.
    ///
    /// # Errors
    /// See [`Queue::download`].
    pub fn read(&mut self, src: &Tensor, out: &mut [u8]) -> Result<()> {
        self.check_copy("read", out.len(), src)?;
        if let Some(read) = self.raw.read_directly(src, out) {
            return read;
        }
        let staging = self.take_staging(out.len())?;
        let staging = self.download(src, staging)?.wait()?;
        out.copy_from_slice(staging.bytes());
        self.pool.push(staging);
        Ok(())
    }

    /// Like [`Queue::read`], for `out.len()` floats.
    ///
    /// # Errors
    /// See [`Queue::download`].
    pub fn read_f32(&mut self, src: &Tensor, out: &mut [f32]) -> Result<()> {
        self.read(src, bytemuck::cast_slice_mut(out))
    }

    /// Allocates the staging memory for a [`Queue::write`] or [`Queue::read`] of `len` bytes in
    /// advance, so that a step does not run out of memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] past the budget, errors of the backend.
    pub fn reserve(&mut self, len: usize) -> Result<()> {
        let staging = self.take_staging(len)?;
        self.pool.push(staging);
        Ok(())
    }

    fn take_staging(&mut self, len: usize) -> Result<Staging> {
        match self.pool.iter().position(|staging| staging.bytes().len() == len) {
            Some(index) => Ok(self.pool.swap_remove(index)),
            None => self.device.staging(Bytes(len as u64)),
        }
    }

    /// Overwrites consecutive slots of a resident pack with the same number of rows from
    /// [`Device::pack_rows`].
    ///
    /// # Errors
    /// [`Error::Shape`] for slots outside the pack or bytes of another length,
    /// [`Error::ForeignBuffer`], errors of the backend.
    pub fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        if pack.device() != self.device.id() {
            return Err(self.foreign_device_error("refill", "pack"));
        }
        if slots.end > pack.desc.n_rows || slots.is_empty() {
            let inside = format!("slots within 0..{}", pack.desc.n_rows);
            return Err(Error::shape("refill", "slots", inside, format!("{slots:?}")));
        }
        self.raw.refill(pack, slots, bytes)
    }

    /// Overwrites a whole pack with bytes from [`Device::pack_into`] that hold the same number of
    /// neurons.
    ///
    /// # Errors
    /// [`Error::Shape`] for bytes of another length than [`Device::packed_len`] or a view of a
    /// pack, [`Error::ForeignBuffer`], errors of the backend.
    pub fn repack(&mut self, src: Staging, dst: &Tensor) -> Result<Transfer> {
        if dst.device() != self.device.id() || src.device != self.device.id() {
            return Err(self.foreign_device_error("repack", "pack"));
        }
        if dst.desc != dst.whole() {
            return Err(Error::shape("repack", "pack", dst.whole(), dst.desc));
        }
        let (expected, len) = (self.device.packed_len(&dst.desc), src.bytes().len());
        if expected != Some(len) {
            let expected =
                expected.map_or("bytes of a replaceable pack".to_owned(), |n| format!("{n} bytes"));
            return Err(Error::shape("repack", "bytes", expected, len));
        }
        let Staging { raw, device, held } = src;
        Ok(Transfer { raw: Some(self.raw.repack(raw, dst)?), device, held: Some(held) })
    }

    /// Copies a tensor to another of the same shape: KV blocks, and snapshots of recurrent state.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes differ or the tensors are transposed, [`Error::Aliasing`] if
    /// they overlap, [`Error::ForeignBuffer`], errors of the backend.
    pub fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        if src.device() != self.device.id() || dst.device() != self.device.id() {
            return Err(self.foreign_device_error("copy_rows", "tensor"));
        }
        if src.desc != dst.desc || src.desc.layout != Layout::Rows {
            return Err(Error::shape("copy_rows", "dst", src.desc, dst.desc));
        }
        if src.overlaps(dst) {
            return Err(Error::Aliasing { op: "copy_rows", operand: "src" });
        }
        self.raw.copy_rows(src, dst)
    }

    /// Blocks until all queued work is done.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn finish(&mut self) -> Result<()> {
        self.raw.finish()
    }
}

/// A running program. The caller must answer every post. Dropping the run cancels the step and ends
/// all waits.
#[must_use = "a dropped run is cancelled"]
#[derive(Debug)]
pub struct Run {
    raw: Box<dyn RawRun>,
    mailboxes: Arc<[Mailbox]>,
    /// Mailbox index and token count of the unanswered post.
    open: Option<(usize, usize)>,
    ended: bool,
}

impl Run {
    fn new(raw: Box<dyn RawRun>, program: &Program) -> Run {
        Run { raw, mailboxes: Arc::clone(&program.mailboxes), open: None, ended: false }
    }

    /// Waits for the next post; `None` when the program has ended.
    ///
    /// # Errors
    /// Errors of the backend: a lost device ends every wait.
    pub fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        let posted = self.raw.next_post()?;
        self.open = posted.map(|p| (p.mailbox, p.n_tokens));
        self.ended = posted.is_none();
        Ok(posted)
    }

    /// Answers the last post with `[n_tokens, n_out]` floats.
    ///
    /// # Errors
    /// [`Error::Shape`] if nothing was posted or the size is wrong, errors of the backend.
    pub fn answer(&mut self, y: &[f32]) -> Result<()> {
        let Some((mailbox, n_tokens)) = self.open.take() else {
            let got = "given without a post";
            return Err(Error::shape("answer", "y", "one answer per post", got));
        };
        let expected = n_tokens * self.mailboxes[mailbox].shape().n_out;
        if y.len() != expected {
            return Err(Error::shape("answer", "y", format!("{expected} floats"), y.len()));
        }
        self.raw.answer(mailbox, y)
    }

    /// Waits for the end of a timed run and returns the times of its parts.
    ///
    /// # Errors
    /// The error that ended the program early.
    pub fn times(mut self) -> Result<Times> {
        self.raw.wait()?;
        self.ended = true;
        self.raw.times()
    }

    /// Waits for the end of a program after all its posts were answered.
    ///
    /// # Errors
    /// The error that ended the program early.
    pub fn wait(mut self) -> Result<()> {
        let result = self.raw.wait();
        self.ended = result.is_ok();
        result
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.ended {
            self.raw.cancel();
        }
    }
}

/// A copy in flight. It owns the staging memory, so the host cannot access it during the copy.
#[must_use = "a dropped transfer waits for the copy"]
#[derive(Debug)]
pub struct Transfer {
    raw: Option<Box<dyn RawTransfer>>,
    device: DeviceId,
    held: Option<Reservation>,
}

impl Transfer {
    /// Whether the copy is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.raw.as_ref().is_none_or(|raw| raw.is_done())
    }

    /// Waits for the copy and returns the staging memory.
    ///
    /// # Errors
    /// Errors of the backend.
    ///
    /// # Panics
    /// Never: the transfer is consumed here.
    pub fn wait(mut self) -> Result<Staging> {
        let raw = self.raw.take().expect("only this method and `drop` take it").wait()?;
        let held = self.held.take().expect("only this method takes it");
        Ok(Staging { raw, device: self.device, held })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            // The staging memory must outlive the copy. A failed copy does not use it.
            let _ = raw.wait();
        }
    }
}
