//! Instructions that compute registers from registers, one file per family. Each file maps opcodes,
//! as the PTX ISA writes them, to functions of one lane; an opcode that no file has is an error.

mod compare;
mod convert;
mod float;
mod integer;
mod logic;
mod matrix;

use std::fmt;

use crate::registers::{Class, LANES, Registers, Value};

pub(crate) use matrix::Matrix;

/// Registers of an instruction: the result first, then the operands.
pub(crate) type Places = [u32; 5];

/// Computes the result of an instruction for some lanes.
type Run = Box<dyn Fn(&mut Registers, &Places, u32) + Send + Sync>;

/// An instruction without its operands.
pub(crate) struct Compute {
    pub(crate) run: Run,
    /// Classes of the result and of the operands.
    pub(crate) classes: &'static [Class],
    /// The operand that must not be 0.
    pub(crate) divisor: Option<usize>,
}

impl fmt::Debug for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compute").field("classes", &self.classes).finish_non_exhaustive()
    }
}

/// The instruction with this opcode.
pub(crate) fn find(opcode: &str) -> Option<Compute> {
    integer::find(opcode)
        .or_else(|| float::find(opcode))
        .or_else(|| logic::find(opcode))
        .or_else(|| compare::find(opcode))
        .or_else(|| convert::find(opcode))
}

fn compute(classes: &'static [Class], run: Run) -> Option<Compute> {
    Some(Compute { run, classes, divisor: None })
}

/// Classes of an instruction, as a constant for each combination of types.
struct Classes<A, B, C, D>(std::marker::PhantomData<(A, B, C, D)>);
impl<A: Value, B: Value, C: Value, D: Value> Classes<A, B, C, D> {
    const TWO: &'static [Class] = &[D::CLASS, A::CLASS];
    const THREE: &'static [Class] = &[D::CLASS, A::CLASS, B::CLASS];
    const FOUR: &'static [Class] = &[D::CLASS, A::CLASS, B::CLASS, C::CLASS];
}

/// An instruction with one operand.
fn unary<A: Value, D: Value>(f: impl Fn(A) -> D + Copy + Send + Sync + 'static) -> Option<Compute> {
    let run = move |registers: &mut Registers, at: &Places, lanes: u32| {
        let a = A::load(registers, at[1]);
        let mut d = [D::default(); LANES];
        d.iter_mut().zip(&a).for_each(|(d, a)| *d = f(*a));
        D::store(registers, at[0], &d, lanes);
    };
    compute(Classes::<A, A, A, D>::TWO, Box::new(run))
}

/// An instruction with two operands.
fn binary<A: Value, B: Value, D: Value>(
    f: impl Fn(A, B) -> D + Copy + Send + Sync + 'static,
) -> Option<Compute> {
    let run = move |registers: &mut Registers, at: &Places, lanes: u32| {
        let (a, b) = (A::load(registers, at[1]), B::load(registers, at[2]));
        let mut d = [D::default(); LANES];
        d.iter_mut().zip(&a).zip(&b).for_each(|((d, a), b)| *d = f(*a, *b));
        D::store(registers, at[0], &d, lanes);
    };
    compute(Classes::<A, B, B, D>::THREE, Box::new(run))
}

/// An instruction with three operands.
fn ternary<A: Value, B: Value, C: Value, D: Value>(
    f: impl Fn(A, B, C) -> D + Copy + Send + Sync + 'static,
) -> Option<Compute> {
    let run = move |registers: &mut Registers, at: &Places, lanes: u32| {
        let (a, b) = (A::load(registers, at[1]), B::load(registers, at[2]));
        let c = C::load(registers, at[3]);
        let mut d = [D::default(); LANES];
        d.iter_mut().zip(&a).zip(&b).zip(&c).for_each(|(((d, a), b), c)| *d = f(*a, *b, *c));
        D::store(registers, at[0], &d, lanes);
    };
    compute(Classes::<A, B, C, D>::FOUR, Box::new(run))
}
