//! Errors of kernels, and where they happened.

use std::fmt;

/// What a kernel did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A global access outside of every allocation, or misaligned.
    Address(String),
    /// A shared access outside of the block's shared memory, misaligned, or of unwritten memory.
    Shared(String),
    /// Two threads access the same shared word, one of them writes, and no barrier is between.
    Race(String),
    /// A register is read that this thread has not written.
    Uninitialised(String),
    /// A barrier that not all threads of a warp or block reach.
    Barrier(String),
    /// A `.sync` instruction whose mask names threads that do not execute it, or with other masks.
    Mask(String),
    /// An access that no fence orders.
    Order(String),
    /// An operand that the PTX ISA leaves undefined, such as a division by zero.
    Operand(String),
    /// The kernel does not end.
    Endless(String),
    /// The launch does not fit the kernel: its block size, shared memory or arguments.
    Geometry(String),
}

impl FaultKind {
    fn parts(&self) -> (&'static str, &str) {
        match self {
            FaultKind::Address(text) => ("address", text),
            FaultKind::Shared(text) => ("shared memory", text),
            FaultKind::Race(text) => ("race", text),
            FaultKind::Uninitialised(text) => ("uninitialised register", text),
            FaultKind::Barrier(text) => ("divergent barrier", text),
            FaultKind::Mask(text) => ("wrong mask", text),
            FaultKind::Order(text) => ("missing fence", text),
            FaultKind::Operand(text) => ("operand", text),
            FaultKind::Endless(text) => ("no end", text),
            FaultKind::Geometry(text) => ("launch", text),
        }
    }
}

/// A fault with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Kernel file and variant, and the compute capability it is compiled for.
    pub unit: String,
    /// The kernel.
    pub entry: String,
    /// Line of the unit's PTX, from 1, and its text; 0 before the first instruction.
    pub line: u32,
    /// Text of the line.
    pub text: String,
    /// Block.
    pub block: [u32; 3],
    /// Thread in the block.
    pub thread: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, what) = self.kind.parts();
        let Fault { unit, entry, line, text, block: [x, y, z], thread, .. } = self;
        write!(
            f,
            "{name}: {what}, at {unit}:{line} in {entry} `{text}`, block ({x}, {y}, {z}), thread {thread}"
        )
    }
}
