//! Compares levels that differ only in their integer products, whose results have the same bits.

use hal::format::{Activation, Format, Q8Row};

use crate::{all_kernels, panel, q8, random, weight_formats};
use thermocline_simd::{ActView, DEFAULT_PREFETCH, Kernels, Level, Matrix, RowIds, RowRun};

/// NEON's kernels, and those of the levels with more instructions that this processor has.
fn neon_kernels() -> Option<(Kernels, Vec<Kernels>)> {
    let neon = Kernels::select(Level::Neon)?;
    let faster = |kernels: &Kernels| kernels.level() > Level::Neon;
    Some((neon, all_kernels().into_iter().filter(faster).collect()))
}

fn bits<'a>(values: impl IntoIterator<Item = &'a f32>) -> Vec<u32> {
    values.into_iter().map(|value| value.to_bits()).collect()
}

/// The products of nine rows with one, four and eight tokens.
fn products(kernels: &Kernels, format: Format, bytes: &[u8], x: &[ActView<'_>; 8]) -> Vec<u32> {
    let run = RowRun::new(Matrix::dense(bytes, bytes.len() / 9), RowIds::From(0), DEFAULT_PREFETCH);
    let (mut one, mut four, mut eight) =
        ([[f32::NAN; 1]; 9], [[f32::NAN; 4]; 9], [[f32::NAN; 8]; 9]);
    kernels.rows(format)(&run, [x[0]], &mut one);
    kernels.rows4(format)(&run, [x[0], x[1], x[2], x[3]], &mut four);
    kernels.rows8(format)(&run, *x, &mut eight);
    let all = [one.as_flattened(), four.as_flattened(), eight.as_flattened()];
    bits(all.into_iter().flatten())
}

/// Random activations; the codes of one token are all 127 and those of another all -127.
fn tokens(n: usize) -> [Vec<f32>; 8] {
    std::array::from_fn(|t| match t {
        1 => vec![0.7; n],
        2 => vec![-0.7; n],
        _ => random(n, 31 + t as u32),
    })
}

#[test]
fn dots_of_all_neon_levels_have_the_same_bits() {
    let Some((neon, faster)) = neon_kernels() else { return };
    for format in weight_formats() {
        for n_blocks in [1, 3, 16, 24, 33] {
            let n = n_blocks * format.block_values().max(32);
            // Random bytes have every code, also the most negative.
            let bytes = conformance::random_weights(format, 9 * n, n as u64);
            let values = tokens(n);
            let rows: [Q8Row; 8] = values.each_ref().map(|x| q8(x));
            let x = std::array::from_fn(|t| match format.activation() {
                Activation::F32 => ActView::from(&values[t][..]),
                Activation::Q8 => ActView::from(&rows[t]),
            });
            let expected = products(&neon, format, &bytes, &x);
            for kernels in &faster {
                let got = products(kernels, format, &bytes, &x);
                assert_eq!(got, expected, "{:?} {format} {n}", kernels.level());
            }
        }
    }
}

#[test]
fn panels_of_all_neon_levels_have_the_same_bits() {
    let Some((neon, faster)) = neon_kernels() else { return };
    for format in weight_formats() {
        for (n_rows, n_blocks) in [(32, 1), (29, 5), (32, 19)] {
            let n_cols = n_blocks * format.block_values().max(32);
            for n_tokens in [1, 2, 3, 4, 5, 7, 8] {
                let row = |r| conformance::random_weights(format, n_cols, (n_cols + r) as u64);
                let product = panel::Product {
                    format,
                    n_cols,
                    rows: (0..n_rows).map(row).collect(),
                    x: tokens(n_cols)[..n_tokens].to_vec(),
                };
                let run = |kernels: &Kernels| {
                    bits(product.run(kernels).iter().flat_map(|sums| &sums[..n_rows]))
                };
                let expected = run(&neon);
                for kernels in &faster {
                    let case = format!("{:?} {format} {n_cols} {n_tokens}", kernels.level());
                    assert_eq!(run(kernels), expected, "{case}");
                }
            }
        }
    }
}
