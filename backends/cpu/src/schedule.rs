//! Which phases of a program's kernels run as one: every phase ends with the threads waiting for the last chunk.
//!
//! Three rules, none of which changes what a chunk computes:
//!
//! 1. *Row by row*: where each chunk of two successive phases works on the same rows, a chunk of the first goes on
//!    with the second (add, norm, round).
//! 2. *Beside each other*: phases by rows that touch nothing of each other share a phase (RoPE of q and of k).
//! 3. *One rounding*: products of one x (q, k and v) round it once and share the phase of their rows.

use hal::op::{self, Access};
use hal::{Op, Operand, Tensor};

use crate::kernels::Kernel;

/// A phase of a kernel, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kernel: usize,
    pub(crate) phase: usize,
}

/// One phase of a program: lanes beside each other; a chunk of a lane runs through its parts one after another.
pub(crate) type Phase = Vec<Vec<Part>>;

/// Chunks of a lane.
pub(crate) fn chunks(lane: &[Part], kernels: &[Box<dyn Kernel>]) -> usize {
    let chunks = lane.iter().map(|part| kernels[part.kernel].chunks(part.phase));
    chunks.max().unwrap_or(0)
}

/// Runs chunk `chunk` of a lane.
pub(crate) fn run(lane: &[Part], kernels: &[Box<dyn Kernel>], chunk: usize, worker: usize) {
    for part in lane {
        let kernel = &kernels[part.kernel];
        // Kernels by rows may cover fewer of them: padded tokens.
        if lane.len() == 1 || chunk < kernel.chunks(part.phase) {
            kernel.run(part.phase, chunk, worker);
        }
    }
}

/// The phases of a program of `ops`, each with its kernel.
pub(crate) fn schedule(ops: &[Op], kernels: &[Box<dyn Kernel>]) -> Vec<Phase> {
    let plan = Plan { operands: ops.iter().map(operands).collect(), kernels };
    let mut phases: Vec<Phase> = Vec::new();
    let mut at = 0;
    while at < ops.len() {
        let n = products(&ops[at..], &plan.operands[at..]);
        if n > 1 {
            plan.push(&mut phases, Part { kernel: at, phase: 0 });
            phases.push((at..at + n).map(|kernel| vec![Part { kernel, phase: 1 }]).collect());
        } else {
            for phase in 0..kernels[at].n_phases() {
                plan.push(&mut phases, Part { kernel: at, phase });
            }
        }
        at += n;
    }
    phases
}

type Operands = Vec<(Access, Tensor)>;

fn operands(op: &Op) -> Operands {
    let mut operands = Vec::new();
    op.visit(&mut |_, access, tensor| operands.push((access, tensor.clone())));
    operands
}

/// Pairs of operands of two ops that share rows which one of them writes.
fn shared<'a>(a: &'a Operands, b: &'a Operands) -> impl Iterator<Item = (&'a Tensor, &'a Tensor)> {
    let pairs = a.iter().flat_map(move |a| b.iter().map(move |b| (a, b)));
    pairs
        .filter(|((a, x), (b, y))| (*a, *b) != (Access::Read, Access::Read) && x.overlaps(y))
        .map(|((_, x), (_, y))| (x, y))
}

fn same_rows(a: &Tensor, b: &Tensor) -> bool {
    a.overlaps(b) && a.first_row() == b.first_row() && a.desc() == b.desc()
}

/// How many of the first ops are products of the same x with nothing else in common: at least 1.
fn products(ops: &[Op], operands: &[Operands]) -> usize {
    let product = |op: &Op| match op {
        Op::MatMul(op::MatMul { w, x, .. }) => Some((x.clone(), w.desc().format.activation())),
        _ => None,
    };
    let Some((x, activation)) = ops.first().and_then(product) else { return 1 };
    let alike = |i: usize| {
        let same =
            product(&ops[i]).is_some_and(|(other, a)| same_rows(&x, &other) && a == activation);
        same && (0..i).all(|before| shared(&operands[before], &operands[i]).next().is_none())
    };
    // Rounded rows of one shape lie in one place of the workspace, whatever they are multiplied with.
    1 + (1..ops.len()).take_while(|&i| alike(i)).count()
}

struct Plan<'a> {
    operands: Vec<Operands>,
    kernels: &'a [Box<dyn Kernel>],
}

impl Plan<'_> {
    fn by_rows(&self, part: Part) -> Option<[usize; 2]> {
        self.kernels[part.kernel].by_rows(part.phase)
    }

    /// Adds a part to the last phase where it may run with it, else as a phase of its own.
    fn push(&self, phases: &mut Vec<Phase>, part: Part) {
        let joined = phases.last_mut().is_some_and(|phase| self.join(phase, part));
        if !joined {
            phases.push(vec![vec![part]]);
        }
    }

    fn join(&self, phase: &mut Phase, part: Part) -> bool {
        let rows = self.by_rows(part);
        let all_by_rows = phase.iter().flatten().all(|&other| self.by_rows(other).is_some());
        if rows.is_none() || !all_by_rows {
            return false;
        }
        let touches = |other: &Part| {
            let [a, b] = [other.kernel, part.kernel].map(|kernel| &self.operands[kernel]);
            shared(a, b).next().is_some()
        };
        let touched = |lane: &Vec<Part>| lane.iter().any(touches);
        match phase.iter().filter(|lane| touched(lane)).count() {
            0 => phase.push(vec![part]),
            1 => {
                let Some(lane) = phase.iter_mut().find(|lane| touched(lane)) else { return false };
                let aligned = |other: &Part| {
                    let [a, b] = [other.kernel, part.kernel].map(|kernel| &self.operands[kernel]);
                    self.by_rows(*other) == rows && shared(a, b).all(|(a, b)| same_rows(a, b))
                };
                if !lane.iter().all(aligned) {
                    return false;
                }
                lane.push(part);
            }
            _ => return false,
        }
        true
    }
}
