//! Attention over rows of the KV cache, written once for all SIMD levels: products of several
//! queries with every key row, softmax, weighted sums of value rows.
//!
//! A kernel reads each row once for the queries of a tile, and the accumulators of a tile (queries
//! by keys, or queries by columns) fill the registers. A query's results are the same in any tile:
//! products are summed along the row in a fixed order, value rows in order of position.
//!
//! The kernels are macros, because each level compiles them against its own module `vector`.

use std::ops::Range;

use hal::format::Format;

use super::rows::prefetch_line;

/// Queries and sums are padded with zeros to a multiple of this many values.
pub const PAD: usize = 16;

/// One head's columns in the cache rows of consecutive positions.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// All bytes of the cache tensor.
    pub bytes: &'a [u8],
    /// Bytes of a cache row.
    pub row_bytes: usize,
    /// Offset of the head in a row, in bytes.
    pub at: usize,
    /// Bytes of the head in a row.
    pub len: usize,
    /// Values of the head in a row.
    pub n_cols: usize,
    /// Indices of the cache rows, in order of position.
    pub ids: &'a [u32],
    /// Rows to prefetch, one for each row that is read.
    pub next: &'a [u32],
}

impl<'a> HeadRows<'a> {
    /// The bytes of row `i` of the list.
    ///
    /// # Panics
    /// If the list or the cache ends before it.
    #[inline]
    #[must_use]
    pub fn row(&self, i: usize) -> &'a [u8] {
        self.head_bytes(self.ids[i])
    }

    #[inline]
    fn head_bytes(&self, id: u32) -> &'a [u8] {
        &self.bytes[id as usize * self.row_bytes + self.at..][..self.len]
    }

    /// Prefetches `bytes` of row `i` of `next`. Rows are too far apart for hardware prefetchers.
    #[inline]
    pub(super) fn prefetch(&self, i: usize, bytes: Range<usize>) {
        if let Some(&id) = self.next.get(i) {
            let row = self.head_bytes(id);
            for line in row[bytes.start..bytes.end.min(row.len())].chunks(64) {
                prefetch_line(line.as_ptr());
            }
        }
    }

    /// Number of values of a padded row.
    #[inline]
    #[must_use]
    pub fn width(&self) -> usize {
        self.n_cols.next_multiple_of(PAD)
    }
}

/// Dot products of queries with keys: `q` is `[n, width]`, `scores` is `[n, stride]`. The first
/// `keys.ids.len()` entries of each row of `scores` are written.
pub type ScoresFn = fn(q: &[f32], keys: &HeadRows<'_>, scores: &mut [f32], stride: usize);
/// Adds the sum of `weights[r][i] * values[i]` to `sums[r]` for each query `r`: `weights` is
/// `[n, stride]`, `sums` is `[n, width]`.
pub type AddWeightedFn =
    fn(weights: &[f32], stride: usize, values: &HeadRows<'_>, sums: &mut [f32]);
/// Converts rows to F32, each padded with zeros: `out` is `[n, width]`.
pub type WidenFn = fn(rows: &HeadRows<'_>, out: &mut [f32]);
/// Quantises values to a row of the cache, with the bits of [`Format::quantize_cache`].
pub type StoreFn = fn(values: &[f32], row: &mut [u8]);

/// Kernels that read rows of the KV cache in one format.
#[derive(Clone, Copy, Debug)]
pub struct RowKernels {
    /// Products with keys.
    pub scores: ScoresFn,
    /// Weighted sums of values.
    pub add_weighted: AddWeightedFn,
}

/// Kernels for one format of the KV cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheKernels {
    /// Kernels that read the rows as they are; `None` for a format whose rows are converted to F32
    /// first, a few at a time.
    pub rows: Option<RowKernels>,
    /// Converts rows to F32.
    pub widen: WidenFn,
    /// Stores new rows.
    pub store: StoreFn,
}

/// Replaces each score with `exp(score - largest)`; returns the largest score and the sum of the
/// new values. The number of scores is a multiple of [`PAD`].
pub type SoftmaxFn = fn(scores: &mut [f32]) -> [f32; 2];

/// Attention kernels of one SIMD level.
pub(super) struct AttentionKernels {
    /// `None` for formats that the cache does not support.
    pub(super) cache: fn(Format) -> Option<CacheKernels>,
    pub(super) softmax: SoftmaxFn,
}

/// Positions per pass: few enough that their keys stay in the L1 cache for all queries.
pub(super) const PANEL: usize = 16;

/// Contents of the module `attention` of a SIMD level; `$level` are the attributes of the
/// functions.
macro_rules! attention_kernels {
    ($(#[$level:meta])*) => {
        use hal::format::{Format, IQ4_CODES};
        use super::activation::exp;
        use super::super::attention::{
            AttentionKernels, CacheKernels, HeadRows, PANEL, RowKernels,
        };
        use super::super::cache_blocks::{five_bits, nibbles};
        use super::super::store::{bf16_row, q8_0_row};
        use super::super::tile::pad_with_zeros;

        pub(in super::super) const ATTENTION: AttentionKernels = AttentionKernels {
            cache,
            // SAFETY: `Kernels::select` returns this level only if it was detected.
            softmax: |scores| unsafe { softmax(scores) },
        };

        #[allow(clippy::wildcard_enum_match_arm, reason = "`KV_FORMATS` has no other formats")]
        fn cache(format: Format) -> Option<CacheKernels> {
            macro_rules! entry {
                ($name:ident, $store:expr) => {
                    Some(CacheKernels {
                        rows: Some(RowKernels {
                            // SAFETY: `Kernels::select` returns this level only if it was detected.
                            scores: |q, keys, out, stride| unsafe {
                                $name::scores(q, keys, out, stride);
                            },
                            // SAFETY: as above.
                            add_weighted: |w, stride, values, sums| unsafe {
                                $name::add_weighted(w, stride, values, sums);
                            },
                        }),
                        // SAFETY: as above.
                        widen: |rows, out| unsafe { $name::widen(rows, out) },
                        store: $store,
                    })
                };
            }
            macro_rules! blocks {
                ($format:ident, $widen:ident) => {
                    Some(CacheKernels {
                        rows: None,
                        // SAFETY: as above.
                        widen: |rows, out| unsafe { $widen(rows, out) },
                        store: |values, row| Format::$format.quantize_cache(values, row),
                    })
                };
            }
            match format {
                Format::F32 => {
                    entry!(of_f32, |v, row| row.copy_from_slice(bytemuck::cast_slice(v)))
                }
                // SAFETY: as above.
                Format::F16 => entry!(of_f16, |v, row| unsafe { store_f16(v, row) }),
                // SAFETY: as above.
                Format::BF16 => entry!(of_bf16, |v, row| unsafe { store_bf16(v, row) }),
                // SAFETY: as above.
                Format::Q8_0 => entry!(of_q8_0, |v, row| unsafe { store_q8_0(v, row) }),
                Format::Q4_0 => blocks!(Q4_0, widen_q4_0),
                Format::Q4_1 => blocks!(Q4_1, widen_q4_1),
                Format::Q5_0 => blocks!(Q5_0, widen_q5_0),
                Format::Q5_1 => blocks!(Q5_1, widen_q5_1),
                Format::IQ4_NL => blocks!(IQ4_NL, widen_iq4_nl),
                _ => None,
            }
        }

        super::super::store::store_kernels!($(#[$level])*);
        super::super::cache_blocks::block_kernels!($(#[$level])*);

        $(#[$level])*
        fn softmax(scores: &mut [f32]) -> [f32; 2] {
            let (scores, rest) = scores.as_chunks_mut::<LANES>();
            assert!(rest.is_empty(), "scores are not padded");
            let mut most = splat(f32::NEG_INFINITY);
            for s in &*scores {
                most = max(most, load_ps(s, 0));
            }
            let mut lanes = [0.0; LANES];
            store_ps(&mut lanes, 0, most);
            let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = zero();
            for s in scores {
                let weight = exp(add(load_ps(s, 0), splat(-largest)));
                store_ps(s, 0, weight);
                sum = add(sum, weight);
            }
            [largest, total(sum)]
        }

        super::super::attention::cache_kernels!(of_f32, 4, widen_f32, $(#[$level])*);
        super::super::attention::cache_kernels!(of_f16, 2, widen_f16, $(#[$level])*);
        super::super::attention::cache_kernels!(of_bf16, 2, widen_bf16, $(#[$level])*);
        super::super::attention::cache_kernels!(of_q8_0, 0, widen_i8, $(#[$level])*);
    };
}
pub(super) use attention_kernels;

/// Kernels of one format; `$size` is the bytes per value, or 0 for Q8_0.
macro_rules! cache_kernels {
    ($name:ident, $size:literal, $widen:ident, $(#[$level:meta])*) => {
        mod $name {
            use super::*;

            /// Byte offset of vector `e` in a row; for Q8_0, of the block that contains the vector.
            fn byte_offset(e: usize) -> usize {
                if $size == 0 { LANES * e / 32 * 34 } else { LANES * e * $size }
            }

            /// Vector `e` of a row, for vectors that lie completely in the row.
            #[inline]
            $(#[$level])*
            fn load(row: &[u8], e: usize) -> V {
                if $size == 0 {
                    let block = &row[byte_offset(e)..][..34];
                    return mul(one_scale(block), widen_i8(block, 2 + LANES * e % 32));
                }
                $widen(row, byte_offset(e))
            }

            /// The incomplete last vector of a row, padded with zeros. Rows of Q8_0 have no
            /// incomplete vector.
            #[inline]
            $(#[$level])*
            fn load_rest(row: &[u8], e: usize) -> V {
                $widen(&pad_with_zeros::<_, { LANES * $size }>(&row[byte_offset(e)..]), 0)
            }

            #[inline]
            $(#[$level])*
            fn load_any<const WHOLE: bool>(row: &[u8], e: usize) -> V {
                if WHOLE || $size == 0 { load(row, e) } else { load_rest(row, e) }
            }

            /// Adds the products of vector `e` of all queries and keys to `acc`.
            #[inline]
            $(#[$level])*
            fn step<const R: usize, const K: usize, const WHOLE: bool>(
                q: &[f32],
                keys: &[&[u8]; K],
                e: usize,
                acc: &mut [V; LANES],
            ) {
                let (width, mut queries) = (q.len() / R, [zero(); R]);
                for (r, query) in queries.iter_mut().enumerate() {
                    *query = load_ps(q, r * width + e * LANES);
                }
                for (i, row) in keys.iter().enumerate() {
                    let key = load_any::<WHOLE>(row, e);
                    for (r, query) in queries.into_iter().enumerate() {
                        acc[r * K + i] = fmadd(key, query, acc[r * K + i]);
                    }
                }
            }

            /// The dot products of `R` queries with `K` keys, ordered by query.
            #[inline]
            $(#[$level])*
            fn products<const R: usize, const K: usize>(
                q: &[f32],
                keys: &[&[u8]; K],
                n_cols: usize,
            ) -> [f32; LANES] {
                const { assert!(R * K == LANES) };
                let mut acc = [zero(); LANES];
                for e in 0..n_cols / LANES {
                    step::<R, K, true>(q, keys, e, &mut acc);
                }
                if !n_cols.is_multiple_of(LANES) {
                    step::<R, K, false>(q, keys, n_cols / LANES, &mut acc);
                }
                let mut out = [0.0; LANES];
                store_ps(&mut out, 0, lane_sums(acc));
                out
            }

            /// Multiplies a panel of keys, from `first` on, by `R` queries; with `fetch`, also
            /// prefetches the next rows.
            #[inline]
            $(#[$level])*
            fn score<const R: usize, const K: usize>(
                q: &[f32],
                keys: &HeadRows<'_>,
                first: usize,
                scores: &mut [f32],
                stride: usize,
                fetch: bool,
            ) {
                let last = keys.ids.len() - 1;
                for at in (first..keys.ids.len().min(first + PANEL)).step_by(K) {
                    let mut rows = [&[][..]; K];
                    for (i, row) in rows.iter_mut().enumerate() {
                        *row = keys.row(last.min(at + i));
                        if fetch {
                            keys.prefetch(at + i, 0..keys.len);
                        }
                    }
                    let products = products::<R, K>(q, &rows, keys.n_cols);
                    let n = K.min(keys.ids.len() - at);
                    for (r, products) in products.chunks_exact(K).enumerate() {
                        scores[r * stride + at..][..n].copy_from_slice(&products[..n]);
                    }
                }
            }

            $(#[$level])*
            pub(super) fn scores(
                q: &[f32],
                keys: &HeadRows<'_>,
                scores: &mut [f32],
                stride: usize,
            ) {
                let width = keys.width();
                let n = q.len() / width;
                for first in (0..keys.ids.len()).step_by(PANEL) {
                    let mut r = 0;
                    while r < n {
                        let fetch = r == 0;
                        let (q, scores) = (&q[r * width..], &mut scores[r * stride..]);
                        r += match n - r {
                            4.. => {
                                let q = &q[..4 * width];
                                score::<4, { LANES / 4 }>(q, keys, first, scores, stride, fetch);
                                4
                            }
                            2..=3 => {
                                let q = &q[..2 * width];
                                score::<2, { LANES / 2 }>(q, keys, first, scores, stride, fetch);
                                2
                            }
                            _ => {
                                score::<1, LANES>(&q[..width], keys, first, scores, stride, fetch);
                                1
                            }
                        };
                    }
                }
            }

            /// Adds the weighted value rows to `C` vectors of the sums, from vector `first` on.
            #[inline]
            $(#[$level])*
            fn add_strip<const R: usize, const C: usize, const WHOLE: bool>(
                weights: &[f32],
                stride: usize,
                values: &HeadRows<'_>,
                sums: &mut [f32],
                first: usize,
            ) {
                let width = sums.len() / R;
                let at = |r, c| r * width + (first + c) * LANES;
                let mut acc = [[zero(); C]; R];
                for (r, acc) in acc.iter_mut().enumerate() {
                    for (c, acc) in acc.iter_mut().enumerate() {
                        *acc = load_ps(sums, at(r, c));
                    }
                }
                let mut rows = [&[][..]; R];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = &weights[r * stride..][..values.ids.len()];
                }
                for i in 0..values.ids.len() {
                    values.prefetch(i, byte_offset(first)..byte_offset(first + C));
                    let row = values.row(i);
                    let mut v = [zero(); C];
                    for (c, v) in v.iter_mut().enumerate() {
                        *v = load_any::<WHOLE>(row, first + c);
                    }
                    for (acc, weights) in acc.iter_mut().zip(rows) {
                        let weight = splat(weights[i]);
                        for (acc, v) in acc.iter_mut().zip(v) {
                            *acc = fmadd(weight, v, *acc);
                        }
                    }
                }
                for (r, acc) in acc.into_iter().enumerate() {
                    for (c, acc) in acc.into_iter().enumerate() {
                        store_ps(sums, at(r, c), acc);
                    }
                }
            }

            #[inline]
            $(#[$level])*
            fn add_strips<const R: usize>(
                weights: &[f32],
                stride: usize,
                values: &HeadRows<'_>,
                sums: &mut [f32],
            ) {
                let n = values.n_cols / LANES;
                let mut first = 0;
                while first < n {
                    first += match (n - first).min(LANES / R).min(8) {
                        8.. => {
                            add_strip::<R, 8, true>(weights, stride, values, sums, first);
                            8
                        }
                        4..=7 => {
                            add_strip::<R, 4, true>(weights, stride, values, sums, first);
                            4
                        }
                        2..=3 => {
                            add_strip::<R, 2, true>(weights, stride, values, sums, first);
                            2
                        }
                        _ => {
                            add_strip::<R, 1, true>(weights, stride, values, sums, first);
                            1
                        }
                    };
                }
                if !values.n_cols.is_multiple_of(LANES) {
                    add_strip::<R, 1, false>(weights, stride, values, sums, n);
                }
            }

            $(#[$level])*
            pub(super) fn add_weighted(
                weights: &[f32],
                stride: usize,
                values: &HeadRows<'_>,
                sums: &mut [f32],
            ) {
                let width = values.width();
                let mut r = 0;
                while r * width < sums.len() {
                    let (weights, sums) = (&weights[r * stride..], &mut sums[r * width..]);
                    r += match sums.len() / width {
                        4.. => {
                            add_strips::<4>(weights, stride, values, &mut sums[..4 * width]);
                            4
                        }
                        2..=3 => {
                            add_strips::<2>(weights, stride, values, &mut sums[..2 * width]);
                            2
                        }
                        _ => {
                            add_strips::<1>(weights, stride, values, &mut sums[..width]);
                            1
                        }
                    };
                }
            }

            $(#[$level])*
            pub(super) fn widen(rows: &HeadRows<'_>, out: &mut [f32]) {
                for (i, out) in out.chunks_exact_mut(rows.width()).enumerate() {
                    rows.prefetch(i, 0..rows.len);
                    let row = rows.row(i);
                    let n = rows.n_cols / LANES;
                    for e in 0..n {
                        store_ps(out, e * LANES, load(row, e));
                    }
                    out[n * LANES..].fill(0.0);
                    if !rows.n_cols.is_multiple_of(LANES) {
                        store_ps(out, n * LANES, load_rest(row, n));
                    }
                }
            }
        }
    };
}
pub(super) use cache_kernels;
