//! A running program: segments are submitted as answers arrive; posts are detected by their flags
//! and handed to the host.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hal::{Error, HostRowSet, Posted, RawRun, Result, Times};

use crate::card::lock;
use crate::driver::Driver;
use crate::error::driver;
use crate::program::{PostOf, Steps};
use crate::queue::Core;
use crate::stream::Stream;
use crate::timer::{Given, Timer};

/// Progress of a run; its queue submits, its owner answers.
#[derive(Debug)]
pub(crate) struct Progress<D: Driver> {
    pub(crate) steps: Arc<Steps<D>>,
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D: Driver> {
    /// The number of the step; 0 before it begins.
    step: u32,
    /// The next segment to submit.
    next: usize,
    /// Present if the run is timed.
    timer: Option<Timer<D>>,
    /// Mailboxes whose answers have arrived.
    answered: Vec<usize>,
    /// Number of posts handed to the host.
    shown: usize,
    /// Recorded after the last submitted segment.
    last: Option<Arc<D::Event>>,
    cancelled: bool,
}

/// Current state of a run.
enum Stand<D: Driver> {
    /// This post has arrived.
    Post(u32, usize),
    End,
    /// No event yet; the marker is after the last submitted work, if any.
    Under(Option<Arc<D::Event>>),
}

impl<D: Driver> Progress<D> {
    pub(crate) fn new(steps: &Arc<Steps<D>>, timer: Option<Timer<D>>) -> Progress<D> {
        let state = State {
            step: 0,
            next: 0,
            timer,
            answered: Vec::new(),
            shown: 0,
            last: None,
            cancelled: false,
        };
        Progress { steps: Arc::clone(steps), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        lock(&self.state)
    }

    /// Submits all possible segments, as step number `step` if the run starts now; returns whether
    /// the next run may follow. If the device waits for answers itself, that is only when all have
    /// arrived: so no two runs wait at once, and the poison of one reaches no other.
    pub(crate) fn submit(&self, stream: &Stream<D>, step: impl FnOnce() -> u32) -> Result<bool> {
        let steps = &*self.steps;
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.cancelled {
            return Ok(true);
        }
        if state.step == 0 {
            state.step = step();
            if !steps.posts.is_empty() {
                stream.fill(steps.step.part(0, 4), state.step)?;
            }
        }
        while let Some(segment) = steps.segments.get(state.next) {
            if segment.merge.is_some_and(|merge| !state.answered.contains(&merge)) {
                return Ok(false);
            }
            // Created before anything waits on the device: if this failed later, the wait would
            // have no end.
            let behind = Arc::new(stream.event()?);
            let whole = match &mut state.timer {
                None => {
                    segment.give(stream)?;
                    true
                }
                Some(timer) => {
                    let answered = |(merge, _): &&(usize, _)| state.answered.contains(merge);
                    let n_answered = steps.merges.iter().take_while(answered).count();
                    match timer.give(segment, stream, n_answered)? {
                        Given::Nothing => return Ok(false),
                        Given::Some => false,
                        Given::Whole => true,
                    }
                }
            };
            stream.record(&behind)?;
            state.last = Some(behind);
            if !whole {
                return Ok(false);
            }
            state.next += 1;
        }
        Ok(state.answered.len() >= steps.merges.len())
    }

    /// Whether all submitted work of this run is done.
    pub(crate) fn is_done(&self, driver: &D) -> bool {
        let last = self.lock().last.clone();
        // A lost device accesses no memory any more.
        last.is_none_or(|last| driver.has_happened(&last).unwrap_or(true))
    }

    /// Current state, without waiting.
    fn stand(&self) -> Result<Stand<D>> {
        let steps = &*self.steps;
        let state = self.lock();
        if state.cancelled {
            return Err(Error::Cancelled);
        }
        let here = steps.posts.get(state.shown);
        let n_merged = here.map_or(steps.merges.len(), |post| post.n_merged);
        // A post that was handed out and skipped can no longer be answered.
        let open = |(merge, _): &(usize, _)| !state.answered.contains(merge);
        if steps.merges[..n_merged].iter().any(open) {
            return Err(Error::Cancelled);
        }
        Ok(match here {
            // Before a step begins its number is 0, which matches no flag after the first step.
            Some(post) if state.step > 0 && post.mailbox.is_posted(state.step) => {
                Stand::Post(state.step, state.shown)
            }
            None if state.next == steps.segments.len() => match &state.last {
                Some(last) => Stand::Under(Some(Arc::clone(last))),
                None => Stand::End,
            },
            Some(_) | None => Stand::Under(state.last.clone()),
        })
    }

    /// Whether all segments are submitted and all posts were handed out.
    fn is_over(&self) -> bool {
        let state = self.lock();
        state.shown == self.steps.posts.len() && state.next == self.steps.segments.len()
    }

    /// Whether an event after the segment of the next post has happened, so that the post must
    /// have arrived.
    fn is_late(&self) -> bool {
        let state = self.lock();
        let post = self.steps.posts.get(state.shown);
        post.is_some_and(|post| state.next > post.segment && !post.mailbox.is_posted(state.step))
    }

    fn check_expired(&self) -> Result<()> {
        let step = self.lock().step;
        if self.steps.merges.iter().any(|(_, mailbox)| mailbox.has_expired(step)) {
            Err(driver("merge", "timeout: the device waited too long for an answer"))
        } else {
            Ok(())
        }
    }
}

/// The handle of a run: its caller answers posts through it, and waits.
#[derive(Debug)]
pub(crate) struct SimtRun<D: Driver> {
    core: Arc<Core<D>>,
    progress: Arc<Progress<D>>,
    /// The list of the current post, and the index of that post.
    rows: Option<(usize, HostRowSet)>,
}

/// Waits for a flag: polls first, then sleeps. A poll costs next to nothing, a sleep hundreds of
/// microseconds.
struct Patience {
    looks: u32,
    /// End of the polling phase.
    since: Option<Instant>,
}

impl Patience {
    /// Rounds of polling without yielding.
    const LOOKS: u32 = 200;
    /// How long to yield before this thread sleeps.
    const AWAKE: Duration = Duration::from_millis(10);
    /// Rounds between two queries to the driver.
    const ASK: u32 = 64;

    fn new() -> Patience {
        Patience { looks: 0, since: None }
    }

    /// Waits a little; returns whether to query the driver now.
    fn wait(&mut self) -> bool {
        self.looks = self.looks.saturating_add(1);
        if self.looks < Patience::LOOKS {
            std::hint::spin_loop();
            return false;
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() < Patience::AWAKE {
            std::thread::yield_now();
            return self.looks.is_multiple_of(Patience::ASK);
        }
        std::thread::sleep(Duration::from_micros(50));
        true
    }
}

impl<D: Driver> SimtRun<D> {
    pub(crate) fn new(core: &Arc<Core<D>>, progress: Arc<Progress<D>>) -> SimtRun<D> {
        SimtRun { core: Arc::clone(core), progress, rows: None }
    }

    /// Returns the list of the last post to its mailbox.
    fn close(&mut self) {
        if let Some((post, rows)) = self.rows.take() {
            self.progress.steps.posts[post].mailbox.keep_rows(rows);
        }
    }

    /// Waits for the next post or the end.
    fn next(&self) -> Result<Option<(u32, usize)>> {
        let (core, driver_) = (&*self.core, &*self.core.card.driver);
        let (mut wait_limit, mut long) = (Patience::new(), false);
        loop {
            if long {
                core.advance()?;
            }
            let under = match self.progress.stand()? {
                Stand::Post(step, post) => return Ok(Some((step, post))),
                Stand::End => return Ok(None),
                Stand::Under(under) => under,
            };
            // Nothing is left to submit or to poll, so the wait is the driver's.
            if let Some(last) = under.as_ref().filter(|_| self.progress.is_over()) {
                driver_.wait(last)?;
                self.progress.check_expired()?;
                return Ok(None);
            }
            long = wait_limit.wait();
            if !long {
                continue;
            }
            let Some(last) = under else { continue };
            if !driver_.has_happened(&last)? || self.progress.is_over() {
                continue;
            }
            // The post was written before the event.
            if self.progress.is_late() {
                self.progress.check_expired()?;
                return Err(driver("post", "a segment ended without its post"));
            }
        }
    }
}

impl<D: Driver> RawRun for SimtRun<D> {
    fn next_post(&mut self) -> Result<Option<Posted<'_>>> {
        self.close();
        let Some((_, number)) = self.next()? else { return Ok(None) };
        self.progress.lock().shown += 1;
        let post: &PostOf<D> = &self.progress.steps.posts[number];
        let (mailbox, places) = (&post.mailbox, post.mailbox.places);
        let n_tokens = mailbox.n_tokens().min(post.n_rows);
        if let Some(held) = post.row_words {
            let mut rows = mailbox.take_rows();
            mailbox.read_rows(held, n_tokens, &mut rows);
            self.rows = Some((number, rows));
        }
        let shape = mailbox.shape;
        Ok(Some(Posted {
            mailbox: post.index,
            n_tokens,
            x: mailbox.floats(places.x, n_tokens * shape.n_in),
            rows: self.rows.as_ref().map(|(_, rows)| rows),
            weights: mailbox.floats(places.weights, n_tokens * shape.n_weights),
        }))
    }

    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()> {
        self.close();
        let mut state = self.progress.lock();
        if let Some((_, of)) = self.progress.steps.merges.iter().find(|(i, _)| *i == mailbox) {
            of.answer(state.step, y);
        }
        state.answered.push(mailbox);
        drop(state);
        self.core.advance()
    }

    fn wait(&mut self) -> Result<()> {
        self.close();
        match self.next()? {
            Some(_) => {
                self.cancel();
                Err(Error::Cancelled)
            }
            None => Ok(()),
        }
    }

    fn times(&mut self) -> Result<Times> {
        let timer = self.progress.lock().timer.take();
        timer.map_or(Ok(Times::none()), |timer| timer.times(&self.core.card.driver))
    }

    fn cancel(&mut self) {
        self.close();
        let mut state = self.progress.lock();
        state.cancelled = true;
        if state.step > 0 && self.progress.steps.flags {
            for (_, mailbox) in &self.progress.steps.merges {
                mailbox.poison(state.step);
            }
        }
        drop(state);
        // Submits the work queued behind this run; an error is reported to the next caller.
        let _ = self.core.advance();
    }
}

impl<D: Driver> Drop for SimtRun<D> {
    fn drop(&mut self) {
        self.cancel();
    }
}
