//! Kernels of formats without blocks, and the sum of squares, written once for all vector levels.
//!
//! Each level has a module `vector` with its register type `V` of `LANES` floats and the operations
//! used in this file. The kernels are macros, because each level compiles them for its own
//! instructions.

/// Contents of the module `plain` of a SIMD level with instructions `$features`.
macro_rules! plain_kernels {
    ($features:literal) => {
        use super::super::ActView;
        use super::super::rows::{Row, RowRun};
        use super::super::tile::{Tokens, pad_with_zeros};
        use super::vector::*;

        /// Values per step of a dot product, which has four independent sums.
        const STEP: usize = 4 * LANES;

        super::super::plain::plain_format!($features, of_f32, 4, widen_f32);
        super::super::plain::plain_format!($features, of_f16, 2, widen_f16);
        super::super::plain::plain_format!($features, of_bf16, 2, widen_bf16);

        #[target_feature(enable = $features)]
        pub(super) fn sum_squares(x: &[f32]) -> f32 {
            let run = RowRun::single(bytemuck::cast_slice(x));
            of_f32::dots(run.row(0), Tokens::new([ActView::F32(x)], &None))[0]
        }
    };
}
pub(super) use plain_kernels;

/// Kernels of one format with `$size` bytes per value; `$widen` converts `LANES` values to floats.
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
                x: Tokens<'_, N>,
            ) -> [f32; N] {
                let x = x.views.map(ActView::f32);
                for x in x {
                    assert_eq!(
                        x.len() * $size,
                        row.bytes.len(),
                        "the activations and the row differ in length"
                    );
                }
                let mut acc = [[zero(); 4]; N];
                let (steps, rest) = row.bytes.as_chunks();
                for (i, weights) in steps.iter().enumerate() {
                    row.prefetch_ahead::<{ STEP * $size }>(i * STEP * $size);
                    step(weights, x.map(|x| &x.as_chunks().0[i]), &mut acc);
                }
                if !rest.is_empty() {
                    let x = x.map(|x| pad_with_zeros(x.as_chunks::<STEP>().1));
                    step(&pad_with_zeros(rest), x.each_ref(), &mut acc);
                }
                let mut out = [0.0; N];
                for (out, [a, b, c, d]) in out.iter_mut().zip(acc) {
                    *out = total(add(add(a, b), add(c, d)));
                }
                out
            }

            /// Adds multiples of rows to `y`, in the order of the rows.
            #[target_feature(enable = $features)]
            pub(in super::super) fn add_rows<const N: usize>(
                h: [f32; N],
                rows: [Row<'_>; N],
                y: &mut [f32],
            ) {
                for row in rows {
                    assert_eq!(y.len() * $size, row.bytes.len(), "y and the row differ in length");
                }
                let parts = rows.map(|row| row.bytes.as_chunks::<{ LANES * $size }>());
                let (ys, y_rest) = y.as_chunks_mut::<LANES>();
                for (i, y) in ys.iter_mut().enumerate() {
                    let mut sum = load_ps(y, 0);
                    // By index: the compiler does not unroll zipped arrays, and copies them for each `y`.
                    for k in 0..N {
                        if i % 4 == 0 {
                            rows[k].prefetch_ahead::<{ 4 * LANES * $size }>(i * LANES * $size);
                        }
                        sum = fmadd(splat(h[k]), $widen(&parts[k].0[i], 0), sum);
                    }
                    store_ps(y, 0, sum);
                }
                if !y_rest.is_empty() {
                    let mut last = pad_with_zeros::<_, LANES>(y_rest);
                    for (h, (_, rest)) in h.into_iter().zip(parts) {
                        let row = pad_with_zeros::<_, { LANES * $size }>(rest);
                        let sum = fmadd(splat(h), $widen(&row, 0), load_ps(&last, 0));
                        store_ps(&mut last, 0, sum);
                    }
                    y_rest.copy_from_slice(&last[..y_rest.len()]);
                }
            }
        }
    };
}
pub(super) use plain_format;
