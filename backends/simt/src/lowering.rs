//! From an op to launches: which kernel, with which arguments. Made once, when a program is compiled.

use hal::{Result, Tensor};

use crate::buffer::{Span, plain};
use crate::driver::{Arg, Geometry};
use crate::error::driver;
use crate::facts::Facts;
use crate::units::Unit;

/// Most threads of a block: what compilers are told.
pub const MOST_THREADS: u32 = 256;

/// One launch: what a stream is given.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) unit: Unit,
    /// The kernel in it.
    pub(crate) kernel: &'static str,
    pub(crate) geometry: Geometry,
    pub(crate) args: Vec<Arg>,
}

/// What an op adds its launches to.
#[derive(Debug)]
pub(crate) struct Lowering<'a> {
    facts: &'a Facts,
    tables: Span,
    workspace: Option<&'a Tensor>,
    /// Makes room for constants.
    constants: &'a mut dyn Room,
    launches: Vec<Launch>,
    ahead: Ahead,
}

/// What an earlier launch did for the op that comes now; in the workspace, so until another op uses that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// These values lie there in Q8 blocks too.
    pub(crate) rounded: Option<(Span, Span)>,
    /// These words were set as the op wants to find them.
    pub(crate) cleared: Option<Span>,
}

/// Memory for the words that a program reads and that never change.
pub(crate) trait Room: std::fmt::Debug {
    /// Puts them there.
    fn keep(&mut self, words: &[u32]) -> Result<Span>;
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(
        facts: &'a Facts,
        tables: Span,
        workspace: Option<&'a Tensor>,
        constants: &'a mut dyn Room,
    ) -> Lowering<'a> {
        let (launches, ahead) = (Vec::new(), Ahead::default());
        Lowering { facts, tables, workspace, constants, launches, ahead }
    }

    /// Facts of the device.
    pub(crate) fn facts(&self) -> &'a Facts {
        self.facts
    }

    /// What was added since the last call.
    pub(crate) fn take(&mut self) -> Vec<Launch> {
        std::mem::take(&mut self.launches)
    }

    /// What formats look codes up in (`layout::tables`).
    pub(crate) fn tables(&self) -> Span {
        self.tables
    }

    /// A plain operand that may be missing: a null pointer then.
    pub(crate) fn maybe(&self, tensor: Option<&Tensor>) -> Result<Span> {
        tensor.map_or(Ok(Span::NONE), plain)
    }

    /// Part of the scratch that the op's plan asked for, in bytes (multiples of 16 by habit: kernels load so). Its contents
    /// are undefined, and other ops use it before and after this one.
    pub(crate) fn workspace(&self, offset: u64, size: u64) -> Result<Span> {
        let whole = self.workspace.map(plain).transpose()?;
        match whole {
            Some(whole) if offset + size <= whole.size => Ok(whole.part(offset, size)),
            _ => Err(driver("compile", "less workspace than was planned")),
        }
    }

    /// What was done ahead.
    pub(crate) fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    /// Where the values of `x` lie in Q8 blocks, if they do.
    pub(crate) fn rounded(&self, x: Span) -> Option<Span> {
        self.ahead.rounded.filter(|(of, _)| *of == x).map(|(_, q)| q)
    }

    /// Words that the op reads and that never change, on the device.
    pub(crate) fn constants(&mut self, words: &[u32]) -> Result<Span> {
        self.constants.keep(words)
    }

    /// Adds a launch of `kernel` in `unit`, unless its grid is empty. The arguments are those of the kernel's parameter
    /// list in order; `block` is a multiple of 64, so that waves of both widths are whole.
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

    /// [`Lowering::launch`] with so many bytes of dynamic shared memory.
    pub(crate) fn launch_shared(
        &mut self,
        unit: Unit,
        kernel: &'static str,
        grid: [usize; 3],
        block: u32,
        shared: u32,
        args: &[Arg],
    ) {
        debug_assert!(block.is_multiple_of(64), "{kernel}: a block of {block}");
        debug_assert!(block <= MOST_THREADS, "{kernel}: a block of {block}");
        if grid.contains(&0) {
            return;
        }
        let grid = grid.map(|n| u32::try_from(n).expect("tensors have fewer rows than 2^32"));
        let geometry = Geometry { grid, block, shared };
        self.launches.push(Launch { unit, kernel, geometry, args: args.to_vec() });
    }
}

/// A pointer argument.
pub(crate) fn ptr(span: Span) -> Arg {
    Arg::Ptr(span.at)
}

/// A number.
pub(crate) fn word(n: usize) -> Arg {
    Arg::U32(u32::try_from(n).expect("sizes are checked when an op is planned"))
}
