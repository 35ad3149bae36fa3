//! Programs: the launches of a step, in one submission or split at hand-offs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hal::op::{Merge, Post};
use hal::{Op, Operand, RawMailbox, RawProgram, Result, Tensor};

use crate::buffer::{Memory, Span, plain};
use crate::card::{Card, Kernels};
use crate::driver::{Arg, Driver, Geometry};
use crate::lowering::{ConstantStore, Launch, Lowering, ptr, word};
use crate::mailbox::{LIST_LENGTH, SimtMailbox, mailbox};
use crate::stream::Stream;
use crate::units::Unit;

/// Maximum number of tokens of a step that runs as a graph and in which the device itself waits for
/// answers: in larger steps the host may need seconds to answer.
const MAX_TOKENS_IN_GRAPH: usize = 16;

/// Whether an op belongs to a step of at most [`MAX_TOKENS_IN_GRAPH`] tokens.
fn is_small(op: &Op) -> bool {
    let mut small = true;
    op.visit(&mut |operand, _, tensor| {
        small &= !["x", "y"].contains(&operand) || tensor.desc().n_rows <= MAX_TOKENS_IN_GRAPH;
    });
    small
}

/// Header words of a program's state on the device, before the counters of its posts.
const STEP_WORDS: usize = 2;

/// A launch whose kernel is loaded.
#[derive(Clone, Debug)]
pub(crate) struct LoadedLaunch<D: Driver> {
    pub(crate) function: D::Function,
    pub(crate) geometry: Geometry,
    pub(crate) args: Vec<Arg>,
}

#[derive(Debug)]
pub(crate) struct SimtProgram<D: Driver>(pub(crate) Arc<ProgramCore<D>>);

impl<D: Driver> RawProgram for SimtProgram<D> {
    fn units(&self) -> Vec<String> {
        self.0.units.clone()
    }
}

/// The segments of a program, and everything that they access.
#[derive(Debug)]
pub(crate) struct ProgramCore<D: Driver> {
    pub(crate) segments: Vec<Segment<D>>,
    /// The posts, in the order of the program.
    pub(crate) posts: Vec<ProgramPost<D>>,
    /// Mailboxes of the merges, with their indices.
    pub(crate) merges: Vec<(usize, Arc<SimtMailbox<D>>)>,
    /// Whether the device itself waits for answers.
    pub(crate) flags: bool,
    /// Device words: the step's number, the number of the last step with a timed-out wait, then a
    /// counter for each post.
    pub(crate) step: Span,
    /// Names of the kernel files, each once.
    units: Vec<String>,
    _memory: Vec<Memory<D>>,
    _kernels: Arc<Kernels<D>>,
    _ops: Vec<Op>,
    _workspace: Option<Tensor>,
}

/// The launches of one submission.
#[derive(Debug)]
pub(crate) struct Segment<D: Driver> {
    /// Index of the mailbox whose answer must arrive before this segment is submitted; `None` for
    /// the first segment.
    pub(crate) merge: Option<usize>,
    pub(crate) launches: Vec<ProgramLaunch<D>>,
    pub(crate) graph: Option<D::Graph>,
}

#[derive(Debug)]
pub(crate) struct ProgramLaunch<D: Driver> {
    /// Index of its op.
    pub(crate) op: usize,
    /// Whether the kernel only waits for an answer.
    pub(crate) waits: bool,
    pub(crate) loaded: LoadedLaunch<D>,
}

#[derive(Debug)]
pub(crate) struct ProgramPost<D: Driver> {
    pub(crate) index: usize,
    pub(crate) mailbox: Arc<SimtMailbox<D>>,
    /// Rows of x: the maximum number of tokens of this program.
    pub(crate) n_rows: usize,
    /// Membership words per row of the posted list; `None` if no list is posted.
    pub(crate) row_words: Option<usize>,
    /// Index of the segment that contains the post.
    pub(crate) segment: usize,
    /// Number of merges before the post.
    pub(crate) n_merged: usize,
}

#[derive(Debug)]
struct ProgramConstants<'a, D: Driver> {
    card: &'a Card<D>,
    memory: Vec<Memory<D>>,
}

impl<D: Driver> ConstantStore for ProgramConstants<'_, D> {
    fn store(&mut self, words: &[u32]) -> Result<Span> {
        let len = 4 * words.len().max(4) as u64;
        let memory = Memory::new(&self.card.driver, "constants", len)?;
        let span = memory.span();
        self.card.upload(span, 0, bytemuck::cast_slice(words))?;
        self.memory.push(memory);
        Ok(span)
    }
}

impl<D: Driver> Segment<D> {
    fn new(merge: Option<usize>) -> Segment<D> {
        Segment { merge, launches: Vec::new(), graph: None }
    }

    pub(crate) fn submit(&self, stream: &Stream<D>) -> Result<()> {
        match &self.graph {
            Some(graph) => stream.launch_graph(graph),
            None => self.launches.iter().try_for_each(|launch| stream.launch(&launch.loaded)),
        }
    }
}

struct ProgramBuilder<D: Driver> {
    segments: Vec<Segment<D>>,
    posts: Vec<ProgramPost<D>>,
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
        card.wait_for_uploads()?;
        let n_posts = ops.iter().filter(|op| matches!(op, Op::Post(_))).count();
        let mut constants = ProgramConstants { card, memory: Vec::new() };
        let step = constants.store(&vec![0; STEP_WORDS + n_posts])?;
        // Without graphs the host could not submit a step behind a wait: a device queues only a few
        // hundred launches.
        let may_wait = card.submission.flags && !card.timed_out.load(Ordering::Relaxed);
        let flags = may_wait && card.submission.graphs && ops.iter().all(is_small);
        let wait_limit = flags.then_some(card.submission.wait_limit.as_millis() as usize);
        let facts = &card.checked.facts;
        let mut lowering = Lowering::new(facts, card.tables.span(), workspace, &mut constants);
        let mut builder =
            ProgramBuilder { segments: vec![Segment::new(None)], posts: vec![], merges: vec![] };
        let (mut number, mut launches) = (0, Vec::new());
        while let Some(op) = ops.get(number) {
            if let Op::Post(op) = op {
                post(op, mailboxes, step, &mut builder, &mut lowering)?;
            }
            if let Op::Merge(op) = op {
                merge(op, mailboxes, step, wait_limit, &mut builder, &mut lowering)?;
            }
            let n = lower::lower_first(&ops[number..], &mut lowering)?;
            let segment = builder.segments.len() - 1;
            launches.extend(lowering.take().into_iter().map(|launch| {
                let unit = card.avoided.used(launch.unit);
                (segment, number, Launch { unit, ..launch })
            }));
            number += n;
        }
        let units: BTreeSet<Unit> =
            launches.iter().map(|(_, _, launch)| launch.unit.clone()).collect();
        card.load(&units)?;
        let units = units.iter().map(|unit| unit.name().to_owned()).collect();
        for (segment, number, launch) in launches {
            builder.segments[segment].launches.push(load(card, number, launch)?);
        }
        card.wait_for_uploads()?;
        let ProgramBuilder { mut segments, posts, merges } = builder;
        // A prefill step would gain nothing, since it spends its time in kernels, and its graph
        // would take memory.
        if card.submission.graphs && ops.iter().all(is_small) {
            let stream = Stream::new(&card.driver)?;
            for segment in segments.iter_mut().filter(|segment| segment.launches.len() > 1) {
                segment.graph = Some(stream.capture(|| segment.submit(&stream))?);
            }
        }
        Ok(SimtProgram(Arc::new(ProgramCore {
            segments,
            posts,
            merges,
            flags,
            step,
            units,
            _memory: constants.memory,
            _kernels: card.kernels(),
            _ops: ops.to_vec(),
            _workspace: workspace.cloned(),
        })))
    }
}

fn load<D: Driver>(card: &Card<D>, op: usize, launch: Launch) -> Result<ProgramLaunch<D>> {
    let Launch { unit, kernel, geometry, args } = launch;
    let function = card.function(&unit, kernel)?;
    Ok(ProgramLaunch {
        op,
        waits: kernel == WAIT,
        loaded: LoadedLaunch { function, geometry, args },
    })
}

/// The kernel that waits for an answer.
const WAIT: &str = "merge_wait";
/// Threads per block of the post and merge kernels.
const BLOCK: usize = 256;

/// Number of blocks to copy `n_words`, four words per thread; 32 blocks saturate the bus.
fn n_copy_blocks(n_words: usize) -> usize {
    n_words.div_ceil(4 * BLOCK).clamp(1, 32)
}

fn post<D: Driver>(
    op: &Post<Tensor>,
    mailboxes: &[Arc<dyn RawMailbox>],
    step: Span,
    builder: &mut ProgramBuilder<D>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let mailbox = mailbox::<D>(mailboxes, op.mailbox)?;
    let (x, offsets) = (op.x.desc(), mailbox.offsets);
    let mut row_words = None;
    let [mut ids, mut count, mut members] = [Span::NONE; 3];
    let (mut capacity, mut set_words) = (0, 0);
    if let Some(set) = &op.rows {
        (ids, count, members) = (plain(&set.ids)?, plain(&set.count)?, plain(&set.members)?);
        let desc = set.members.desc();
        (capacity, set_words) = (desc.n_rows.min(mailbox.shape.max_rows), desc.n_cols);
        row_words = Some(set_words.min(mailbox.words()));
    }
    let n_weights = op.weights.as_ref().map_or(0, |weights| weights.desc().n_cols);
    let posted_words = row_words.unwrap_or(0);
    let n_words = x.n_rows * (x.n_cols + n_weights) + capacity * (1 + posted_words);
    let arrived = step.part(4 * (STEP_WORDS + builder.posts.len()) as u64, 4);
    let args = [
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.x)?),
        word(x.n_cols),
        word(x.n_rows),
        ptr(out.plain_or_null(op.weights.as_ref())?),
        word(n_weights),
        ptr(ids),
        ptr(count),
        ptr(members),
        word(capacity),
        word(set_words),
        word(posted_words),
        ptr(mailbox.span(0)),
        word(LIST_LENGTH),
        word(offsets.x),
        word(offsets.weights),
        word(offsets.ids),
        word(offsets.members),
        ptr(step),
        ptr(arrived),
    ];
    out.launch(Unit::plain("post"), "post", [n_copy_blocks(n_words), 1, 1], BLOCK as u32, &args);
    builder.posts.push(ProgramPost {
        index: op.mailbox,
        mailbox,
        n_rows: x.n_rows,
        row_words,
        segment: builder.segments.len() - 1,
        n_merged: builder.merges.len(),
    });
    Ok(())
}

/// With `wait_limit` (milliseconds) a kernel waits for the answer; otherwise a new segment begins.
fn merge<D: Driver>(
    op: &Merge<Tensor>,
    mailboxes: &[Arc<dyn RawMailbox>],
    step: Span,
    wait_limit: Option<usize>,
    builder: &mut ProgramBuilder<D>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let mailbox = mailbox::<D>(mailboxes, op.mailbox)?;
    let (y, unit) = (op.y.desc(), Unit::plain("merge"));
    match wait_limit {
        Some(limit) => {
            let (head, timed_out) = (mailbox.span(mailbox.offsets.head), step.part(4, 4));
            let args = [ptr(head), ptr(step), ptr(timed_out), word(limit)];
            out.launch(unit.clone(), WAIT, [1; 3], 64, &args);
        }
        None => builder.segments.push(Segment::new(Some(op.mailbox))),
    }
    let args = [
        ptr(mailbox.span(mailbox.offsets.answer)),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.y)?),
        word(y.n_rows),
        word(y.n_cols),
        Arg::U32(u32::from(op.accumulate)),
    ];
    let grid = [(y.n_rows * y.n_cols).div_ceil(4 * BLOCK), 1, 1];
    out.launch(unit, "merge_add", grid, BLOCK as u32, &args);
    builder.merges.push((op.mailbox, mailbox));
    Ok(())
}
