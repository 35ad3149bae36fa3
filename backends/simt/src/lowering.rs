//! Lowers ops to launches (kernel and arguments), once, when a program is compiled.

use hal::{Result, Tensor};
use lower::{EarlierResults, FEW_TOKENS};

use crate::buffer::{Span, plain};
use crate::driver::{Arg, Geometry};
use crate::facts::Facts;
use crate::units::Unit;

/// Maximum number of threads per block, as declared to the compilers.
pub const MAX_THREADS: u32 = 256;

#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) unit: Unit,
    /// The kernel's name in the unit.
    pub(crate) kernel: &'static str,
    pub(crate) geometry: Geometry,
    pub(crate) args: Vec<Arg>,
}

/// Collects the launches of an op.
#[derive(Debug)]
pub(crate) struct Lowering<'a> {
    facts: &'a Facts,
    tables: Span,
    workspace: Option<&'a Tensor>,
    constants: &'a mut dyn ConstantStore,
    launches: Vec<Launch>,
    earlier: EarlierResults<Span>,
    /// The weight that the next ops read first.
    next_weight: Option<Span>,
    /// The beginning of a weight that earlier launches prefetched.
    prefetched: Span,
}

/// Bytes of a line of the L2 cache (`LINE` in `kernels-cuda/lib/prefetch.cuh`).
const LINE: u64 = 128;

/// What the additional blocks of a launch bring into the L2 cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    /// The last arguments of the kernel: the first line, and the number of lines.
    pub(crate) args: [Arg; 2],
    /// The number of additional blocks, in the first dimension of the grid.
    pub(crate) n_blocks: usize,
}

/// Memory for constant words that a program reads.
pub(crate) trait ConstantStore: std::fmt::Debug {
    /// Copies the words to device memory.
    fn store(&mut self, words: &[u32]) -> Result<Span>;
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        facts: &'a Facts,
        tables: Span,
        workspace: Option<&'a Tensor>,
        constants: &'a mut dyn ConstantStore,
    ) -> Lowering<'a> {
        let (launches, earlier) = (Vec::new(), EarlierResults::default());
        let (next_weight, prefetched) = (None, Span::NONE);
        Lowering { facts, tables, workspace, constants, launches, earlier, next_weight, prefetched }
    }

    pub(crate) fn facts(&self) -> &'a Facts {
        self.facts
    }

    /// The launches added since the last call.
    pub(crate) fn take(&mut self) -> Vec<Launch> {
        std::mem::take(&mut self.launches)
    }

    /// Code tables of the formats (`layout::tables`).
    pub(crate) fn tables(&self) -> Span {
        self.tables
    }

    /// The span of an optional plain operand; null if the operand is missing.
    pub(crate) fn plain_or_null(&self, tensor: Option<&Tensor>) -> Result<Span> {
        tensor.map_or(Ok(Span::NONE), plain)
    }

    /// The workspace that all ops use; `None` if no op needs it.
    pub(crate) fn whole_workspace(&self) -> Result<Option<Span>> {
        self.workspace.map(plain).transpose()
    }

    pub(crate) fn earlier(&mut self) -> &mut EarlierResults<Span> {
        &mut self.earlier
    }

    /// Copies constant words that the op reads to the device.
    pub(crate) fn constants(&mut self, words: &[u32]) -> Result<Span> {
        self.constants.store(words)
    }

    pub(crate) fn set_next_weight(&mut self, weight: Option<Span>) {
        self.next_weight = weight;
    }

    /// What a launch of blocks of `threads` threads prefetches beside its work on `n_tokens`:
    /// further lines of the next weight. In prefill nothing, since launches take long there.
    pub(crate) fn prefetch(&mut self, n_tokens: usize, threads: u32) -> Prefetch {
        let weight = self.next_weight.filter(|_| n_tokens <= FEW_TOKENS).unwrap_or(Span::NONE);
        let first = if self.prefetched.at == weight.at { self.prefetched.size } else { 0 };
        let n_lines = (weight.size - first).min(self.facts.prefetch) / LINE;
        if n_lines == 0 {
            return Prefetch { args: [ptr(Span::NONE), word(0)], n_blocks: 0 };
        }
        self.prefetched = Span { at: weight.at, size: first + n_lines * LINE };
        let lines = weight.part(first, n_lines * LINE);
        let n_lines = n_lines as usize;
        Prefetch { args: [ptr(lines), word(n_lines)], n_blocks: n_lines.div_ceil(threads as usize) }
    }

    /// Adds a launch of `kernel` in `unit`, unless its grid is empty. The arguments match the
    /// kernel's parameter list; `block` is a multiple of 64 threads, so that it consists of whole
    /// warps (32 threads) or wavefronts (64).
    pub(crate) fn launch(
        &mut self,
        unit: Unit,
        kernel: &'static str,
        grid: [usize; 3],
        block: u32,
        args: &[Arg],
    ) {
        self.launch_shared(unit, kernel, grid, block, 0, args);
    }

    /// [`Lowering::launch`] with dynamic shared memory, in bytes.
    pub(crate) fn launch_shared(
        &mut self,
        unit: Unit,
        kernel: &'static str,
        grid: [usize; 3],
        block: u32,
        shared: u32,
        args: &[Arg],
    ) {
        debug_assert!(block.is_multiple_of(64), "{kernel}: {block} threads per block");
        debug_assert!(block <= MAX_THREADS, "{kernel}: {block} threads per block");
        if grid.contains(&0) {
            return;
        }
        let grid = grid.map(|n| u32::try_from(n).expect("tensors have fewer rows than 2^32"));
        let geometry = Geometry { grid, block, shared };
        self.launches.push(Launch { unit, kernel, geometry, args: args.to_vec() });
    }
}

pub(crate) fn ptr(span: Span) -> Arg {
    Arg::Ptr(span.at)
}

pub(crate) fn word(n: usize) -> Arg {
    Arg::U32(u32::try_from(n).expect("sizes are checked when an op is planned"))
}
