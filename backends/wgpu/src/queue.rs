//! An in-order queue. While a run waits for an answer, later work stays on the host.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hal::{BackendQueue, RawProgram, RawRun, RawStaging, RawTransfer, Result, Tensor};

use crate::copies::{self, Readback};
use crate::error::driver;
use crate::gpu::Gpu;
use crate::layout;
use crate::program::WgpuProgram;
use crate::run::{Progress, WgpuRun};
use crate::timer::{Stamps, Timer};

/// How long a wait for another thread sleeps before it checks for a lost device.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A queue and its pending work; shared with its runs and transfers.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) gpu: Arc<Gpu>,
    state: Mutex<State>,
    changed: Condvar,
    /// Timestamp memory for later runs.
    stamps: Mutex<Vec<Stamps>>,
}

#[derive(Debug, Default)]
struct State {
    /// Work that is not submitted yet, in order.
    pending: VecDeque<WorkItem>,
}

/// An item of work.
#[derive(Debug)]
enum WorkItem {
    Run(Arc<Progress>),
    Upload { bytes: Box<dyn RawStaging>, dst: Tensor, done: Arc<CopyState> },
    Download { src: Tensor, bytes: Box<dyn RawStaging>, done: Arc<CopyState> },
    Refill { pack: Tensor, slots: Range<usize>, bytes: Vec<u8> },
    Repack { bytes: Box<dyn RawStaging>, dst: Tensor, done: Arc<CopyState> },
    CopyRows { src: Tensor, dst: Tensor },
}

/// Result of a copy; `None` until the copy is submitted.
#[derive(Debug, Default)]
struct CopyState(Mutex<Option<Result<FinishedCopy>>>);

#[derive(Debug)]
struct FinishedCopy {
    staging: Box<dyn RawStaging>,
    /// A copy to the host that is still in flight.
    reading: Option<Readback>,
}

impl CopyState {
    fn lock(&self) -> MutexGuard<'_, Option<Result<FinishedCopy>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the timestamp memory of a finished run for later runs.
    pub(crate) fn return_stamps(&self, stamps: Option<Stamps>) {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner).extend(stamps);
    }

    fn timer(&self, cuts: &[usize]) -> Result<Timer> {
        let kept = self.stamps.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stamps = kept.map_or_else(|| Stamps::new(&self.gpu), |kept| Ok(Some(kept)))?;
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
                }
                WorkItem::Upload { bytes, dst, done } => {
                    let copied = copies::upload(gpu, bytes.bytes(), &dst);
                    let copied = copied.map(|()| FinishedCopy { staging: bytes, reading: None });
                    *done.lock() = Some(copied);
                }
                WorkItem::Download { src, bytes, done } => {
                    let reading = copies::download(gpu, &src, &*bytes);
                    let copied = reading.map(|r| FinishedCopy { staging: bytes, reading: Some(r) });
                    *done.lock() = Some(copied);
                }
                WorkItem::Refill { pack, slots, bytes } => {
                    layout::refill(gpu, &pack, slots, &bytes)?;
                }
                WorkItem::Repack { bytes, dst, done } => {
                    let copied = layout::repack(gpu, &dst, bytes.bytes());
                    let copied = copied.map(|()| FinishedCopy { staging: bytes, reading: None });
                    *done.lock() = Some(copied);
                }
                WorkItem::CopyRows { src, dst } => copies::copy_rows(gpu, &src, &dst)?,
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Submits work and calls `ready`, with whether all work is submitted, until `ready` returns a
    /// value.
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

/// [`BackendQueue`] on the device's queue.
#[derive(Debug)]
pub(crate) struct WgpuQueue {
    core: Arc<Core>,
}

impl WgpuQueue {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> WgpuQueue {
        let (state, changed, stamps) = (Mutex::default(), Condvar::new(), Mutex::default());
        WgpuQueue { core: Arc::new(Core { gpu: Arc::clone(gpu), state, changed, stamps }) }
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
        let done = Arc::new(CopyState::default());
        self.core.push(work(Arc::clone(&done)))?;
        Ok(Box::new(WgpuTransfer { core: Arc::clone(&self.core), done }))
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
        self.copy(|done| WorkItem::Upload { bytes: src, dst, done })
    }

    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>> {
        let src = src.clone();
        self.copy(|done| WorkItem::Download { src, bytes: dst, done })
    }

    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.core.push(WorkItem::Refill { pack: pack.clone(), slots, bytes: bytes.to_vec() })
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        let dst = dst.clone();
        self.copy(|done| WorkItem::Repack { bytes: src, dst, done })
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

/// A copy in flight.
#[derive(Debug)]
struct WgpuTransfer {
    core: Arc<Core>,
    done: Arc<CopyState>,
}

impl RawTransfer for WgpuTransfer {
    fn is_done(&self) -> bool {
        let gpu = &self.core.gpu;
        if gpu.health.check().is_err() || self.core.advance().is_err() {
            return true;
        }
        match &*self.done.lock() {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(copied)) => copied.reading.as_ref().is_none_or(|r| r.is_done(gpu)),
        }
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        let copied = self.core.wait_until(|_| self.done.lock().take().transpose())?;
        let FinishedCopy { mut staging, reading } = copied;
        if let Some(reading) = reading {
            reading.finish(&self.core.gpu, staging.bytes_mut())?;
        }
        Ok(staging)
    }
}
