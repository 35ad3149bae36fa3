//! A running program: segments are submitted as answers arrive; posts are detected by their flags
//! and handed to the host.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hal::{Error, HostRowSet, PostedData, RawRun, Result, Times};

use crate::card::{Card, lock};
use crate::driver::Driver;
use crate::error::failure;
use crate::program::{ProgramCore, ProgramPost};
use crate::queue::QueueCore;
use crate::stream::Stream;
use crate::timer::{SubmittedPart, Timer};

/// Progress of a run: the queue submits its segments, and its owner answers its posts.
#[derive(Debug)]
pub(crate) struct Progress<D: Driver> {
    pub(crate) program: Arc<ProgramCore<D>>,
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D: Driver> {
    /// The number of the step; 0 before the step begins.
    step: u32,
    /// The next segment to submit.
    next: usize,
    /// Present if the run is timed.
    timer: Option<Timer<D>>,
    /// Mailboxes whose answers have arrived.
    answered: Vec<usize>,
    /// Number of posts handed to the host.
    n_handed_out: usize,
    /// The event after the last submitted segment.
    last: Option<Arc<D::Event>>,
    cancelled: bool,
}

enum RunStatus<D: Driver> {
    /// A post has arrived: the number of the step, and the index of the post.
    Post(u32, usize),
    End,
    /// No new post has arrived, and the run has not ended. Holds the event after the last submitted
    /// segment, if any.
    Running(Option<Arc<D::Event>>),
}

impl<D: Driver> Progress<D> {
    pub(crate) fn new(program: &Arc<ProgramCore<D>>, timer: Option<Timer<D>>) -> Progress<D> {
        let state = State {
            step: 0,
            next: 0,
            timer,
            answered: Vec::new(),
            n_handed_out: 0,
            last: None,
            cancelled: false,
        };
        Progress { program: Arc::clone(program), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<D>> {
        lock(&self.state)
    }

    /// Submits all segments whose answers have arrived; `step` makes the step's number if the run
    /// starts now. Returns whether the next run may be submitted: only once this run has all its
    /// answers or is cancelled. So no two runs wait at once, and cancelling one run cannot end
    /// another run's waits.
    pub(crate) fn submit(&self, stream: &Stream<D>, step: impl FnOnce() -> u32) -> Result<bool> {
        let program = &*self.program;
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.cancelled {
            return Ok(true);
        }
        if state.step == 0 {
            state.step = step();
            if !program.posts.is_empty() {
                stream.fill(program.step.part(0, 4), state.step)?;
            }
        }
        while let Some(segment) = program.segments.get(state.next) {
            if segment.merge.is_some_and(|merge| !state.answered.contains(&merge)) {
                return Ok(false);
            }
            // Created before the submission: if this call failed later, nothing would end the
            // device's waits.
            let event = Arc::new(stream.event()?);
            let whole = match &mut state.timer {
                None => {
                    segment.submit(stream)?;
                    true
                }
                Some(timer) => {
                    let answered = |(merge, _): &&(usize, _)| state.answered.contains(merge);
                    let n_answered = program.merges.iter().take_while(answered).count();
                    match timer.submit(segment, stream, n_answered)? {
                        SubmittedPart::Nothing => return Ok(false),
                        SubmittedPart::Partly => false,
                        SubmittedPart::Whole => true,
                    }
                }
            };
            stream.record(&event)?;
            state.last = Some(event);
            if !whole {
                return Ok(false);
            }
            state.next += 1;
        }
        Ok(state.answered.len() >= program.merges.len())
    }

    /// Whether all submitted work of this run is done.
    pub(crate) fn is_done(&self, driver: &D) -> bool {
        let last = self.lock().last.clone();
        // A lost device no longer accesses memory.
        last.is_none_or(|last| driver.has_happened(&last).unwrap_or(true))
    }

    /// Current state, without waiting.
    fn status(&self) -> Result<RunStatus<D>> {
        let program = &*self.program;
        let state = self.lock();
        if state.cancelled {
            return Err(Error::Cancelled);
        }
        let next_post = program.posts.get(state.n_handed_out);
        let n_merged = next_post.map_or(program.merges.len(), |post| post.n_merged);
        // A post that was handed out and skipped can no longer be answered.
        let is_unanswered = |(merge, _): &(usize, _)| !state.answered.contains(merge);
        if program.merges[..n_merged].iter().any(is_unanswered) {
            return Err(Error::Cancelled);
        }
        Ok(match next_post {
            // Before a step begins its number is 0, like the flag of a new mailbox.
            Some(post) if state.step > 0 && post.mailbox.is_posted(state.step) => {
                RunStatus::Post(state.step, state.n_handed_out)
            }
            None if state.next == program.segments.len() => match &state.last {
                Some(last) => RunStatus::Running(Some(Arc::clone(last))),
                None => RunStatus::End,
            },
            Some(_) | None => RunStatus::Running(state.last.clone()),
        })
    }

    /// Whether all segments are submitted and all posts were handed out.
    fn is_over(&self) -> bool {
        let state = self.lock();
        state.n_handed_out == self.program.posts.len() && state.next == self.program.segments.len()
    }

    /// Whether the segment of the next post is submitted and the post has not arrived: an error
    /// once the segment is done.
    fn is_late(&self) -> bool {
        let state = self.lock();
        let post = self.program.posts.get(state.n_handed_out);
        post.is_some_and(|post| state.next > post.segment && !post.mailbox.is_posted(state.step))
    }

    fn check_expired(&self, card: &Card<D>) -> Result<()> {
        let step = self.lock().step;
        if self.program.merges.iter().any(|(_, mailbox)| mailbox.has_expired(step)) {
            card.timed_out.store(true, Ordering::Relaxed);
            Err(Error::TimedOut { device: card.checked.facts.name.clone() })
        } else {
            Ok(())
        }
    }
}

/// The caller's handle of a run, to answer its posts and to wait for its end.
#[derive(Debug)]
pub(crate) struct SimtRun<D: Driver> {
    core: Arc<QueueCore<D>>,
    progress: Arc<Progress<D>>,
    /// Index of the current post, and its row list.
    rows: Option<(usize, HostRowSet)>,
}

/// Waits for a flag: spins, then yields, then sleeps. Spinning sees the flag at once; a sleep may
/// see it hundreds of microseconds late.
struct Backoff {
    polls: u32,
    /// When spinning ended.
    since: Option<Instant>,
}

impl Backoff {
    /// Polls before the thread yields.
    const SPINS: u32 = 200;
    /// How long to yield before this thread sleeps.
    const YIELD_TIME: Duration = Duration::from_millis(10);
    /// Polls between two queries to the driver.
    const QUERY_INTERVAL: u32 = 64;

    fn new() -> Backoff {
        Backoff { polls: 0, since: None }
    }

    /// Waits a little; returns whether to query the driver now.
    fn wait(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls < Backoff::SPINS {
            std::hint::spin_loop();
            return false;
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() < Backoff::YIELD_TIME {
            std::thread::yield_now();
            return self.polls.is_multiple_of(Backoff::QUERY_INTERVAL);
        }
        std::thread::sleep(Duration::from_micros(50));
        true
    }
}

impl<D: Driver> SimtRun<D> {
    pub(crate) fn new(core: &Arc<QueueCore<D>>, progress: Arc<Progress<D>>) -> SimtRun<D> {
        SimtRun { core: Arc::clone(core), progress, rows: None }
    }

    /// Gives the row list of the last post back to its mailbox.
    fn return_rows(&mut self) {
        if let Some((post, rows)) = self.rows.take() {
            self.progress.program.posts[post].mailbox.return_rows(rows);
        }
    }

    /// Waits for the next post or the end.
    fn next(&self) -> Result<Option<(u32, usize)>> {
        let (core, driver) = (&*self.core, &*self.core.card.driver);
        let (mut backoff, mut query_driver) = (Backoff::new(), false);
        loop {
            if query_driver {
                core.advance()?;
            }
            let last_event = match self.progress.status()? {
                RunStatus::Post(step, post) => return Ok(Some((step, post))),
                RunStatus::End => return Ok(None),
                RunStatus::Running(last_event) => last_event,
            };
            // No segment or post is left, so the driver can wait.
            if let Some(last) = last_event.as_ref().filter(|_| self.progress.is_over()) {
                driver.wait(last)?;
                self.progress.check_expired(&core.card)?;
                return Ok(None);
            }
            query_driver = backoff.wait();
            if !query_driver {
                continue;
            }
            let Some(last) = last_event else { continue };
            if !driver.has_happened(&last)? || self.progress.is_over() {
                continue;
            }
            // The device writes a post before the event of its segment, so the post is missing.
            if self.progress.is_late() {
                self.progress.check_expired(&core.card)?;
                return Err(failure("post", "the device ended a segment without writing its post"));
            }
        }
    }
}

impl<D: Driver> RawRun for SimtRun<D> {
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        self.return_rows();
        let Some((_, number)) = self.next()? else { return Ok(None) };
        self.progress.lock().n_handed_out += 1;
        let post: &ProgramPost<D> = &self.progress.program.posts[number];
        let (mailbox, offsets) = (&post.mailbox, post.mailbox.offsets);
        let n_tokens = mailbox.n_tokens().min(post.n_rows);
        if let Some(row_words) = post.row_words {
            let mut rows = mailbox.take_rows();
            mailbox.read_rows(row_words, n_tokens, &mut rows);
            self.rows = Some((number, rows));
        }
        let shape = mailbox.shape;
        Ok(Some(PostedData {
            mailbox: post.index,
            n_tokens,
            x: mailbox.floats(offsets.x, n_tokens * shape.n_in),
            rows: self.rows.as_ref().map(|(_, rows)| rows),
            weights: mailbox.floats(offsets.weights, n_tokens * shape.n_weights),
        }))
    }

    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()> {
        self.return_rows();
        let mut state = self.progress.lock();
        if let Some((_, answered)) =
            self.progress.program.merges.iter().find(|(i, _)| *i == mailbox)
        {
            answered.answer(state.step, y);
        }
        state.answered.push(mailbox);
        drop(state);
        self.core.advance()
    }

    fn wait(&mut self) -> Result<()> {
        self.return_rows();
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
        self.return_rows();
        let mut state = self.progress.lock();
        state.cancelled = true;
        if state.step > 0 && self.progress.program.flags {
            for (_, mailbox) in &self.progress.program.merges {
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
