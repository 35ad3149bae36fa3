//! An in-order queue. While a run waits for an answer, later work stays on the host.

use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hal::{BackendQueue, RawProgram, RawRun, RawStaging, RawTransfer, Result, Tensor};

use crate::buffer::{Span, raw};
use crate::card::{Card, lock};
use crate::copies::{self, Rows};
use crate::driver::Driver;
use crate::error::failure;
use crate::pinned::Pinned;
use crate::program::SimtProgram;
use crate::run::{Progress, SimtRun};
use crate::stream::Stream;
use crate::timer::Timer;

/// How long a wait for another thread sleeps before it polls again.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of pinned blocks kept for later refills; blocks beyond this are freed after the copy.
const MAX_IDLE_BYTES: usize = 4 << 20;

/// A queue and its pending work; shared with its runs and transfers.
#[derive(Debug)]
pub(crate) struct QueueCore<D: Driver> {
    pub(crate) card: Arc<Card<D>>,
    stream: Stream<D>,
    state: Mutex<State<D>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<D: Driver> {
    /// Work that is not submitted yet, in order.
    pending: VecDeque<WorkItem<D>>,
    /// Submitted work, with its resources.
    in_flight: VecDeque<InFlight<D>>,
    /// Reusable pinned blocks of finished refills.
    idle: Vec<Pinned<D>>,
}

#[derive(Debug)]
enum WorkItem<D: Driver> {
    Run(Arc<Progress<D>>),
    Copy { kind: CopyKind, bytes: Box<dyn RawStaging>, tensor: Tensor, result: Arc<CopyResult<D>> },
    Refill { pack: Tensor, slots: Range<usize>, bytes: Vec<u8> },
    CopyRows { src: Tensor, dst: Tensor },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyKind {
    Upload,
    Download,
    /// An upload of the packed bytes of a whole weight.
    Repack,
}

/// An item that the device is working on.
#[derive(Debug)]
enum InFlight<D: Driver> {
    Run(Arc<Progress<D>>),
    Copy { done: D::Event, block: Option<Pinned<D>>, _tensors: Vec<Tensor> },
}

/// Result of a copy; `None` until the copy is submitted.
#[derive(Debug)]
struct CopyResult<D: Driver>(Mutex<Option<Result<FinishedCopy<D>>>>);

#[derive(Debug)]
struct FinishedCopy<D: Driver> {
    staging: Box<dyn RawStaging>,
    done: D::Event,
    _tensor: Tensor,
}

impl<D: Driver> QueueCore<D> {
    /// Adds work, then submits all work that can run.
    fn push(&self, work: WorkItem<D>) -> Result<()> {
        // Uploads must have arrived before a program reads or a copy overwrites them.
        self.card.wait_for_uploads()?;
        let mut state = lock(&self.state);
        state.pending.push_back(work);
        self.submit_pending(&mut state)
    }

    /// Submits pending work in order, up to a run that waits for an answer.
    pub(crate) fn advance(&self) -> Result<()> {
        self.submit_pending(&mut lock(&self.state))
    }

    fn submit_pending(&self, state: &mut State<D>) -> Result<()> {
        self.release_finished(state);
        let mut submitted = false;
        while let Some(work) = state.pending.pop_front() {
            match work {
                WorkItem::Run(run) => {
                    if !run.submit(&self.stream, || self.card.begin_step())? {
                        state.pending.push_front(WorkItem::Run(run));
                        break;
                    }
                    state.in_flight.push_back(InFlight::Run(run));
                }
                WorkItem::Copy { kind, bytes, tensor, result } => {
                    let copied = self.copy(kind, bytes, tensor);
                    *lock(&result.0) = Some(copied);
                }
                WorkItem::Refill { pack, slots, bytes } => {
                    self.refill(state, pack, slots, &bytes)?;
                }
                WorkItem::CopyRows { src, dst } => {
                    copies::copy_rows(&self.stream, &src, &dst)?;
                    let (done, _tensors) = (self.stream.mark(false)?, vec![src, dst]);
                    state.in_flight.push_back(InFlight::Copy { done, block: None, _tensors });
                }
            }
            submitted = true;
        }
        if submitted {
            self.changed.notify_all();
        }
        Ok(())
    }

    fn release_finished(&self, state: &mut State<D>) {
        let driver = &*self.card.driver;
        while let Some(first) = state.in_flight.front() {
            let done = match first {
                InFlight::Run(run) => run.is_done(driver),
                InFlight::Copy { done, .. } => driver.has_happened(done).unwrap_or(true),
            };
            if !done {
                return;
            }
            if let Some(InFlight::Copy { block: Some(block), .. }) = state.in_flight.pop_front() {
                let len = |block: &Pinned<D>| block.bytes().len();
                if state.idle.iter().map(len).sum::<usize>() + len(&block) <= MAX_IDLE_BYTES {
                    state.idle.push(block);
                }
            }
        }
    }

    fn copy(
        &self,
        kind: CopyKind,
        mut staging: Box<dyn RawStaging>,
        tensor: Tensor,
    ) -> Result<FinishedCopy<D>> {
        let any: &mut dyn Any = &mut *staging;
        let Some(pinned) = any.downcast_mut::<Pinned<D>>() else {
            return Err(failure("copy", "the staging block belongs to another backend"));
        };
        match kind {
            CopyKind::Upload => copies::upload(&self.stream, pinned, &Rows::of(&tensor)?)?,
            CopyKind::Download => copies::download(&self.stream, pinned, &Rows::of(&tensor)?)?,
            CopyKind::Repack => {
                let (to, len) = (raw(&tensor)?.span, pinned.bytes().len());
                self.stream.copy_in(to, 0, pinned, 0, len)?;
            }
        }
        Ok(FinishedCopy { staging, done: self.stream.mark(false)?, _tensor: tensor })
    }

    fn refill(
        &self,
        state: &mut State<D>,
        pack: Tensor,
        slots: Range<usize>,
        bytes: &[u8],
    ) -> Result<()> {
        let to: Span = raw(&pack)?.span;
        let ranges = layout::refill(&pack.whole(), pack.buffer_rows(slots), bytes)?;
        let idle = state.idle.iter().position(|block| block.bytes().len() == bytes.len());
        let mut block = match idle {
            Some(at) => state.idle.swap_remove(at),
            None => Pinned::new(&self.card.driver, "refill", bytes.len())?,
        };
        block.bytes_mut().copy_from_slice(bytes);
        for (at, part) in ranges {
            self.stream.copy_in(to, at, &block, part.start, part.len())?;
        }
        let (done, _tensors) = (self.stream.mark(false)?, vec![pack]);
        state.in_flight.push_back(InFlight::Copy { done, block: Some(block), _tensors });
        Ok(())
    }

    /// Submits work and calls `ready`, with whether all work is submitted, until `ready` returns a
    /// value.
    fn wait_until<T>(&self, mut ready: impl FnMut(bool) -> Result<Option<T>>) -> Result<T> {
        let mut state = lock(&self.state);
        loop {
            self.submit_pending(&mut state)?;
            if let Some(found) = ready(state.pending.is_empty())? {
                return Ok(found);
            }
            let waited = self.changed.wait_timeout(state, POLL_INTERVAL);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl<D: Driver> Drop for QueueCore<D> {
    fn drop(&mut self) {
        // Every run holds this queue, so all runs are over or cancelled. Their resources are
        // freed next, so the device must be done with them; a lost device no longer uses them.
        let _ = self.stream.finish();
    }
}

#[derive(Debug)]
pub(crate) struct SimtQueue<D: Driver> {
    core: Arc<QueueCore<D>>,
}

impl<D: Driver> SimtQueue<D> {
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn new(card: &Arc<Card<D>>) -> Result<SimtQueue<D>> {
        let stream = Stream::new(&card.driver)?;
        let (pending, in_flight, idle) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let state = Mutex::new(State { pending, in_flight, idle });
        let core = QueueCore { card: Arc::clone(card), stream, state, changed: Condvar::new() };
        Ok(SimtQueue { core: Arc::new(core) })
    }

    fn start(
        &mut self,
        program: &Arc<dyn RawProgram>,
        timer: Option<Timer<D>>,
    ) -> Result<Box<dyn RawRun>> {
        let any: &dyn Any = &**program;
        let program = any.downcast_ref::<SimtProgram<D>>();
        let program =
            program.ok_or_else(|| failure("replay", "the program belongs to another backend"))?;
        let progress = Arc::new(Progress::new(&program.0, timer));
        self.core.push(WorkItem::Run(Arc::clone(&progress)))?;
        Ok(Box::new(SimtRun::new(&self.core, progress)))
    }

    fn copy(
        &self,
        kind: CopyKind,
        bytes: Box<dyn RawStaging>,
        tensor: &Tensor,
    ) -> Result<Box<dyn RawTransfer>> {
        let result = Arc::new(CopyResult(Mutex::new(None)));
        let (tensor, shared) = (tensor.clone(), Arc::clone(&result));
        self.core.push(WorkItem::Copy { kind, bytes, tensor, result: shared })?;
        Ok(Box::new(SimtTransfer { core: Arc::clone(&self.core), result }))
    }
}

impl<D: Driver> BackendQueue for SimtQueue<D> {
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        self.start(program, None)
    }

    fn replay_timed(
        &mut self,
        program: &Arc<dyn RawProgram>,
        cuts: &[usize],
    ) -> Result<Box<dyn RawRun>> {
        self.start(program, Some(Timer::new(cuts)))
    }

    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.copy(CopyKind::Upload, src, dst)
    }

    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>> {
        self.copy(CopyKind::Download, dst, src)
    }

    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.core.push(WorkItem::Refill { pack: pack.clone(), slots, bytes: bytes.to_vec() })
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.copy(CopyKind::Repack, src, dst)
    }

    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.core.push(WorkItem::CopyRows { src: src.clone(), dst: dst.clone() })
    }

    fn finish(&mut self) -> Result<()> {
        self.core.wait_until(|idle| Ok(idle.then_some(())))?;
        self.core.stream.finish()?;
        self.core.advance()
    }
}

#[derive(Debug)]
struct SimtTransfer<D: Driver> {
    core: Arc<QueueCore<D>>,
    result: Arc<CopyResult<D>>,
}

impl<D: Driver> RawTransfer for SimtTransfer<D> {
    fn is_done(&self) -> bool {
        if self.core.advance().is_err() {
            return true;
        }
        match &*lock(&self.result.0) {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(copied)) => self.core.card.driver.has_happened(&copied.done).unwrap_or(true),
        }
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        let copied = self.core.wait_until(|_| lock(&self.result.0).take().transpose())?;
        self.core.card.driver.wait(&copied.done)?;
        Ok(copied.staging)
    }
}
