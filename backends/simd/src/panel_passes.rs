//! Products of panels with tokens for levels where two vectors hold 16 rows: four tokens at a time.
//!
//! This is a macro, because each such level compiles it against its own module `vector`. The level
//! provides `dot_groups`, which multiplies quantised rows, and the `bias` that `dot_groups` leaves in
//! a format's codes.

/// The functions `quantised` and `plain` of a SIMD level with instructions `$features`, and type
/// `$products` as in `panel_kernels`.
macro_rules! panel_passes {
    ($features:literal $(, $products:ident: $bound:path)?) => {
        /// Tokens per pass.
        pub(super) const TOKENS: usize = 4;
        /// Vectors that the rows of a panel fill.
        pub(super) const ROW_VECTORS: usize = PANEL_ROWS / LANES;

        #[target_feature(enable = $features)]
        fn quantised<$($products: $bound,)? const GROUP: usize, const MIN: bool>(
            format: Format,
            panel: &[f32],
            k: &Range<usize>,
            x: &TokenRows<'_>,
            sums: &mut [[f32; PANEL_ROWS]],
        ) {
            let n = sums.len();
            let q = x.acts.q8().q;
            let mut factors = [Factors::default(); TOKENS];
            let dots = dot_groups::<$($products,)? GROUP, MIN>;
            for first in (0..n).step_by(TOKENS) {
                let tokens = x.tokens::<TOKENS>(first, n);
                for (factors, &t) in factors.iter_mut().zip(&tokens) {
                    factors.set::<GROUP, MIN>(x, t, k, bias(format), sums_of_16);
                }
                let q = tokens.map(|t| q[t * x.n_cols..][k.clone()].as_ptr().cast::<i32>());
                // SAFETY: each entry of `q` points to `k.len()` bytes, a whole number of blocks,
                // as `check_bounds` verified.
                let out = unsafe { dots(format, panel, &q, &factors, k.len() / GROUP) };
                for (sums, out) in sums[first..].iter_mut().zip(&out) {
                    add_to(sums, out);
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn add_to(sums: &mut [f32], out: &[V]) {
            for (i, &out) in out.iter().enumerate() {
                let sum = add(load_ps(sums, LANES * i), out);
                store_ps(sums, LANES * i, sum);
            }
        }

        /// Products for formats without blocks.
        #[target_feature(enable = $features)]
        fn plain(
            panel: &[f32],
            k: &Range<usize>,
            x: &TokenRows<'_>,
            sums: &mut [[f32; PANEL_ROWS]],
        ) {
            let n = sums.len();
            let x_all = x.acts.f32();
            for first in (0..n).step_by(TOKENS) {
                let x = x.tokens::<TOKENS>(first, n).map(|t| &x_all[t * x.n_cols..][k.clone()]);
                for part in (0..PANEL_ROWS).step_by(2 * LANES) {
                    let mut out = [[zero(); 2]; TOKENS];
                    let rows = &panel.as_chunks::<PANEL_ROWS>().0[..k.len()];
                    for (i, weights) in rows.iter().enumerate() {
                        let weights = [load_ps(weights, part), load_ps(weights, part + LANES)];
                        for (out, x) in out.iter_mut().zip(x) {
                            // SAFETY: each slice of `x` has `k.len()` values.
                            let x = splat(unsafe { *x.get_unchecked(i) });
                            for (out, weights) in out.iter_mut().zip(weights) {
                                *out = fmadd(weights, x, *out);
                            }
                        }
                    }
                    for (sums, out) in sums[first..].iter_mut().zip(out) {
                        add_to(&mut sums[part..], &out);
                    }
                }
            }
        }
    };
}
pub(super) use panel_passes;
