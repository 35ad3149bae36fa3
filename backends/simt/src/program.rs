//! Programs: the launches of a step, in one submission or split at hand-offs.

use std::sync::Arc;

use hal::op::{Merge, Post};
use hal::{Op, Operand, RawMailbox, RawProgram, Result, Tensor};

use crate::buffer::{Memory, Span, plain};
use crate::card::{Card, Kernels};
use crate::driver::{Arg, Driver, Geometry};
use crate::lowering::{Launch, Lowering, Room, ptr, word};
use crate::mailbox::{COUNT, SimtMailbox, mailbox};
use crate::ops;
use crate::stream::Stream;
use crate::units::Unit;

/// Maximum number of tokens of a step that runs as a graph and whose answers the device waits for
/// itself: for larger steps the host computes for seconds.
const MOST_IN_GRAPH: usize = 16;

/// Whether an op belongs to such a small step.
fn is_small(op: &Op) -> bool {
    let mut small = true;
    op.visit(&mut |operand, _, tensor| {
        small &= !["x", "y"].contains(&operand) || tensor.desc().n_rows <= MOST_IN_GRAPH;
    });
    small
}

/// Header words of a program's state on the device, before those of its posts.
const STEP_WORDS: usize = 2;

/// A launch whose kernel is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Ready<D: Driver> {
    pub(crate) function: D::Function,
    pub(crate) geometry: Geometry,
    pub(crate) args: Vec<Arg>,
}

/// A compiled program. The ops hold the tensors.
#[derive(Debug)]
pub(crate) struct SimtProgram<D: Driver>(pub(crate) Arc<Steps<D>>);

impl<D: Driver> RawProgram for SimtProgram<D> {}

/// The segments of a program.
#[derive(Debug)]
pub(crate) struct Steps<D: Driver> {
    pub(crate) segments: Vec<Segment<D>>,
    /// In the order of the program.
    pub(crate) posts: Vec<PostOf<D>>,
    /// Mailboxes of the merges, with their indices.
    pub(crate) merges: Vec<(usize, Arc<SimtMailbox<D>>)>,
    /// Whether the device waits for answers itself.
    pub(crate) flags: bool,
    /// The step's number, the number of the last step with a timed-out wait, then a counter for
    /// each post.
    pub(crate) step: Span,
    _memory: Vec<Memory<D>>,
    _kernels: Arc<Kernels<D>>,
    _ops: Vec<Op>,
    _workspace: Option<Tensor>,
}

/// The content of one submission.
#[derive(Debug)]
pub(crate) struct Segment<D: Driver> {
    /// The mailbox whose answer it starts with; `None` if the device waits itself.
    pub(crate) merge: Option<usize>,
    pub(crate) launches: Vec<Step<D>>,
    pub(crate) graph: Option<D::Graph>,
}

/// A launch in a program.
#[derive(Debug)]
pub(crate) struct Step<D: Driver> {
    /// Index of its op.
    pub(crate) op: usize,
    /// Whether it only waits for an answer.
    pub(crate) waits: bool,
    pub(crate) ready: Ready<D>,
}

/// A post of a program.
#[derive(Debug)]
pub(crate) struct PostOf<D: Driver> {
    pub(crate) index: usize,
    pub(crate) mailbox: Arc<SimtMailbox<D>>,
    /// Rows of x: the most tokens of this program.
    pub(crate) n_rows: usize,
    /// Words of membership per row of the list that is sent.
    pub(crate) row_words: Option<usize>,
    /// The segment that contains it.
    pub(crate) segment: usize,
    /// Number of merges before it.
    pub(crate) n_merged: usize,
}

/// Holds the constant words that a program reads.
#[derive(Debug)]
struct Words<'a, D: Driver> {
    card: &'a Card<D>,
    memory: Vec<Memory<D>>,
}

impl<D: Driver> Room for Words<'_, D> {
    fn keep(&mut self, words: &[u32]) -> Result<Span> {
        let len = 4 * words.len().max(4) as u64;
        let memory = Memory::new(&self.card.driver, "constants", len)?;
        let span = memory.span();
        self.card.bring(span, 0, bytemuck::cast_slice(words))?;
        self.memory.push(memory);
        Ok(span)
    }
}

impl<D: Driver> Segment<D> {
    fn new(merge: Option<usize>) -> Segment<D> {
        Segment { merge, launches: Vec::new(), graph: None }
    }

    /// Submits all launches to a stream.
    pub(crate) fn give(&self, stream: &Stream<D>) -> Result<()> {
        match &self.graph {
            Some(graph) => stream.launch_graph(graph),
            None => self.launches.iter().try_for_each(|step| stream.launch(&step.ready)),
        }
    }
}

/// The lowered program before it is split into segments.
struct Compiled<D: Driver> {
    segments: Vec<Segment<D>>,
    posts: Vec<PostOf<D>>,
    merges: Vec<(usize, Arc<SimtMailbox<D>>)>,
}

impl<D: Driver> SimtProgram<D> {
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device, errors of the driver.
    pub(crate) fn new(
        card: &Card<D>,
        ops: &[Op],
        mailboxes: &[Arc<dyn RawMailbox>],
        workspace: Option<&Tensor>,
    ) -> Result<SimtProgram<D>> {
        // Uploads that the program reads must have arrived.
        card.arrived()?;
        let n_posts = ops.iter().filter(|op| matches!(op, Op::Post(_))).count();
        let mut room = Words { card, memory: Vec::new() };
        let step = room.keep(&vec![0; STEP_WORDS + n_posts])?;
        // Without graphs, a device queues only a few hundred launches behind a wait.
        let flags = card.submission.flags && card.submission.graphs && ops.iter().all(is_small);
        let wait_limit = flags.then_some(card.submission.wait_limit.as_millis() as usize);
        let facts = &card.checked.facts;
        let mut lowering = Lowering::new(facts, card.tables.span(), workspace, &mut room);
        let mut made =
            Compiled { segments: vec![Segment::new(None)], posts: vec![], merges: vec![] };
        let (mut number, mut launches) = (0, Vec::new());
        while let Some(op) = ops.get(number) {
            if let Op::Post(op) = op {
                post(op, mailboxes, step, &mut made, &mut lowering)?;
            }
            if let Op::Merge(op) = op {
                merge(op, mailboxes, step, wait_limit, &mut made, &mut lowering)?;
            }
            let n = ops::lower_first(&ops[number..], &mut lowering)?;
            let segment = made.segments.len() - 1;
            launches.extend(lowering.take().into_iter().map(|launch| (segment, number, launch)));
            number += n;
        }
        card.load(&launches.iter().map(|(_, _, launch)| launch.unit.clone()).collect())?;
        for (segment, number, launch) in launches {
            made.segments[segment].launches.push(ready(card, number, launch)?);
        }
        card.arrived()?;
        let Compiled { mut segments, posts, merges } = made;
        // A prefill step spends its time in kernels, and a graph of it would still take memory.
        if card.submission.graphs && ops.iter().all(is_small) {
            let stream = Stream::new(&card.driver)?;
            for segment in segments.iter_mut().filter(|segment| segment.launches.len() > 1) {
                segment.graph = Some(stream.capture(|| segment.give(&stream))?);
            }
        }
        Ok(SimtProgram(Arc::new(Steps {
            segments,
            posts,
            merges,
            flags,
            step,
            _memory: room.memory,
            _kernels: card.kernels(),
            _ops: ops.to_vec(),
            _workspace: workspace.cloned(),
        })))
    }
}

fn ready<D: Driver>(card: &Card<D>, op: usize, launch: Launch) -> Result<Step<D>> {
    let Launch { unit, kernel, geometry, args } = launch;
    let function = card.function(&unit, kernel)?;
    Ok(Step { op, waits: kernel == WAIT, ready: Ready { function, geometry, args } })
}

/// The kernel that waits for an answer.
const WAIT: &str = "merge_wait";
/// Threads of a block that copies.
const BLOCK: usize = 256;

/// Number of blocks to copy `n_words`, four words per thread; not more than needed to saturate the
/// bus.
fn copying(n_words: usize) -> usize {
    n_words.div_ceil(4 * BLOCK).clamp(1, 32)
}

fn post<D: Driver>(
    op: &Post<Tensor>,
    mailboxes: &[Arc<dyn RawMailbox>],
    step: Span,
    made: &mut Compiled<D>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let mailbox = mailbox::<D>(mailboxes, op.mailbox)?;
    let (x, places) = (op.x.desc(), mailbox.places);
    let mut row_words = None;
    let [mut ids, mut count, mut members] = [Span::NONE; 3];
    let (mut capacity, mut held) = (0, 0);
    if let Some(set) = &op.rows {
        (ids, count, members) = (plain(&set.ids)?, plain(&set.count)?, plain(&set.members)?);
        let desc = set.members.desc();
        (capacity, held) = (desc.n_rows.min(mailbox.shape.max_rows), desc.n_cols);
        row_words = Some(held.min(mailbox.words()));
    }
    let n_weights = op.weights.as_ref().map_or(0, |weights| weights.desc().n_cols);
    let sent = row_words.unwrap_or(0);
    let n_words = x.n_rows * (x.n_cols + n_weights) + capacity * (1 + sent);
    let arrived = step.part(4 * (STEP_WORDS + made.posts.len()) as u64, 4);
    let args = [
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.x)?),
        word(x.n_cols),
        word(x.n_rows),
        ptr(out.maybe(op.weights.as_ref())?),
        word(n_weights),
        ptr(ids),
        ptr(count),
        ptr(members),
        word(capacity),
        word(held),
        word(sent),
        ptr(mailbox.span(0)),
        word(COUNT),
        word(places.x),
        word(places.weights),
        word(places.ids),
        word(places.members),
        ptr(step),
        ptr(arrived),
    ];
    out.launch(Unit::plain("post"), "post", [copying(n_words), 1, 1], BLOCK as u32, &args);
    made.posts.push(PostOf {
        index: op.mailbox,
        mailbox,
        n_rows: x.n_rows,
        row_words,
        segment: made.segments.len() - 1,
        n_merged: made.merges.len(),
    });
    Ok(())
}

/// With `wait_limit` (milliseconds) the device waits itself, otherwise a segment begins here.
fn merge<D: Driver>(
    op: &Merge<Tensor>,
    mailboxes: &[Arc<dyn RawMailbox>],
    step: Span,
    wait_limit: Option<usize>,
    made: &mut Compiled<D>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let mailbox = mailbox::<D>(mailboxes, op.mailbox)?;
    let (y, unit) = (op.y.desc(), Unit::plain("merge"));
    match wait_limit {
        Some(limit) => {
            let (head, given_up) = (mailbox.span(mailbox.places.head), step.part(4, 4));
            let args = [ptr(head), ptr(step), ptr(given_up), word(limit)];
            out.launch(unit.clone(), WAIT, [1; 3], 64, &args);
        }
        None => made.segments.push(Segment::new(Some(op.mailbox))),
    }
    let args = [
        ptr(mailbox.span(mailbox.places.answer)),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.y)?),
        word(y.n_rows),
        word(y.n_cols),
        Arg::U32(u32::from(op.accumulate)),
    ];
    let grid = [(y.n_rows * y.n_cols).div_ceil(4 * BLOCK), 1, 1];
    out.launch(unit, "merge_add", grid, BLOCK as u32, &args);
    made.merges.push((op.mailbox, mailbox));
    Ok(())
}
