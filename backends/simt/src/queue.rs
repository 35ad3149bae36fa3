//! An in-order queue: later work is queued behind a run that is blocked on a hand-off.

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
use crate::error::driver;
use crate::pinned::Pinned;
use crate::program::SimtProgram;
use crate::run::{Progress, SimtRun};
use crate::stream::Stream;
use crate::timer::Timer;

/// How long a wait for another thread sleeps before it polls again.
const LOOK: Duration = Duration::from_millis(20);

/// Bytes of pinned blocks kept for later refills; blocks beyond this are freed after the copy.
const MOST_IDLE: usize = 4 << 20;

/// A queue and its pending work; shared with its runs and transfers.
#[derive(Debug)]
pub(crate) struct Core<D: Driver> {
    pub(crate) card: Arc<Card<D>>,
    stream: Stream<D>,
    state: Mutex<State<D>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<D: Driver> {
    works: VecDeque<Work<D>>,
    /// Work in flight, with its resources.
    flying: VecDeque<Flying<D>>,
    /// Reusable pinned blocks of finished refills.
    idle: Vec<Pinned<D>>,
}

/// Work in the order of submission.
#[derive(Debug)]
enum Work<D: Driver> {
    Run(Arc<Progress<D>>),
    Copy { way: CopyKind, bytes: Box<dyn RawStaging>, tensor: Tensor, done: Arc<CopyState<D>> },
    Refill { pack: Tensor, slots: Range<usize>, bytes: Vec<u8> },
    CopyRows { src: Tensor, dst: Tensor },
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyKind {
    Upload,
    Download,
    /// To the bytes of a whole pack.
    Repack,
}

/// An item that the device is working on.
#[derive(Debug)]
enum Flying<D: Driver> {
    Run(Arc<Progress<D>>),
    Copy { done: D::Event, block: Option<Pinned<D>>, _tensors: Vec<Tensor> },
}

/// Result of a copy.
#[derive(Debug)]
struct CopyState<D: Driver>(Mutex<Option<Result<Copied<D>>>>);

#[derive(Debug)]
struct Copied<D: Driver> {
    staging: Box<dyn RawStaging>,
    done: D::Event,
    _tensor: Tensor,
}

impl<D: Driver> Core<D> {
    /// Adds work and submits all possible items.
    fn give(&self, work: Work<D>) -> Result<()> {
        // Uploads that a program reads, or a copy changes, must have arrived.
        self.card.arrived()?;
        let mut state = lock(&self.state);
        state.works.push_back(work);
        self.pump(&mut state)
    }

    /// Submits all possible items, from the front.
    pub(crate) fn advance(&self) -> Result<()> {
        self.pump(&mut lock(&self.state))
    }

    fn pump(&self, state: &mut State<D>) -> Result<()> {
        self.land(state);
        let mut moved = false;
        while let Some(work) = state.works.pop_front() {
            match work {
                Work::Run(run) => {
                    if !run.submit(&self.stream, || self.card.begin_step())? {
                        state.works.push_front(Work::Run(run));
                        break;
                    }
                    state.flying.push_back(Flying::Run(run));
                }
                Work::Copy { way, bytes, tensor, done } => {
                    let copied = self.copy(way, bytes, tensor);
                    *lock(&done.0) = Some(copied);
                }
                Work::Refill { pack, slots, bytes } => self.refill(state, pack, slots, &bytes)?,
                Work::CopyRows { src, dst } => {
                    copies::copy_rows(&self.stream, &src, &dst)?;
                    let (done, _tensors) = (self.stream.mark(false)?, vec![src, dst]);
                    state.flying.push_back(Flying::Copy { done, block: None, _tensors });
                }
            }
            moved = true;
        }
        if moved {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Releases finished work.
    fn land(&self, state: &mut State<D>) {
        let driver = &*self.card.driver;
        while let Some(first) = state.flying.front() {
            let done = match first {
                Flying::Run(run) => run.is_done(driver),
                Flying::Copy { done, .. } => driver.has_happened(done).unwrap_or(true),
            };
            if !done {
                return;
            }
            if let Some(Flying::Copy { block: Some(block), .. }) = state.flying.pop_front() {
                let len = |block: &Pinned<D>| block.bytes().len();
                if state.idle.iter().map(len).sum::<usize>() + len(&block) <= MOST_IDLE {
                    state.idle.push(block);
                }
            }
        }
    }

    fn copy(
        &self,
        way: CopyKind,
        mut staging: Box<dyn RawStaging>,
        tensor: Tensor,
    ) -> Result<Copied<D>> {
        let any: &mut dyn Any = &mut *staging;
        let Some(pinned) = any.downcast_mut::<Pinned<D>>() else {
            return Err(driver("copy", "staging of another backend"));
        };
        match way {
            CopyKind::Upload => copies::upload(&self.stream, pinned, &Rows::of(&tensor)?)?,
            CopyKind::Download => copies::download(&self.stream, pinned, &Rows::of(&tensor)?)?,
            CopyKind::Repack => {
                let (to, len) = (raw(&tensor)?.span, pinned.bytes().len());
                self.stream.copy_in(to, 0, pinned, 0, len)?;
            }
        }
        Ok(Copied { staging, done: self.stream.mark(false)?, _tensor: tensor })
    }

    fn refill(
        &self,
        state: &mut State<D>,
        pack: Tensor,
        slots: Range<usize>,
        bytes: &[u8],
    ) -> Result<()> {
        let to: Span = raw(&pack)?.span;
        let places = layout::refill(&pack.whole(), pack.in_whole(slots), bytes)?;
        let idle = state.idle.iter().position(|block| block.bytes().len() == bytes.len());
        let mut block = match idle {
            Some(at) => state.idle.swap_remove(at),
            None => Pinned::new(&self.card.driver, "refill", bytes.len())?,
        };
        block.bytes_mut().copy_from_slice(bytes);
        for (at, part) in places {
            self.stream.copy_in(to, at, &block, part.start, part.len())?;
        }
        let (done, _tensors) = (self.stream.mark(false)?, vec![pack]);
        state.flying.push_back(Flying::Copy { done, block: Some(block), _tensors });
        Ok(())
    }

    /// Waits until `there` returns a value; it is called again after work was submitted, with
    /// whether all was submitted.
    fn until<T>(&self, mut there: impl FnMut(bool) -> Result<Option<T>>) -> Result<T> {
        let mut state = lock(&self.state);
        loop {
            self.pump(&mut state)?;
            if let Some(found) = there(state.works.is_empty())? {
                return Ok(found);
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl<D: Driver> Drop for Core<D> {
    fn drop(&mut self) {
        // Runs hold this, so all of them have ended or were cancelled; their resources are freed
        // next. A lost device uses none.
        let _ = self.stream.finish();
    }
}

/// The queue behind the contract of `hal`.
#[derive(Debug)]
pub(crate) struct SimtQueue<D: Driver> {
    core: Arc<Core<D>>,
}

impl<D: Driver> SimtQueue<D> {
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn new(card: &Arc<Card<D>>) -> Result<SimtQueue<D>> {
        let stream = Stream::new(&card.driver)?;
        let (works, flying, idle) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let state = Mutex::new(State { works, flying, idle });
        let core = Core { card: Arc::clone(card), stream, state, changed: Condvar::new() };
        Ok(SimtQueue { core: Arc::new(core) })
    }

    fn start(
        &mut self,
        program: &Arc<dyn RawProgram>,
        timer: Option<Timer<D>>,
    ) -> Result<Box<dyn RawRun>> {
        let any: &dyn Any = &**program;
        let program = any.downcast_ref::<SimtProgram<D>>();
        let program = program.ok_or_else(|| driver("replay", "another backend's program"))?;
        let progress = Arc::new(Progress::new(&program.0, timer));
        self.core.give(Work::Run(Arc::clone(&progress)))?;
        Ok(Box::new(SimtRun::new(&self.core, progress)))
    }

    fn copy(
        &self,
        way: CopyKind,
        bytes: Box<dyn RawStaging>,
        tensor: &Tensor,
    ) -> Result<Box<dyn RawTransfer>> {
        let done = Arc::new(CopyState(Mutex::new(None)));
        let (tensor, told) = (tensor.clone(), Arc::clone(&done));
        self.core.give(Work::Copy { way, bytes, tensor, done: told })?;
        Ok(Box::new(SimtTransfer { core: Arc::clone(&self.core), done }))
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
        self.core.give(Work::Refill { pack: pack.clone(), slots, bytes: bytes.to_vec() })
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        self.copy(CopyKind::Repack, src, dst)
    }

    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.core.give(Work::CopyRows { src: src.clone(), dst: dst.clone() })
    }

    fn finish(&mut self) -> Result<()> {
        self.core.until(|idle| Ok(idle.then_some(())))?;
        self.core.stream.finish()?;
        self.core.advance()
    }
}

/// A copy in flight.
#[derive(Debug)]
struct SimtTransfer<D: Driver> {
    core: Arc<Core<D>>,
    done: Arc<CopyState<D>>,
}

impl<D: Driver> RawTransfer for SimtTransfer<D> {
    fn is_done(&self) -> bool {
        if self.core.advance().is_err() {
            return true;
        }
        match &*lock(&self.done.0) {
            None => false,
            Some(Err(_)) => true,
            Some(Ok(copied)) => self.core.card.driver.has_happened(&copied.done).unwrap_or(true),
        }
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        let copied = self.core.until(|_| lock(&self.done.0).take().transpose())?;
        self.core.card.driver.wait(&copied.done)?;
        Ok(copied.staging)
    }
}
