//! Queues of the CPU backend. Calls are synchronous: the work is complete when a call returns.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use hal::op::MAX_COUNTED_TOKENS;
use hal::pack::refill_plain;
use hal::{
    BackendQueue, Clock, Error, PartTime, PostedData, RawProgram, RawRun, RawStaging, RawTransfer,
    Result, Tensor, Times,
};

use crate::backend::DeviceState;
use crate::buffer::{HostBuffer, LockedMemory};
use crate::program::CpuProgram;
use crate::thread_pool::Job;

/// Number of ops of a long program that run between two checks for its cancellation: half a layer,
/// which takes tens of milliseconds for 512 tokens of a model with a billion parameters.
const UNCANCELLED_OPS: usize = 8;

#[derive(Debug)]
pub(crate) struct CpuQueue {
    shared: Arc<DeviceState>,
    device: String,
}

impl CpuQueue {
    pub(crate) fn new(shared: Arc<DeviceState>, device: &str) -> CpuQueue {
        CpuQueue { shared, device: device.to_owned() }
    }

    /// Runs `job`: all phases of `program`, or some of them.
    fn run(&self, program: &CpuProgram, job: &dyn Job) -> Result<()> {
        let n_active = self.shared.n_active_threads(program.n_tokens() > 1);
        self.shared.lock().run(job, n_active).map_err(|panic| Error::Driver {
            call: "cpu worker".to_owned(),
            code: 0,
            message: format!("panic in {}: {}", program.label(), panic.0),
        })
    }

    fn check_writable(&self, op: &'static str, tensor: &Tensor) -> Result<()> {
        if tensor.raw::<HostBuffer>().is_some_and(HostBuffer::is_writable) {
            Ok(())
        } else {
            let reason = "the tensor is read-only: the device uses its source in place".to_owned();
            Err(Error::Unsupported { op, device: self.device.clone(), reason })
        }
    }
}

fn cpu_program(program: &Arc<dyn RawProgram>) -> &CpuProgram {
    let any: &dyn Any = &**program;
    any.downcast_ref().expect("programs come from this backend")
}

impl BackendQueue for CpuQueue {
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        let program = cpu_program(program);
        self.run(program, program)?;
        // `FinishedRun` has no fields, so `Box::new` allocates nothing.
        Ok(Box::new(FinishedRun))
    }

    fn replay_cancellable(
        &mut self,
        program: &Arc<dyn RawProgram>,
        cancel: &AtomicBool,
    ) -> Result<Box<dyn RawRun>> {
        let raw = program;
        let program = cpu_program(raw);
        if program.n_tokens() <= MAX_COUNTED_TOKENS {
            return self.replay(raw);
        }
        let mut before = None;
        for begin in (0..program.n_ops()).step_by(UNCANCELLED_OPS) {
            if cancel.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            let phases = program.phases_until(before.as_ref(), begin + UNCANCELLED_OPS);
            if !phases.is_empty() {
                self.run(program, &phases)?;
            }
            before = Some(phases);
        }
        Ok(Box::new(FinishedRun))
    }

    /// Runs the parts between `cuts` one at a time, so all threads finish a part before the next
    /// part begins.
    fn replay_timed(
        &mut self,
        program: &Arc<dyn RawProgram>,
        cuts: &[usize],
    ) -> Result<Box<dyn RawRun>> {
        let program = cpu_program(program);
        let mut times = Times { clock: Clock::Host, parts: Vec::with_capacity(cuts.len() + 1) };
        let mut before = None;
        for (part, &end) in cuts.iter().chain([&program.n_ops()]).enumerate() {
            let phases = program.phases_until(before.as_ref(), end);
            if !phases.is_empty() {
                let begin = Instant::now();
                self.run(program, &phases)?;
                times.parts.push(PartTime { parts: part..part + 1, begin, end: Instant::now() });
            }
            before = Some(phases);
        }
        Ok(Box::new(TimedRun(times)))
    }

    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.check_writable("upload", dst)?;
        let mut pool = self.shared.lock();
        LockedMemory::new(&mut pool).bytes_mut(dst)[..src.bytes().len()]
            .copy_from_slice(src.bytes());
        Ok(Box::new(FinishedCopy(src)))
    }

    fn download(
        &mut self,
        src: &Tensor,
        mut dst: Box<dyn RawStaging>,
    ) -> Result<Box<dyn RawTransfer>> {
        let mut pool = self.shared.lock();
        let out = dst.bytes_mut();
        out.copy_from_slice(&LockedMemory::new(&mut pool).bytes(src)[..out.len()]);
        Ok(Box::new(FinishedCopy(dst)))
    }

    fn write_directly(&mut self, dst: &Tensor, bytes: &[u8]) -> Option<Result<()>> {
        Some(self.check_writable("write", dst).map(|()| {
            let mut pool = self.shared.lock();
            LockedMemory::new(&mut pool).bytes_mut(dst)[..bytes.len()].copy_from_slice(bytes);
        }))
    }

    fn read_directly(&mut self, src: &Tensor, out: &mut [u8]) -> Option<Result<()>> {
        let mut pool = self.shared.lock();
        out.copy_from_slice(&LockedMemory::new(&mut pool).bytes(src)[..out.len()]);
        Some(Ok(()))
    }

    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.check_writable("refill", pack)?;
        let mut pool = self.shared.lock();
        let mut memory = LockedMemory::new(&mut pool);
        refill_plain(&pack.whole(), memory.whole_mut(pack), pack.buffer_rows(slots), bytes)
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.check_writable("repack", dst)?;
        let mut pool = self.shared.lock();
        LockedMemory::new(&mut pool).whole_mut(dst).copy_from_slice(src.bytes());
        Ok(Box::new(FinishedCopy(src)))
    }

    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.check_writable("copy_rows", dst)?;
        let mut pool = self.shared.lock();
        LockedMemory::new(&mut pool).copy(src, dst);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct FinishedRun;

impl RawRun for FinishedRun {
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        Ok(None)
    }

    fn answer(&mut self, _mailbox: usize, _y: &[f32]) -> Result<()> {
        Err(Error::shape("answer", "y", "one answer per post", "given without a post"))
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn cancel(&mut self) {}
}

/// A finished run, and the times of its parts.
#[derive(Debug)]
struct TimedRun(Times);

impl RawRun for TimedRun {
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        Ok(None)
    }

    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()> {
        FinishedRun.answer(mailbox, y)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn times(&mut self) -> Result<Times> {
        Ok(std::mem::replace(&mut self.0, Times::none()))
    }

    fn cancel(&mut self) {}
}

#[derive(Debug)]
struct FinishedCopy(Box<dyn RawStaging>);

impl RawTransfer for FinishedCopy {
    fn is_done(&self) -> bool {
        true
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        Ok(self.0)
    }
}
