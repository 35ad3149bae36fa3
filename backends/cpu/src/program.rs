#![allow(unsafe_code, reason = "binds a program's kernels to tensor memory")]
//! A compiled program: kernels with resolved memory, and the list of their phases for the thread
//! pool.

use hal::{Op, Operand, RawProgram, Tensor};

use crate::buffer::Binder;
use crate::kernels::{self, Context, Kernel};
use crate::thread_pool::Job;
use simd::Kernels;

#[derive(Debug)]
pub(crate) struct CpuProgram {
    label: String,
    kernels: Vec<Box<dyn Kernel>>,
    /// For each phase of the program: the index of the kernel, and the kernel's phase.
    phases: Vec<(u32, u32)>,
    /// Largest number of rows of the inputs of a matrix product.
    n_tokens: usize,
    /// Keeps the memory of the kernels' views alive.
    _tensors: Vec<Tensor>,
}

/// Which kernels a program uses, and how they prefetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelChoice {
    pub(crate) simd: Kernels,
    /// Distance in bytes at which kernels prefetch rows.
    pub(crate) prefetch: usize,
}

impl RawProgram for CpuProgram {}

impl CpuProgram {
    /// Compiles `ops`, which the recorder has checked and planned.
    pub(crate) fn new(
        label: &str,
        ops: &[Op],
        workspace: Option<&Tensor>,
        choice: KernelChoice,
        n_threads: usize,
    ) -> CpuProgram {
        let mut tensors: Vec<Tensor> = workspace.into_iter().cloned().collect();
        for op in ops {
            op.visit(&mut |_, _, tensor| tensors.push(tensor.clone()));
        }
        // SAFETY: the tensors live as long as the program, which runs only under the device's
        // lock; ops were checked for aliasing, and kernels follow the rules of `buffer`.
        let bind = unsafe { Binder::new(workspace) };
        let KernelChoice { simd, prefetch } = choice;
        let context = Context { bind, simd, prefetch, n_threads };
        let kernels: Vec<_> = ops.iter().map(|op| kernels::compile(op, &context)).collect();
        let phases = kernels
            .iter()
            .zip(0..)
            .flat_map(|(kernel, k)| (0..kernel.n_phases() as u32).map(move |phase| (k, phase)));
        let phases = phases.collect();
        let rows = |op: &Op| if let Op::MatMul(op) = op { op.x.desc().n_rows } else { 0 };
        let n_tokens = ops.iter().map(rows).max().unwrap_or(0);
        let label = label.to_owned();
        CpuProgram { label, kernels, phases, n_tokens, _tensors: tensors }
    }

    /// Number of tokens of the program: the largest number of rows of the inputs of a matrix product.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    /// The phases of the ops before op `end`, without `before` and earlier phases, as a job.
    pub(crate) fn phases_until(&self, before: Option<&Phases<'_>>, end: usize) -> Phases<'_> {
        let first = before.map_or(0, |before| before.end);
        let end = self.phases.partition_point(|(kernel, _)| (*kernel as usize) < end);
        Phases { program: self, first, end: end.max(first) }
    }

    pub(crate) fn n_ops(&self) -> usize {
        self.kernels.len()
    }
}

#[derive(Debug)]
pub(crate) struct Phases<'a> {
    program: &'a CpuProgram,
    first: usize,
    end: usize,
}

impl Phases<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }
}

impl Job for Phases<'_> {
    fn chunks(&self, phase: usize) -> Option<usize> {
        let phase = self.first + phase;
        if phase < self.end { self.program.chunks(phase) } else { None }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        self.program.run(self.first + phase, chunk, worker);
    }
}

impl Job for CpuProgram {
    fn chunks(&self, phase: usize) -> Option<usize> {
        let &(kernel, phase) = self.phases.get(phase)?;
        Some(self.kernels[kernel as usize].chunks(phase as usize))
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        let (kernel, phase) = self.phases[phase];
        self.kernels[kernel as usize].run(phase as usize, chunk, worker);
    }
}
