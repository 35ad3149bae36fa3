//! `mma.sync`: products of small matrices whose elements are distributed over a warp.
//!
//! The maps of elements to lanes are those of the PTX ISA, "Matrix Fragments for mma.m8n8k16",
//! "mma.m16n8k32" and "mma.m16n8k8". With `group = lane / 4` and `place = lane % 4`:
//!
//! | shape | A (row, column) | B (row, column) | C and D (row, column) |
//! | --- | --- | --- | --- |
//! | m8n8k16, bytes i | group, 4 place + i | 4 place + i, group | group, 2 place + r |
//! | m16n8k32, bytes i of word r | group + 8 (r % 2), 4 place + i + 16 (r / 2) | 4 place + i + 16 r, group | group + 8 (r / 2), 2 place + r % 2 |
//! | m16n8k8, word r | group + 8 (r % 2), place + 4 (r / 2) | place + 4 r, group | as m16n8k32 |

use crate::registers::{LANES, Registers};

/// A shape with its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// Signed bytes, sums of 32 bits that wrap.
    M8n8k16Bytes,
    /// As above.
    M16n8k32Bytes,
    /// TF32: `f32` of which the upper 19 bits are used.
    M16n8k8Tf32,
}

/// Bits of an operand that TF32 lacks.
const UNUSED_TF32: u32 = 0x1fff;

impl Matrix {
    pub(crate) fn find(opcode: &str) -> Option<Matrix> {
        match opcode {
            "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32" => Some(Matrix::M8n8k16Bytes),
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" => Some(Matrix::M16n8k32Bytes),
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" => Some(Matrix::M16n8k8Tf32),
            _ => None,
        }
    }

    /// Registers of D, A, B and C.
    pub(crate) fn counts(self) -> [usize; 4] {
        match self {
            Matrix::M8n8k16Bytes => [2, 1, 1, 2],
            Matrix::M16n8k32Bytes | Matrix::M16n8k8Tf32 => [4, 4, 2, 4],
        }
    }

    /// Computes the product of a whole warp; `at` has the registers of D, A, B and C in sequence.
    ///
    /// # Errors
    /// The lane with an operand that is not a TF32 number.
    pub(crate) fn run(self, registers: &mut Registers, at: &[u32]) -> Result<(), usize> {
        let [n_d, n_a, n_b, _] = self.counts();
        let words = |from: usize, n: usize| -> Vec<[u32; LANES]> {
            at[from..from + n].iter().map(|&at| registers.words[at as usize]).collect()
        };
        let (a, b, c) = (words(n_d, n_a), words(n_d + n_a, n_b), words(n_d + n_a + n_b, n_d));
        let mut d = c;
        match self {
            Matrix::M8n8k16Bytes | Matrix::M16n8k32Bytes => multiply_bytes(&mut d, &a, &b),
            Matrix::M16n8k8Tf32 => multiply_tf32(&mut d, &a, &b)?,
        }
        for (at, values) in at.iter().zip(d) {
            registers.words[*at as usize] = values;
        }
        Ok(())
    }
}

/// Row and column of register `r` of D in a lane.
fn element(lane: usize, r: usize) -> (usize, usize) {
    (lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2)
}

fn multiply_bytes(d: &mut [[u32; LANES]], a: &[[u32; LANES]], b: &[[u32; LANES]]) {
    for (r, words) in d.iter_mut().enumerate() {
        for (lane, sum) in words.iter_mut().enumerate() {
            let (row, column) = element(lane, r);
            // Four bytes of a row of A and of a column of B at a time, 16 for each word of B.
            for (part, right) in b.iter().enumerate() {
                for place in 0..4 {
                    let left = a[2 * part + row / 8][row % 8 * 4 + place];
                    *sum = super::integer::dp4a(left, right[column * 4 + place], *sum);
                }
            }
        }
    }
}

/// Products are exact. The sum is rounded once here, toward zero: the order and the truncation in
/// tensor cores are not documented.
fn multiply_tf32(
    d: &mut [[u32; LANES]],
    a: &[[u32; LANES]],
    b: &[[u32; LANES]],
) -> Result<(), usize> {
    for lane in 0..LANES {
        if a.iter().chain(b).any(|words| words[lane] & UNUSED_TF32 != 0) {
            return Err(lane);
        }
    }
    let float = |bits: u32| f64::from(f32::from_bits(bits));
    for (r, words) in d.iter_mut().enumerate() {
        for (lane, word) in words.iter_mut().enumerate() {
            let (row, column) = element(lane, r);
            let product = |k: usize| {
                let left = a[row / 8 + 2 * (k / 4)][row % 8 * 4 + k % 4];
                float(left) * float(b[k / 4][column * 4 + k % 4])
            };
            *word = toward_zero((0..8).map(product).fold(float(*word), |sum, by| sum + by));
        }
    }
    Ok(())
}

fn toward_zero(sum: f64) -> u32 {
    let nearest = sum as f32;
    if f64::from(nearest.abs()) > sum.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() }
}
