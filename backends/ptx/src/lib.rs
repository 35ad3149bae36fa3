//! Executes the PTX that is built into the program, on the CPU, for tests only.
//!
//! The fakes run the kernels' C++ sources. This crate runs what NVIDIA's driver gets: it parses the
//! text of each unit (`syntax`, `module`, `decode`) and is the fake driver's executor (`driver`), so
//! the conformance suite runs through the real backend. An instruction that it does not know is an
//! error when the unit is loaded.
//!
//! A launch runs some blocks in turn (`launch`), a block its warps, a warp its 32 threads with one
//! program counter each (`warp`). Instructions are functions over all lanes (`ops/`, one file per
//! family of the PTX ISA); opcodes, special registers and state spaces have their names there.
//!
//! It reports, with unit, line and thread:
//! - global accesses outside of every allocation, or misaligned (`memory`);
//! - shared accesses outside of the block's memory, misaligned, of unwritten memory, and races since
//!   the last barrier (`shared`);
//! - registers that are read unwritten, divisions by zero, operands that are not TF32 numbers;
//! - barriers and `.sync` instructions that not all of their threads reach (`warp`);
//! - flags for the host, or from it, without a fence (`order`);
//! - launches that do not fit the kernel, and kernels that do not end (`launch`).
//!
//! On request it counts what each launch executes and loads (`counts`).
//!
//! It does not model time, caches, registers, or the order in which a device makes stores visible
//! that no fence orders, except as `order` says. Of `.approx` instructions it knows the error bounds
//! alone. Races between blocks in global memory are not detected; the order of blocks varies.

mod access;
mod code;
mod counts;
mod decode;
mod driver;
mod exchange;
mod fault;
mod launch;
mod memory;
mod module;
mod ops;
mod order;
mod registers;
mod shared;
mod syntax;
mod warp;

pub use counts::{Counts, LOAD_WIDTHS, Launch};
pub use driver::{Change, Interpreter};
pub use fault::{Fault, FaultKind};
pub use module::{Entry, Module};
