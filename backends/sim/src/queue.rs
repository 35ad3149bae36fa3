//! The host's side of a queue: sends commands to the queue's thread and waits for the results.
//!
//! Every wait is a `recv` on a channel whose sender the queue's thread owns. The wait ends when the
//! thread answers, or when the thread ends and drops the sender.

use std::any::Any;
use std::cell::RefCell;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use hal::{
    BackendQueue, Clock, Error, HostRowSet, PartTime, PostedData, RawProgram, RawRun, RawStaging,
    RawTransfer, Result, Tensor, Times,
};

use crate::backend::SimProgram;
use crate::options::ReplayFault;
use crate::shared::DeviceState;
use crate::worker::{Command, Event, Message, Worker};

/// Reason of a loss when a queue's thread has ended.
const THREAD_ENDED: &str = "the queue's thread ended";

#[derive(Debug)]
pub(crate) struct SimQueue {
    shared: Arc<DeviceState>,
    inbox: Sender<Message>,
    number: u64,
    n_runs: u64,
    thread: Option<JoinHandle<()>>,
}

impl SimQueue {
    pub(crate) fn new(shared: &Arc<DeviceState>, label: &str) -> Result<SimQueue> {
        let (inbox, messages) = channel();
        let number = shared.add_queue(&inbox)?;
        let worker = Worker::new(Arc::clone(shared), messages, number);
        let spawned = thread::Builder::new()
            .name(format!("{} {label}", shared.info.name))
            .spawn(move || worker.run());
        let thread = spawned.map_err(|error| {
            shared.remove_queue(number);
            Error::Driver {
                call: "spawn".to_owned(),
                code: i64::from(error.raw_os_error().unwrap_or_default()),
                message: error.to_string(),
            }
        })?;
        Ok(SimQueue { shared: Arc::clone(shared), inbox, number, n_runs: 0, thread: Some(thread) })
    }

    fn send(&self, command: Command) -> Result<()> {
        self.shared.check()?;
        let sent = self.inbox.send(Message::Command(command));
        sent.map_err(|_| self.shared.mark_lost(THREAD_ENDED))
    }

    /// Starts a program. For a timed run, `cuts` are the first ops of its parts.
    fn start(
        &mut self,
        program: &Arc<dyn RawProgram>,
        cuts: Option<Box<[usize]>>,
    ) -> Result<Box<dyn RawRun>> {
        match self.shared.next_replay() {
            // Not `panic!`: its message on stderr would look like a failed test.
            Some(ReplayFault::Panic) => resume_unwind(Box::new("injected panic".to_owned())),
            Some(ReplayFault::Error) => {
                let (call, message) = ("replay".to_owned(), "injected error".to_owned());
                return Err(Error::Driver { call, code: 0, message });
            }
            None => {}
        }
        let any: &dyn Any = &**program;
        let program: &SimProgram =
            any.downcast_ref().expect("hal rejects programs of another backend");
        let (sender, events) = channel();
        let id = self.n_runs;
        self.n_runs += 1;
        self.send(Command::Replay { id, program: program.clone(), cuts, events: sender })?;
        self.shared.count_submission();
        Ok(Box::new(SimRun {
            shared: Arc::clone(&self.shared),
            inbox: self.inbox.clone(),
            id,
            events,
            last: None,
            n_open: 0,
            cancelled: false,
            ended: None,
            times: Vec::new(),
        }))
    }

    fn copy(
        &self,
        command: impl FnOnce(Sender<Result<Box<dyn RawStaging>>>) -> Command,
    ) -> Result<Box<dyn RawTransfer>> {
        let (reply, done) = channel();
        self.send(command(reply))?;
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(SimTransfer { shared, done, seen: RefCell::default() }))
    }
}

impl BackendQueue for SimQueue {
    fn replay(&mut self, program: &Arc<dyn RawProgram>) -> Result<Box<dyn RawRun>> {
        self.start(program, None)
    }

    fn replay_timed(
        &mut self,
        program: &Arc<dyn RawProgram>,
        cuts: &[usize],
    ) -> Result<Box<dyn RawRun>> {
        self.start(program, Some(cuts.into()))
    }

    fn upload(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        let dst = dst.clone();
        self.copy(|reply| Command::Upload { src, dst, reply })
    }

    fn download(&mut self, src: &Tensor, dst: Box<dyn RawStaging>) -> Result<Box<dyn RawTransfer>> {
        let src = src.clone();
        self.copy(|reply| Command::Download { src, dst, reply })
    }

    fn refill(&mut self, pack: &Tensor, slots: Range<usize>, bytes: &[u8]) -> Result<()> {
        self.send(Command::Refill { pack: pack.clone(), slots, bytes: bytes.into() })
    }

    fn repack(&mut self, src: Box<dyn RawStaging>, dst: &Tensor) -> Result<Box<dyn RawTransfer>> {
        let dst = dst.clone();
        self.copy(|reply| Command::Repack { src, dst, reply })
    }

    fn copy_rows(&mut self, src: &Tensor, dst: &Tensor) -> Result<()> {
        self.send(Command::CopyRows { src: src.clone(), dst: dst.clone() })
    }

    fn finish(&mut self) -> Result<()> {
        let (reply, done) = channel();
        self.send(Command::Finish { reply })?;
        let result = done.recv().unwrap_or_else(|_| Err(self.shared.mark_lost(THREAD_ENDED)));
        self.shared.check()?;
        result
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        // The thread cancels running and queued programs and completes copies. Sending fails only
        // if the thread has already ended.
        let _ = self.inbox.send(Message::Close);
        self.shared.remove_queue(self.number);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            self.shared.mark_lost("the queue's thread panicked");
        }
    }
}

/// The data that a post sends to the host.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) mailbox: usize,
    pub(crate) n_tokens: usize,
    pub(crate) x: Vec<f32>,
    pub(crate) rows: Option<HostRowSet>,
    pub(crate) weights: Vec<f32>,
}

#[derive(Debug)]
struct SimRun {
    shared: Arc<DeviceState>,
    inbox: Sender<Message>,
    id: u64,
    events: Receiver<Event>,
    /// The data that [`PostedData`] borrows.
    last: Option<Post>,
    /// Number of posts that the host received but has not answered.
    n_open: usize,
    cancelled: bool,
    ended: Option<Result<()>>,
    /// Times of the program's parts.
    times: Vec<PartTime>,
}

impl SimRun {
    /// The next post, or `None` after the end.
    fn next(&mut self) -> Option<Post> {
        if self.ended.is_some() {
            return None;
        }
        let end = match self.events.recv() {
            Ok(Event::Post(post)) => return Some(post),
            Ok(Event::End(result, times)) => {
                self.times = times;
                result
            }
            Err(_) => Err(self.shared.mark_lost(THREAD_ENDED)),
        };
        self.ended = Some(end);
        None
    }

    /// The error of a lost device, or the program's result (`Ok` while it is unknown).
    fn end(&self) -> Result<()> {
        self.shared.check()?;
        self.ended.clone().unwrap_or(Ok(()))
    }
}

impl RawRun for SimRun {
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        self.shared.check()?;
        self.last = loop {
            match self.next() {
                // Discards the posts of a cancelled program.
                Some(_) if self.cancelled => {}
                post => break post,
            }
        };
        if self.last.is_none() {
            self.end()?;
        }
        self.n_open += usize::from(self.last.is_some());
        Ok(self.last.as_ref().map(|post| PostedData {
            mailbox: post.mailbox,
            n_tokens: post.n_tokens,
            x: &post.x,
            rows: post.rows.as_ref(),
            weights: &post.weights,
        }))
    }

    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()> {
        self.shared.check()?;
        self.n_open = self.n_open.saturating_sub(1);
        let answer = Message::Answer { run: self.id, mailbox, y: y.into() };
        if self.inbox.send(answer).is_ok() {
            return Ok(());
        }
        // The queue's thread has ended, and the program with it: reports the program's result.
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        self.shared.check()?;
        // The host cannot answer an open post while it waits here, so the program would never end.
        if self.n_open > 0 {
            self.cancel();
        }
        while self.next().is_some() {
            self.cancel();
        }
        self.end()
    }

    fn times(&mut self) -> Result<Times> {
        Ok(Times { clock: Clock::Host, parts: std::mem::take(&mut self.times) })
    }

    fn cancel(&mut self) {
        if self.ended.is_none() && !self.cancelled {
            self.cancelled = true;
            // Sending fails only if the thread has ended, and then no program runs.
            let _ = self.inbox.send(Message::Cancel { run: self.id });
        }
    }
}

impl Drop for SimRun {
    fn drop(&mut self) {
        self.cancel();
    }
}

#[derive(Debug)]
struct SimTransfer {
    shared: Arc<DeviceState>,
    done: Receiver<Result<Box<dyn RawStaging>>>,
    /// The result that [`RawTransfer::is_done`] has already received.
    seen: RefCell<Option<Result<Box<dyn RawStaging>>>>,
}

impl RawTransfer for SimTransfer {
    fn is_done(&self) -> bool {
        let mut seen = self.seen.borrow_mut();
        if seen.is_none() {
            *seen = match self.done.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => self.shared.check().err().map(Err),
                Err(TryRecvError::Disconnected) => Some(Err(self.shared.mark_lost(THREAD_ENDED))),
            };
        }
        seen.is_some()
    }

    fn wait(self: Box<Self>) -> Result<Box<dyn RawStaging>> {
        self.shared.check()?;
        let seen = self.seen.into_inner();
        let result = seen.or_else(|| self.done.recv().ok());
        result.unwrap_or_else(|| Err(self.shared.mark_lost(THREAD_ENDED)))
    }
}
