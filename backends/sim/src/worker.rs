//! The device's side of a queue: one thread with one inbox.
//!
//! The thread runs commands in order. While it waits (for a delay, a hang, an answer) it reads its
//! inbox, so that an answer, a cancel, a loss or the end of the queue takes effect at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use cpu::reference::execute;
use hal::op::{HandOff, Merge, Post};
use hal::{
    Batch, BatchView, Error, HostRowSet, MailboxShape, Op, Operand, PartTime, RawStaging, Result,
    RowSet, Tensor,
};

use crate::backend::SimProgram;
use crate::memory::{SimMemory, buffer, span};
use crate::options::Fault;
use crate::queue;
use crate::shared::{DeviceState, WorkItem};

/// A sleep of the system lasts about 60 us longer than asked for. Shorter delays than this one let
/// other threads run instead, until their time is over.
const SHORTEST_SLEEP: Duration = Duration::from_micros(100);

/// Messages to a queue's thread.
#[derive(Debug)]
pub(crate) enum Message {
    Command(Command),
    Answer {
        run: u64,
        mailbox: usize,
        y: Box<[f32]>,
    },
    Cancel {
        run: u64,
    },
    /// The device's state changed.
    Wake,
    /// The queue was dropped: the thread cancels all programs, completes all copies, then ends.
    Close,
}

/// Commands of a queue, which run in order.
#[derive(Debug)]
pub(crate) enum Command {
    Replay { id: u64, program: SimProgram, cuts: Option<Box<[usize]>>, events: Sender<Event> },
    Upload { src: Box<dyn RawStaging>, dst: Tensor, reply: Sender<Result<Box<dyn RawStaging>>> },
    Download { src: Tensor, dst: Box<dyn RawStaging>, reply: Sender<Result<Box<dyn RawStaging>>> },
    Refill { pack: Tensor, slots: Range<usize>, bytes: Box<[u8]> },
    Repack { src: Box<dyn RawStaging>, dst: Tensor, reply: Sender<Result<Box<dyn RawStaging>>> },
    CopyRows { src: Tensor, dst: Tensor },
    Finish { reply: Sender<Result<()>> },
}

/// Events of a program, sent to the host.
#[derive(Debug)]
pub(crate) enum Event {
    Post(queue::Post),
    /// The program's result and the times of its parts.
    End(Result<()>, Vec<PartTime>),
}

#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<DeviceState>,
    inbox: Receiver<Message>,
    pending: VecDeque<Command>,
    /// Id of the running program.
    running: Option<u64>,
    /// Id of the first program that has not ended.
    next_run: u64,
    /// Ids of the programs that were cancelled before they ended.
    cancelled: HashSet<u64>,
    /// Answers for the running program, by mailbox.
    answers: HashMap<usize, Box<[f32]>>,
    /// When the answer of the last merge arrived.
    answered: Option<Instant>,
    /// The time just before the last post was sent.
    posted: Option<Instant>,
    closing: bool,
    /// The first error of a refill or row copy. They have no handle, so the next finish reports it.
    failed: Option<Error>,
    /// State of the random delays.
    random: u64,
}

impl Worker {
    pub(crate) fn new(shared: Arc<DeviceState>, inbox: Receiver<Message>, queue: u64) -> Worker {
        let random = shared.options.seed ^ queue.rotate_left(32);
        Worker {
            shared,
            inbox,
            pending: VecDeque::new(),
            running: None,
            next_run: 0,
            cancelled: HashSet::new(),
            answers: HashMap::new(),
            answered: None,
            posted: None,
            closing: false,
            failed: None,
            random,
        }
    }

    /// Runs the queue until it is closed or the device is lost.
    pub(crate) fn run(mut self) {
        loop {
            let ready = |worker: &Worker| worker.closing || !worker.pending.is_empty();
            if let Err(Error::DeviceLost { .. }) = self.wait(None, ready) {
                return;
            }
            let Some(command) = self.pending.pop_front() else { return };
            self.serve(command);
        }
    }

    /// Runs one command. Drops the command's tensors before it reports the end, so that their
    /// memory is free when the caller's wait ends. A failed report only means that the caller has
    /// dropped its receiver.
    fn serve(&mut self, command: Command) {
        match command {
            Command::Replay { id, program, cuts, events } => {
                self.running = Some(id);
                let mut watch = cuts.map(Stopwatch::new);
                let result = self.replay(&program, &events, watch.as_mut());
                drop(program);
                self.answers.clear();
                self.cancelled.remove(&id);
                self.running = None;
                self.next_run = id + 1;
                let times = watch.map(|watch| watch.times).unwrap_or_default();
                let _ = events.send(Event::End(result, times));
            }
            Command::Upload { src, dst, reply } => {
                let result = self.copy(|| {
                    let start = span(&dst).start;
                    let bytes = src.bytes();
                    buffer(&dst)
                        .write(|out| out[start..start + bytes.len()].copy_from_slice(bytes));
                    Ok(())
                });
                drop(dst);
                let _ = reply.send(result.map(|()| src));
            }
            Command::Download { src, mut dst, reply } => {
                let result = self.copy(|| {
                    let start = span(&src).start;
                    let out = dst.bytes_mut();
                    buffer(&src)
                        .read(|bytes| out.copy_from_slice(&bytes[start..start + out.len()]));
                    Ok(())
                });
                drop(src);
                let _ = reply.send(result.map(|()| dst));
            }
            Command::Refill { pack, slots, bytes } => {
                let slots = pack.buffer_rows(slots);
                let result = self.copy(|| {
                    let desc = pack.whole();
                    buffer(&pack).write(|out| hal::pack::refill_plain(&desc, out, slots, &bytes))
                });
                self.failed = self.failed.take().or(result.err());
            }
            Command::Repack { src, dst, reply } => {
                let result = self.copy(|| {
                    buffer(&dst).write(|out| out.copy_from_slice(src.bytes()));
                    Ok(())
                });
                drop(dst);
                let _ = reply.send(result.map(|()| src));
            }
            Command::CopyRows { src, dst } => {
                let result = self.copy(|| {
                    let bytes = buffer(&src).read(|bytes| bytes[span(&src)].to_vec());
                    buffer(&dst).write(|out| out[span(&dst)].copy_from_slice(&bytes));
                    Ok(())
                });
                self.failed = self.failed.take().or(result.err());
            }
            Command::Finish { reply } => {
                let _ = reply.send(self.failed.take().map_or(Ok(()), Err));
            }
        }
    }

    fn replay(
        &mut self,
        program: &SimProgram,
        events: &Sender<Event>,
        mut watch: Option<&mut Stopwatch>,
    ) -> Result<()> {
        // Each op is timed from the end of the op before it, so a delay of this thread by the
        // operating system counts towards the next op.
        let mut begin = Instant::now();
        for (i, op) in program.ops.iter().enumerate() {
            self.run_item(WorkItem::Op(op.name()), |worker| match op.hand_off() {
                Some(HandOff::Post(op)) => {
                    // Sending fails if the host dropped the run. The host then also sent `Cancel`,
                    // which the next wait receives.
                    let shape = &program.mailboxes[op.mailbox];
                    worker.posted = Some(Instant::now());
                    let _ = events.send(Event::Post(post(op, shape)));
                    Ok(())
                }
                Some(HandOff::Merge(op)) => worker.merge(op),
                None => execute(op, &SimMemory),
            })?;
            let posted = self.posted.filter(|_| matches!(op, Op::Post(_)));
            let end = posted.unwrap_or_else(Instant::now);
            if let Some(watch) = watch.as_deref_mut() {
                let answered = self.answered.filter(|_| matches!(op, Op::Merge(_)));
                watch.record(i, answered.unwrap_or(begin), end);
            }
            begin = end;
        }
        Ok(())
    }

    fn copy(&mut self, copy: impl FnOnce() -> Result<()>) -> Result<()> {
        self.run_item(WorkItem::Copy, |_| copy())
    }

    /// Runs one work item after its delay, with any injected failure. A panic loses the device.
    fn run_item(
        &mut self,
        kind: WorkItem,
        work: impl FnOnce(&mut Worker) -> Result<()>,
    ) -> Result<()> {
        let until = Instant::now() + self.delay();
        let unless_copy = |waited: Result<()>| match waited {
            // A closing queue cuts the delays of its copies short but completes the copies.
            Err(Error::Cancelled) if kind == WorkItem::Copy => Ok(()),
            waited => waited,
        };
        unless_copy(self.wait(Some(until), |_| false))?;
        let (fault, resumed) = self.shared.next_work();
        match fault {
            Some(Fault::Lose) => {
                return Err(self.shared.mark_lost("lost after the set number of work items"));
            }
            Some(Fault::Hang) => {
                unless_copy(self.wait(None, |worker| worker.shared.n_resumed() != resumed))?;
            }
            Some(Fault::Panic) | None => {}
        }
        self.shared.count_start(kind);
        let result = catch_unwind(AssertUnwindSafe(|| {
            if fault == Some(Fault::Panic) {
                // Not `panic!`: its message on stderr would look like a failed test.
                resume_unwind(Box::new("injected panic".to_owned()));
            }
            work(self)
        }));
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("no message");
            let item = match kind {
                WorkItem::Op(name) => name,
                WorkItem::Copy => "a copy",
            };
            Err(self.shared.mark_lost(&format!("the queue's thread panicked in {item}: {text}")))
        })
    }

    fn delay(&mut self) -> Duration {
        // splitmix64
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^= bits >> 31;
        let range = &self.shared.options.delay;
        let width = range.end.saturating_sub(range.start).as_nanos() as u64;
        match width {
            0 => range.start,
            _ => range.start + Duration::from_nanos(bits % width),
        }
    }

    /// Reads the inbox until `ready` returns true or the time `until` is reached. Fails with
    /// [`Error::DeviceLost`] when the device is lost, and with [`Error::Cancelled`] when the
    /// running program is cancelled or the queue closes.
    fn wait(&mut self, until: Option<Instant>, ready: impl Fn(&Worker) -> bool) -> Result<()> {
        loop {
            while let Ok(message) = self.inbox.try_recv() {
                self.accept(message);
            }
            self.shared.check()?;
            if self.closing || self.running.is_some_and(|run| self.cancelled.contains(&run)) {
                return Err(Error::Cancelled);
            }
            if ready(self) {
                return Ok(());
            }
            let message = match until {
                None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(());
                    }
                    if left < SHORTEST_SLEEP {
                        std::thread::yield_now();
                        continue;
                    }
                    self.inbox.recv_timeout(left)
                }
            };
            match message {
                Ok(message) => self.accept(message),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => self.closing = true,
            }
        }
    }

    fn accept(&mut self, message: Message) {
        match message {
            Message::Command(command) => self.pending.push_back(command),
            Message::Answer { run, mailbox, y } => {
                if self.running == Some(run) {
                    self.answers.insert(mailbox, y);
                }
            }
            Message::Cancel { run } => {
                if run >= self.next_run {
                    self.cancelled.insert(run);
                }
            }
            Message::Wake => {}
            Message::Close => self.closing = true,
        }
    }

    fn merge(&mut self, op: &Merge<Tensor>) -> Result<()> {
        self.wait(None, |worker| worker.answers.contains_key(&op.mailbox))?;
        self.answered = Some(Instant::now());
        let answer = self.answers.remove(&op.mailbox).expect("the worker waited for this answer");
        let n = n_tokens(&op.batch) * op.y.desc().n_cols;
        assert_eq!(answer.len(), n, "floats in the answer");
        let span = span(&op.y);
        buffer(&op.y).write(|bytes| {
            let y: &mut [f32] = bytemuck::cast_slice_mut(&mut bytes[span]);
            for (y, answer) in y[..n].iter_mut().zip(&answer) {
                *y = if op.accumulate { *y + answer } else { *answer };
            }
        });
        Ok(())
    }
}

/// Records when the parts of a program run.
struct Stopwatch {
    cuts: Box<[usize]>,
    times: Vec<PartTime>,
}

impl Stopwatch {
    fn new(cuts: Box<[usize]>) -> Stopwatch {
        Stopwatch { cuts, times: Vec::new() }
    }

    fn record(&mut self, i: usize, begin: Instant, end: Instant) {
        let part = self.cuts.partition_point(|cut| *cut <= i);
        match self.times.last_mut().filter(|time| time.parts.start == part) {
            Some(time) => time.end = end,
            None => self.times.push(PartTime { parts: part..part + 1, begin, end }),
        }
    }
}

/// Number of tokens of the step, without padding.
fn n_tokens(batch: &Batch<Tensor>) -> usize {
    let span = span(&batch.words);
    buffer(&batch.words)
        .read(|bytes| BatchView::new(bytemuck::cast_slice(&bytes[span]), batch.shape).n_tokens())
}

/// The data of a post: `x` and the router weights of all tokens except padding, and the rows to
/// compute.
fn post(op: &Post<Tensor>, shape: &MailboxShape) -> queue::Post {
    let n_tokens = n_tokens(&op.batch);
    let first = |tensor: &Tensor| -> Vec<f32> {
        let (n, span) = (n_tokens * tensor.desc().n_cols, span(tensor));
        buffer(tensor).read(|bytes| bytemuck::cast_slice(&bytes[span])[..n].to_vec())
    };
    let (x, weights) = (first(&op.x), op.weights.as_ref().map(first).unwrap_or_default());
    let rows = op.rows.as_ref().map(|set| host_set(set, n_tokens));
    let n_rows = rows.as_ref().map_or(0, |set| set.ids.len());
    assert!(
        n_tokens <= shape.max_tokens && n_rows <= shape.max_rows,
        "{n_tokens} tokens and {n_rows} rows do not fit {shape:?}"
    );
    queue::Post { mailbox: op.mailbox, n_tokens, x, rows, weights }
}

/// A row set in host memory: its valid rows, and the membership words of the step's tokens.
fn host_set(set: &RowSet<Tensor>, n_tokens: usize) -> HostRowSet {
    let u32s = |tensor: &Tensor| -> Vec<u32> {
        buffer(tensor).read(|bytes| bytemuck::cast_slice(&bytes[span(tensor)]).to_vec())
    };
    let count = u32s(&set.count)[0] as usize;
    let mut ids = u32s(&set.ids);
    assert!(count <= ids.len(), "{count} rows in a set of {}", ids.len());
    ids.truncate(count);
    let words = n_tokens.div_ceil(32);
    let stored = set.members.desc().n_cols;
    let members = u32s(&set.members);
    let members = members.chunks_exact(stored).take(count).flat_map(|row| &row[..words]);
    HostRowSet { ids, members: members.copied().collect(), words }
}
