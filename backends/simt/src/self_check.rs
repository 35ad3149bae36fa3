//! Checks that matrix instructions compute what the kernels expect. Vendors and generations assign
//! the elements of an MMA fragment to threads differently, and a driver or device may be faulty.
//! The check runs when a device is opened (`kernels-cuda/matrix_check.cu`); if a result is wrong,
//! the backend uses kernels without matrix instructions.

use std::sync::Arc;

use hal::{Error, RawStaging as _, Result};

use crate::card::Kernels;
use crate::driver::{Arg, Driver, Geometry};
use crate::facts::Facts;
use crate::pinned::Pinned;
use crate::program::LoadedLaunch;
use crate::stream::Stream;
use crate::units::Unit;

/// Rows, and maximum number of columns, of the product of one MMA instruction.
const SIDE: usize = 16;
/// 32-bit words per row or column of an operand.
const WORDS: usize = 8;
/// Columns of a float product.
const FLOAT_COLUMNS: usize = 8;
/// Sums of each int8 product: over the whole row, and over each half.
const PARTS: usize = 3;
/// Word offsets in the block, after the rows at 0: columns, sums, and the number of columns that
/// the device reports.
const COLUMNS: usize = SIDE * WORDS;
const SUMS: usize = 2 * COLUMNS;
const N_COLUMNS: usize = SUMS + PARTS * SIDE * SIDE;
/// Allowed error of a float product, relative to the sum of the magnitudes: F32 rounding stays
/// below it, and products of truncated floats exceed it.
const TOLERANCE: f64 = 1e-5;

#[derive(Clone, Debug)]
pub(crate) struct VerifiedDevice {
    /// The device's facts, without the matrix instructions that failed.
    pub(crate) facts: Facts,
    /// Why matrix instructions are not used; `None` if none failed.
    pub(crate) remark: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum CheckResult {
    Right,
    /// The kernels were compiled without matrix instructions.
    Absent,
    Wrong(String),
}

impl VerifiedDevice {
    /// Checks the matrix instructions of a device. With `wanted` off, they are neither checked nor
    /// used.
    ///
    /// # Errors
    /// A lost device, out of memory.
    pub(crate) fn new<D: Driver>(
        driver: &Arc<D>,
        kernels: &Kernels<D>,
        wanted: bool,
    ) -> Result<VerifiedDevice> {
        let mut facts = driver.facts().clone();
        (facts.mma, facts.mma_floats) = (facts.mma && wanted, facts.mma_floats && wanted);
        let mut remark = None;
        for (claimed, kernel) in [(facts.mma, "check_bytes"), (facts.mma_floats, "check_floats")] {
            if !claimed {
                continue;
            }
            let found = match run_check(driver, kernels, kernel) {
                Ok(found) => found,
                Err(error @ Error::Driver { .. }) => {
                    CheckResult::Wrong(format!("cannot be tested ({error})"))
                }
                Err(error) => return Err(error),
            };
            if let CheckResult::Wrong(why) = &found {
                remark = Some(format!("its matrix units are not used: they {why}"));
            }
            match kernel {
                "check_bytes" => facts.mma = found == CheckResult::Right,
                _ => facts.mma_floats = found == CheckResult::Right,
            }
        }
        Ok(VerifiedDevice { facts, remark })
    }
}

fn run_check<D: Driver>(
    driver: &Arc<D>,
    kernels: &Kernels<D>,
    kernel: &str,
) -> Result<CheckResult> {
    let mut block = Pinned::new(driver, "self check", 4 * (N_COLUMNS + 1))?;
    let floats = kernel == "check_floats";
    let operands = operands(floats);
    block.bytes_mut().fill(0xa5);
    block.bytes_mut()[..4 * SUMS].copy_from_slice(bytemuck::cast_slice(&operands));
    let at = |word: usize| Arg::Ptr(block.device() + 4 * word as u64);
    let launch = LoadedLaunch {
        function: kernels.function(&Unit::plain("matrix_check"), kernel)?,
        geometry: Geometry { grid: [1; 3], block: 64, shared: 0 },
        args: vec![at(0), at(COLUMNS), at(SUMS), at(N_COLUMNS)],
    };
    let stream = Stream::new(driver)?;
    stream.launch(&launch)?;
    stream.finish()?;
    let n_columns = block.words::<u32>(N_COLUMNS, 1)[0] as usize;
    let sums = block.words::<u32>(SUMS, PARTS * SIDE * SIDE);
    Ok(match (n_columns, floats) {
        (0, _) => CheckResult::Absent,
        (FLOAT_COLUMNS, true) => check_result(wrong_floats(&operands, sums)),
        (8 | SIDE, false) => check_result(wrong_bytes(&operands, sums, n_columns)),
        _ => CheckResult::Wrong(format!("report {n_columns} columns")),
    })
}

fn check_result(n_wrong: usize) -> CheckResult {
    match n_wrong {
        0 => CheckResult::Right,
        _ => CheckResult::Wrong(format!("give {n_wrong} wrong products")),
    }
}

/// Pseudo-random rows and columns: any bytes, or floats of magnitude 1 to 2.
fn operands(floats: bool) -> Vec<u32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = (state >> 32) as u32;
        if floats { word & 0x807f_ffff | 0x3f80_0000 } else { word }
    };
    (0..SUMS).map(|_| next()).collect()
}

/// Number of wrong sums of int8 products.
fn wrong_bytes(operands: &[u32], sums: &[u32], n_columns: usize) -> usize {
    let bytes: &[i8] = bytemuck::cast_slice(operands);
    let vector = |first: usize, number: usize| &bytes[4 * (first + WORDS * number)..][..4 * WORDS];
    let dot = |a: &[i8], b: &[i8]| -> i32 {
        a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
    };
    let mut n_wrong = 0;
    for (row, column) in (0..SIDE).flat_map(|row| (0..n_columns).map(move |column| (row, column))) {
        let (a, b) = (vector(0, row), vector(COLUMNS, column));
        let expected = [dot(a, b), dot(&a[..16], &b[..16]), dot(&a[16..], &b[16..])];
        let got = |part: usize| sums[SIDE * (SIDE * part + row) + column] as i32;
        n_wrong += (0..PARTS).filter(|&part| got(part) != expected[part]).count();
    }
    n_wrong
}

/// Number of wrong sums of float products.
fn wrong_floats(operands: &[u32], sums: &[u32]) -> usize {
    let vector = |first: usize, number: usize| {
        operands[first + WORDS * number..][..WORDS]
            .iter()
            .map(|word| f64::from(f32::from_bits(*word)))
    };
    let mut n_wrong = 0;
    for (row, column) in
        (0..SIDE).flat_map(|row| (0..FLOAT_COLUMNS).map(move |column| (row, column)))
    {
        let products = || vector(0, row).zip(vector(COLUMNS, column)).map(|(a, b)| a * b);
        let (expected, size): (f64, f64) = (products().sum(), products().map(f64::abs).sum());
        let got = f64::from(f32::from_bits(sums[FLOAT_COLUMNS * row + column]));
        // With this comparison NaN counts as wrong.
        let is_close = (got - expected).abs() <= TOLERANCE * size;
        n_wrong += usize::from(!is_close);
    }
    n_wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_floats_are_detected() {
        let operands = operands(true);
        let sums = |cut: u32| -> Vec<u32> {
            let truncate = |word: u32| f32::from_bits(word & cut);
            let pairs =
                (0..SIDE).flat_map(|row| (0..FLOAT_COLUMNS).map(move |column| (row, column)));
            let sum = |(row, column): (usize, usize)| -> f32 {
                (0..WORDS)
                    .map(|k| {
                        truncate(operands[WORDS * row + k])
                            * truncate(operands[COLUMNS + WORDS * column + k])
                    })
                    .sum()
            };
            pairs.map(|at| sum(at).to_bits()).collect()
        };
        assert_eq!(wrong_floats(&operands, &sums(u32::MAX)), 0);
        assert!(wrong_floats(&operands, &sums(0xffff_e000)) > 100);
        assert_eq!(wrong_floats(&operands, &[f32::NAN.to_bits(); SIDE * FLOAT_COLUMNS]), 128);
    }

    #[test]
    fn every_wrong_sum_of_bytes_is_counted() {
        let operands = operands(false);
        assert_eq!(
            wrong_bytes(&operands, &vec![1; PARTS * SIDE * SIDE], SIDE),
            PARTS * SIDE * SIDE
        );
    }
}
