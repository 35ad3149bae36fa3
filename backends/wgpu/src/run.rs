//! A running program: submits segments as answers arrive, maps posts and hands them to the host.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hal::{Error, HostRowSet, PostedData, RawRun, Result, Times};

use crate::copies::{request_mapping, wait_for_mapping};
use crate::error::driver;
use crate::gpu::{Gpu, Submission};
use crate::program::{ProgramCore, Segment};
use crate::queue::QueueCore;
use crate::timer::Timer;

/// Progress of a run: the queue submits its segments, and its owner answers its posts.
#[derive(Debug)]
pub(crate) struct Progress {
    program: Arc<ProgramCore>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The next segment to submit.
    next: usize,
    /// The next segment, if it is already encoded.
    encoded: Option<EncodedSegment>,
    /// Present if the run is timed.
    timer: Option<Timer>,
    /// Mailboxes whose answers have arrived.
    answered: Vec<usize>,
    /// Posts that were submitted and not yet handed to the host.
    posts: VecDeque<SentPost>,
    last: Option<Submission>,
    cancelled: bool,
}

/// An encoded segment, and the number of timed passes in earlier segments.
#[derive(Debug)]
struct EncodedSegment {
    commands: wgpu::CommandBuffer,
    n_passes: usize,
}

impl State {
    /// The commands of the next segment, which is `segment` of the program: those that are encoded
    /// already, or new ones.
    fn take_encoded(
        &mut self,
        gpu: &Gpu,
        program: &ProgramCore,
        segment: &Segment,
    ) -> EncodedSegment {
        if let Some(encoded) = self.encoded.take() {
            return encoded;
        }
        let is_first = self.next == 0 && self.timer.is_none();
        if let Some(commands) = is_first.then(|| program.take_ahead()).flatten() {
            gpu.add_encoded_ahead();
            return EncodedSegment { commands, n_passes: 0 };
        }
        self.encode(gpu, segment, &program.label)
    }

    fn encode(&mut self, gpu: &Gpu, segment: &Segment, label: &str) -> EncodedSegment {
        let n_passes = self.timer.as_ref().map_or(0, Timer::n_passes);
        EncodedSegment { commands: segment.encode(gpu, label, self.timer.as_mut()), n_passes }
    }
}

/// A post that the device copies to its mailbox.
#[derive(Debug)]
struct SentPost {
    segment: usize,
    submission: Submission,
    mapped: Receiver<std::result::Result<(), wgpu::BufferAsyncError>>,
}

impl Progress {
    pub(crate) fn new(program: &Arc<ProgramCore>, timer: Option<Timer>) -> Progress {
        let state = State { timer, ..State::default() };
        Progress { program: Arc::clone(program), state: Mutex::new(state) }
    }

    pub(crate) fn program(&self) -> &Arc<ProgramCore> {
        &self.program
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits segments until one waits for the host's answer. Returns false then, and true once
    /// all are submitted or the run is cancelled.
    pub(crate) fn submit(&self, gpu: &Gpu) -> Result<bool> {
        let mut state = self.lock();
        while let Some(segment) = self.program.segments.get(state.next) {
            if state.cancelled {
                return Ok(true);
            }
            if segment.merge.as_ref().is_some_and(|(m, _)| !state.answered.contains(m)) {
                return Ok(false);
            }
            let EncodedSegment { commands, n_passes } =
                state.take_encoded(gpu, &self.program, segment);
            gpu.add_dispatches(segment.n_dispatches());
            let at = state.timer.is_some().then(Instant::now);
            let submission = gpu.submit(Some(commands));
            if let (Some(timer), Some(at)) = (&mut state.timer, at) {
                timer.submitted(gpu, segment.ops.clone(), n_passes, at);
            }
            gpu.health.check()?;
            if let Some(post) = &segment.post {
                let mapped = request_mapping(&post.mailbox.out);
                let sent = SentPost { segment: state.next, submission: submission.clone(), mapped };
                state.posts.push_back(sent);
            }
            state.last = Some(submission);
            state.next += 1;
        }
        Ok(true)
    }

    /// Encodes the next segment, so that it can be submitted as soon as the answer arrives.
    fn prepare(&self, gpu: &Gpu) {
        let mut state = self.lock();
        let segment = self.program.segments.get(state.next);
        if let (Some(segment), None, false) = (segment, &state.encoded, state.cancelled) {
            state.encoded = Some(state.encode(gpu, segment, &self.program.label));
        }
    }
}

#[derive(Debug)]
pub(crate) struct WgpuRun {
    core: Arc<QueueCore>,
    progress: Arc<Progress>,
    open: Option<OpenPost>,
}

/// A post that was handed to the host, which owns the mailbox until [`WgpuRun::release_mailbox`].
#[derive(Debug)]
struct OpenPost {
    segment: usize,
    readable: Option<ReadablePost>,
}

#[derive(Debug)]
struct ReadablePost {
    view: wgpu::BufferView,
    rows: Option<HostRowSet>,
}

/// The next post, or the end of the run with its last submission.
enum NextEvent {
    Post(SentPost),
    End(Option<Submission>),
}

impl WgpuRun {
    pub(crate) fn new(core: &Arc<QueueCore>, progress: Arc<Progress>) -> WgpuRun {
        WgpuRun { core: Arc::clone(core), progress, open: None }
    }

    fn post(&self, segment: usize) -> Result<&crate::ops::PostCopies> {
        let segment: Option<&Segment> = self.progress.program.segments.get(segment);
        let post = segment.and_then(|segment| segment.post.as_ref());
        post.ok_or_else(|| driver("next_post", "the segment has no post"))
    }

    /// Returns the mailbox to the device.
    fn release_mailbox(&mut self) {
        let Some(OpenPost { segment, readable }) = self.open.take() else { return };
        let rows = readable.and_then(|readable| readable.rows);
        if let Ok(post) = self.post(segment) {
            post.mailbox.out.unmap();
            if let Some(rows) = rows {
                *post.mailbox.rows.lock().unwrap_or_else(PoisonError::into_inner) = rows;
            }
        }
    }

    /// Waits for the end of the run. Meanwhile the next replays are encoded.
    fn wait_for_end(&self, last: Option<Submission>) -> Result<()> {
        let Some(last) = last else { return Ok(()) };
        self.core.encode_ahead();
        self.core.gpu.wait(&last)
    }

    fn next(&self) -> Result<NextEvent> {
        self.core.wait_until(|_| {
            let mut state = self.progress.lock();
            if state.cancelled {
                return Err(Error::Cancelled);
            }
            if let Some(sent) = state.posts.pop_front() {
                return Ok(Some(NextEvent::Post(sent)));
            }
            let segments = &self.progress.program.segments;
            let Some(segment) = segments.get(state.next) else {
                return Ok(Some(NextEvent::End(state.last.clone())));
            };
            // The caller skipped the post before this merge, so no answer will arrive.
            let waits = segment.merge.as_ref().is_some_and(|(m, _)| !state.answered.contains(m));
            if waits && state.last.is_some() { Err(Error::Cancelled) } else { Ok(None) }
        })
    }

    /// Reads the row list of a post, which has `n_words` membership words per row.
    fn read_rows(
        post: &crate::ops::PostCopies,
        n_words: usize,
        bytes: &[u8],
        n_tokens: usize,
    ) -> Result<HostRowSet> {
        let offsets = post.mailbox.offsets();
        let word = |at: u64| bytes_to_word(bytes, at as usize);
        let count = (word(offsets.count) as usize).min(post.mailbox.shape.max_rows);
        let mut shared = post.mailbox.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = std::mem::take(&mut *shared);
        rows.words = n_tokens.div_ceil(32);
        rows.ids.clear();
        rows.members.clear();
        let ids: &[u32] = cast(&bytes[offsets.ids as usize..][..4 * count])?;
        rows.ids.extend_from_slice(ids);
        let members: &[u32] = cast(&bytes[offsets.members as usize..][..4 * count * n_words])?;
        for row in members.chunks_exact(n_words.max(1)) {
            rows.members.extend_from_slice(&row[..rows.words]);
        }
        Ok(rows)
    }
}

fn bytes_to_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reinterprets mapped memory.
fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Result<&[T]> {
    bytemuck::try_cast_slice(bytes).map_err(|error| driver("map", error.to_string()))
}

impl RawRun for WgpuRun {
    fn next_post(&mut self) -> Result<Option<PostedData<'_>>> {
        self.release_mailbox();
        let sent = match self.next()? {
            NextEvent::Post(sent) => sent,
            NextEvent::End(last) => {
                self.wait_for_end(last)?;
                return Ok(None);
            }
        };
        // From here on, `release_mailbox` returns the mailbox even after an error.
        self.open = Some(OpenPost { segment: sent.segment, readable: None });
        let gpu = &self.core.gpu;
        self.progress.prepare(gpu);
        let post = self.post(sent.segment)?;
        let out = &post.mailbox.out;
        let view = wait_for_mapping(gpu, out, &sent.submission, &sent.mapped)?;
        let n_tokens = (bytes_to_word(&view, 0) as usize).min(post.n_rows);
        let rows = post.row_words.map(|n_words| WgpuRun::read_rows(post, n_words, &view, n_tokens));
        let rows = rows.transpose()?;
        let (mailbox, shape, offsets) = (post.index, post.mailbox.shape, post.mailbox.offsets());
        let open = self.open.insert(OpenPost { segment: sent.segment, readable: None });
        let readable = open.readable.insert(ReadablePost { view, rows });
        let floats = |at: u64, n: usize| cast(&readable.view[at as usize..][..4 * n]);
        Ok(Some(PostedData {
            mailbox,
            n_tokens,
            x: floats(offsets.x, n_tokens * shape.n_in)?,
            rows: readable.rows.as_ref(),
            weights: floats(offsets.weights, n_tokens * shape.n_weights)?,
        }))
    }

    fn answer(&mut self, mailbox: usize, y: &[f32]) -> Result<()> {
        self.release_mailbox();
        self.core.gpu.health.check()?;
        let merges = self.progress.program.segments.iter().filter_map(|s| s.merge.as_ref());
        if let Some((_, target)) = merges.into_iter().find(|(index, _)| *index == mailbox) {
            target.write_answer(&self.core.gpu, y);
        }
        self.progress.lock().answered.push(mailbox);
        self.core.advance()
    }

    fn wait(&mut self) -> Result<()> {
        self.release_mailbox();
        match self.next()? {
            NextEvent::Post(sent) => {
                self.open = Some(OpenPost { segment: sent.segment, readable: None });
                self.cancel();
                Err(Error::Cancelled)
            }
            NextEvent::End(last) => self.wait_for_end(last),
        }
    }

    fn times(&mut self) -> Result<Times> {
        let timer = self.progress.lock().timer.take();
        let Some(mut timer) = timer else { return Ok(Times::none()) };
        let (times, stamps) = timer.times(&self.core.gpu)?;
        self.core.return_stamps(stamps);
        Ok(times)
    }

    fn cancel(&mut self) {
        self.release_mailbox();
        let mut state = self.progress.lock();
        state.encoded = None;
        // Unmaps before the run counts as cancelled, since later runs may copy into the same
        // mailboxes.
        for sent in std::mem::take(&mut state.posts) {
            if let Ok(post) = self.post(sent.segment) {
                post.mailbox.out.unmap();
            }
        }
        state.cancelled = true;
        drop(state);
        // Submits the work queued behind this run; an error is reported to the next caller.
        let _ = self.core.advance();
    }
}

impl Drop for WgpuRun {
    fn drop(&mut self) {
        self.cancel();
    }
}
