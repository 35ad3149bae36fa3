//! An in-order queue. While a run waits for an answer, later work stays on the host.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hal::{BackendQueue, RawProgram, RawRun, RawStaging, RawTransfer, Result, Tensor};

use crate::copies::{self, Readback};
use crate::error::driver;
use crate::gpu::Gpu;
use crate::layout;
use crate::program::{ProgramCore, WgpuProgram};
use crate::run::{Progress, WgpuRun};
use crate::timer::{Timer, Timestamps};

/// How long a wait for another thread sleeps between checks for a lost device.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A queue and its pending work; shared with its runs and transfers.
#[derive(Debug)]
pub(crate) struct QueueCore {
    pub(crate) gpu: Arc<Gpu>,
    state: Mutex<State>,
    changed: Condvar,
    /// Timestamp memory that no run uses.
    stamps: Mutex<Vec<Timestamps>>,
    /// Programs that were submitted, and whose next replay is not encoded yet. They may be dropped.
    replayed: Mutex<Vec<Weak<ProgramCore>>>,
}

#[derive(Debug, Default)]
struct State {
    /// Work that is not submitted yet, in order.
    pending: VecDeque<WorkItem>,
}

#[derive(Debug)]
enum WorkItem {
    Run(Arc<Progress>),
    Upload { bytes: Box<dyn RawStaging>, dst: Tensor, result: Arc<CopyState> },
    Download { src: Tensor, bytes: Box<dyn RawStaging>, result: Arc<CopyState> },
    Refill { pack: Tensor, slots: Range<usize>, bytes: Vec<u8> },
    Repack { bytes: Box<dyn RawStaging>, dst: Tensor, result: Arc<CopyState> },
    CopyRows { src: Tensor, dst: Tensor },
}

/// Result of a copy; `None` until the copy is submitted.
#[derive(Debug, Default)]
struct CopyState(Mutex<Option<Result<SubmittedCopy>>>);

#[derive(Debug)]
struct SubmittedCopy {
    staging: Box<dyn RawStaging>,
    /// The copy to the host, which may be in flight.
    reading: Option<Readback>,
}

impl CopyState {
    fn lock(&self) -> MutexGuard<'_, Option<Result<SubmittedCopy>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueCore {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the timestamp memory of a finished run for later runs.
    pub(crate) fn return_stamps(&self, stamps: Option<Timestamps>) {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner).extend(stamps);
    }

    /// Encodes the next replay of each program that was submitted: wgpu submits commands once. A
    /// call before a wait for the device takes no time from it.
    pub(crate) fn encode_ahead(&self) {
        let mut replayed = self.replayed.lock().unwrap_or_else(PoisonError::into_inner);
        let programs = replayed.drain(..).filter_map(|program| program.upgrade());
        programs.for_each(|program| program.encode_ahead(&self.gpu));
    }

    fn timer(&self, cuts: &[usize]) -> Result<Timer> {
        let unused = self.stamps.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stamps =
            unused.map_or_else(|| Timestamps::new(&self.gpu), |stamps| Ok(Some(stamps)))?;
        Ok(Timer::new(cuts, stamps))
    }

    /// Adds work, then submits all work that can run.
    fn push(&self, work: WorkItem) -> Result<()> {
        self.gpu.health.check()?;
        let mut state = self.lock();
        state.pending.push_back(work);
        self.submit_pending(&mut state)
    }

    /// Submits pending work in order, up to a run that waits for an answer.
    pub(crate) fn advance(&self) -> Result<()> {
        self.submit_pending(&mut self.lock())
    }

    fn submit_pending(&self, state: &mut State) -> Result<()> {
        let gpu = &*self.gpu;
        while let Some(work) = state.pending.pop_front() {
            match work {
                WorkItem::Run(run) => {
                    if !run.submit(gpu)? {
                        state.pending.push_front(WorkItem::Run(run));
                        return Ok(());
                    }
                    let program = Arc::downgrade(run.program());
                    self.replayed.lock().unwrap_or_else(PoisonError::into_inner).push(program);
                }
                WorkItem::Upload { bytes, dst, result } => {
                    let copied = copies::upload(gpu, bytes.bytes(), &dst);
                    let copied = copied.map(|()| SubmittedCopy { staging: bytes, reading: None });
                    *result.lock() = Some(copied);
                }
                WorkItem::Download { src, bytes, result } => {
                    let reading = copies::download(gpu, &src, &*bytes);
                    let copied =
                        reading.map(|r| SubmittedCopy { staging: bytes, reading: Some(r) });
                    *result.lock() = Some(copied);
                }
                WorkItem::Refill { pack, slots, bytes } => {
                    layout::refill(gpu, &pack, slots, &bytes)?;
                }
                WorkItem::Repack { bytes, dst, result } => {
                    let copied = layout::repack(gpu, &dst, bytes.bytes());
                    let copied = copied.map(|()| SubmittedCopy { staging: bytes, reading: None });
                    *result.lock() = Some(copied);
                }
                WorkItem::CopyRows { src, dst } => copies::copy_rows(gpu, &src, &dst)?,
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Submits work until `ready`, called with whether all work is submitted, returns a value.
    pub(crate) fn wait_until<T>(
        &self,
        mut ready: impl FnMut(bool) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut state = self.lock();
        loop {
            self.gpu.health.check()?;
            self.submit_pending(&mut state)?;
            if let Some(found) = ready(state.pending.is_empty())? {
                return Ok(found);
            }
            let waited = self.changed.wait_timeout(state, POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[derive(Debug)]
pub(crate) struct WgpuQueue {
    core: Arc<QueueCore>,
}

impl WgpuQueue {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> WgpuQueue {
        let (gpu, state, changed) = (Arc::clone(gpu), Mutex::default(), Condvar::new());
        let (stamps, replayed) = (Mutex::default(), Mutex::default());
        WgpuQueue { core: Arc::new(QueueCore { gpu, state, changed, stamps, replayed }) }
    }

    fn start(
        &mut self,
        program: &Arc<dyn RawProgram>,
        timer: Option<Timer>,
    ) -> Result<Box<dyn RawRun>> {
        let any: &dyn Any = &**program;
        let program = any.downcast_ref::<WgpuProgram>();
        let program =
            program.ok_or_else(|| driver("replay", "the program belongs to another backend"))?;
        let progress = Arc::new(Progress::new(&program.0, timer));
        self.core.push(WorkItem::Run(Arc::clone(&progress)))?;
        Ok(Box::new(WgpuRun::new(&self.core, progress)))
    }

    fn copy(&self, work: impl FnOnce(Arc<CopyState>) -> WorkItem) -> Result<Box<dyn RawTransfer>> {
        let result = Arc::new(CopyState::default());
        self.core.push(work(Arc::clone(&result)))?;
        Ok(Box::new(WgpuTransfer { core: Arc::clone(&self.core), result }))
    }
}

impl BackendQueue for WgpuQueue {
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        self.start(program, None)
    }

    fn replay_timed(
        &mut self,
        program: &Arc<dyn RawProgram>,
        cuts: &[usize],
    ) -> Result<Box<dyn RawRun>> {
        let timer = self.core.timer(cuts)?;
        self.start(program, Some(timer))
    }

    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        let dst = dst.clone();
        self.copy(|result| WorkItem::Upload { bytes: src, dst, result })
    }

    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>> {
        let src = src.clone();
        self.copy(|result| WorkItem::Download { src, bytes: dst, result })
    }

    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.core.push(WorkItem::Refill { pack: pack.clone(), slots, bytes: bytes.to_vec() })
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        let dst = dst.clone();
        self.copy(|result| WorkItem::Repack { bytes: src, dst, result })
    }

    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.core.push(WorkItem::CopyRows { src: src.clone(), dst: dst.clone() })
    }

    fn finish(&mut self) -> Result<()> {
        let core = &*self.core;
        core.wait_until(|idle| Ok(idle.then_some(())))?;
        core.gpu.wait(&core.gpu.submit(None))
    }
}

#[derive(Debug)]
struct WgpuTransfer {
    core: Arc<QueueCore>,
    result: Arc<CopyState>,
}

impl RawTransfer for WgpuTransfer {
    fn is_done(&self) -> bool {
        let gpu = &self.core.gpu;
        if gpu.health.check().is_err() || self.core.advance().is_err() {
            return true;
        }
        match &*self.result.lock() {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(copied)) => copied.reading.as_ref().is_none_or(|r| r.is_done(gpu)),
        }
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        let copied = self.core.wait_until(|_| self.result.lock().take().transpose())?;
        let SubmittedCopy { mut staging, reading } = copied;
        if let Some(reading) = reading {
            self.core.encode_ahead();
            reading.finish(&self.core.gpu, staging.bytes_mut())?;
        }
        Ok(staging)
    }
}
