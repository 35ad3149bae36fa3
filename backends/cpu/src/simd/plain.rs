//! Kernels of formats without blocks, and of vectors, written once for all levels with vectors.
//!
//! A level has a module `vector`: its register type `V` of `LANES` floats and the dozen instructions
//! used here. The text below is compiled for each level's instructions, hence a macro.

/// The module `plain` of a level whose instructions are `$features`.
macro_rules! plain_kernels {
    ($features:literal) => {
        use hal::format::Format;

        use super::super::rows::{Row, RowIds, RowRun};
        use super::super::tile::padded;
        use super::super::{ActView, AxpyFn, scalar};
        use super::vector::*;

        /// Values in a step of a dot: four sums are in flight.
        const STEP: usize = 4 * LANES;

        super::super::plain::plain_format!($features, of_f32, 4, widen_f32);
        super::super::plain::plain_format!($features, of_f16, 2, widen_f16);
        super::super::plain::plain_format!($features, of_bf16, 2, widen_bf16);

        #[target_feature(enable = $features)]
        pub(super) fn sum_squares(x: &[f32]) -> f32 {
            let run = RowRun::new(bytemuck::cast_slice(x), size_of_val(x), RowIds::From(0));
            of_f32::dots(run.row(0), [ActView::F32(x)])[0]
        }

        pub(super) fn axpy(format: Format) -> AxpyFn {
            macro_rules! entry {
                ($axpy:path) => {
                    // SAFETY: `Kernels::select` hands out this level only where it was detected.
                    |h, row, y| unsafe { $axpy(h, row, y) }
                };
            }
            match format {
                Format::F32 => entry!(of_f32::axpy),
                Format::F16 => entry!(of_f16::axpy),
                Format::BF16 => entry!(of_bf16::axpy),
                Format::Q4_0 => entry!(super::transposed::axpy_q4_0),
                Format::Q8_0 => entry!(super::transposed::axpy_q8_0),
                Format::Q4_1 | Format::Q4_K | Format::Q5_K | Format::Q6_K | Format::U32 => {
                    scalar::axpy(format)
                }
            }
        }
    };
}
pub(super) use plain_kernels;

/// One format of `$size` bytes, of which `$widen` reads `LANES` values.
macro_rules! plain_format {
    ($features:literal, $name:ident, $size:literal, $widen:ident) => {
        pub(super) mod $name {
            use super::*;

            #[inline]
            #[target_feature(enable = $features)]
            fn step<const N: usize>(
                row: &[u8; STEP * $size],
                x: [&[f32; STEP]; N],
                acc: &mut [[V; 4]; N],
            ) {
                for k in 0..4 {
                    let weights = $widen(row, LANES * $size * k);
                    for (acc, x) in acc.iter_mut().zip(x) {
                        acc[k] = fmadd(weights, load_ps(x, LANES * k), acc[k]);
                    }
                }
            }

            #[target_feature(enable = $features)]
            pub(in super::super) fn dots<const N: usize>(
                row: Row<'_>,
                x: [ActView<'_>; N],
            ) -> [f32; N] {
                let x = x.map(ActView::f32);
                for x in x {
                    assert_eq!(x.len() * $size, row.bytes.len(), "activations of another length");
                }
                let mut acc = [[zero(); 4]; N];
                let (steps, rest) = row.bytes.as_chunks();
                for (i, weights) in steps.iter().enumerate() {
                    row.ask::<{ STEP * $size }>(i * STEP * $size);
                    step(weights, x.map(|x| &x.as_chunks().0[i]), &mut acc);
                }
                if !rest.is_empty() {
                    let x = x.map(|x| padded(x.as_chunks::<STEP>().1));
                    step(&padded(rest), x.each_ref(), &mut acc);
                }
                let mut out = [0.0; N];
                for (out, [a, b, c, d]) in out.iter_mut().zip(acc) {
                    *out = total(add(add(a, b), add(c, d)));
                }
                out
            }

            #[target_feature(enable = $features)]
            pub(in super::super) fn axpy(h: f32, row: &[u8], y: &mut [f32]) {
                assert_eq!(y.len() * $size, row.len(), "a row of another length");
                let h = splat(h);
                let (steps, rest) = row.as_chunks::<{ LANES * $size }>();
                let (ys, y_rest) = y.as_chunks_mut::<LANES>();
                for (row, y) in steps.iter().zip(ys) {
                    let sum = fmadd(h, $widen(row, 0), load_ps(y, 0));
                    store_ps(y, 0, sum);
                }
                if !rest.is_empty() {
                    let mut last = padded::<_, LANES>(y_rest);
                    let row = padded::<_, { LANES * $size }>(rest);
                    let sum = fmadd(h, $widen(&row, 0), load_ps(&last, 0));
                    store_ps(&mut last, 0, sum);
                    y_rest.copy_from_slice(&last[..y_rest.len()]);
                }
            }
        }
    };
}
pub(super) use plain_format;
