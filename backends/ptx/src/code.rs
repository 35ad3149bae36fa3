//! Decoded instructions.

use std::fmt;

use crate::ops::{Compute, Matrix, Places};
use crate::registers::Register;

/// A state space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
}

/// A constant that depends on the launch, the block or the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    /// A parameter, by its number.
    Parameter(usize),
    /// `%tid`, `%ctaid`, `%ntid` and `%nctaid`: 0 for x, 1 for y, 2 for z.
    Thread(usize),
    Block(usize),
    BlockSize(usize),
    GridSize(usize),
    /// `%laneid`.
    Lane,
}

/// Reads or writes memory.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) space: Space,
    /// Bytes of an element: 2, 4 or 8.
    pub(crate) bytes: usize,
    /// `.relaxed.sys`: the host may access the same word.
    pub(crate) is_relaxed: bool,
    pub(crate) address: Register,
    pub(crate) offset: i64,
    /// The register of each element of the vector.
    pub(crate) registers: Vec<Register>,
}

/// What an atomic instruction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    Or,
}

/// What an instruction does.
pub(crate) enum Kind {
    Compute(Compute, Places),
    /// To an instruction, by its number.
    Branch(u32),
    Exit,
    /// `bar.sync 0`.
    Barrier,
    /// `membar.sys`.
    Fence,
    Sleep,
    /// `%globaltimer`, to this register.
    Timer(Register),
    Load(Access),
    Store(Access),
    /// `prefetch.global.L2` of the line at this address.
    Prefetch(Register, i64),
    Atomic {
        op: Atomic,
        space: Space,
        to: Register,
        address: Register,
        offset: i64,
        value: Register,
    },
    /// Result and its predicate, value, lane mask, clamp, member mask.
    Shuffle {
        to: u32,
        has_source: Option<u32>,
        value: u32,
        offset: u32,
        clamp: u32,
        members: u32,
    },
    Ballot {
        to: u32,
        predicate: u32,
        members: u32,
    },
    Matrix(Matrix, Vec<u32>),
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Kind::Compute(..) => "Compute",
            Kind::Branch(_) => "Branch",
            Kind::Exit => "Exit",
            Kind::Barrier => "Barrier",
            Kind::Fence => "Fence",
            Kind::Sleep => "Sleep",
            Kind::Timer(_) => "Timer",
            Kind::Load(_) => "Load",
            Kind::Store(_) => "Store",
            Kind::Prefetch(..) => "Prefetch",
            Kind::Atomic { .. } => "Atomic",
            Kind::Shuffle { .. } => "Shuffle",
            Kind::Ballot { .. } => "Ballot",
            Kind::Matrix(..) => "Matrix",
        };
        f.write_str(name)
    }
}

/// The predicate of an instruction: `@%p1` or `@!%p1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) predicate: u32,
    pub(crate) is_negated: bool,
    /// The predicate among the registers that can be unwritten.
    pub(crate) register: u32,
}

/// An instruction of a kernel.
#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) guard: Option<Guard>,
    pub(crate) kind: Kind,
    /// Declared registers that it reads, as [`Counts::written`](crate::registers::Counts::written)
    /// numbers them.
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
    /// Line in the text, from 1.
    pub(crate) line: u32,
}
