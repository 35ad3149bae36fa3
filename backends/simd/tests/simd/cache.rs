//! Kernels for rows of the KV cache.

use hal::format::Format;
use thermocline_simd::*;

use crate::{all_kernels, assert_close, dequantized, random};

/// Edge cases in whole blocks of 32: ordinary, tiny and huge values, and values halfway between two
/// codes.
fn edge_values(n: usize) -> Vec<f32> {
    let scales = [1.0, 0.0, 1e-39, 3e-38, 7e-8, 1e7, 3e38, 127.0 / 2.0];
    let mut values = random(n, 5);
    for (block, scale) in values.chunks_mut(32).zip(scales.iter().cycle()) {
        block.iter_mut().for_each(|v| *v *= scale);
    }
    let special = [127.0, 0.5, -0.5, 0.499_999_97, 1.5, -2.5, -127.0, f32::NAN, f32::INFINITY];
    for (i, v) in special.into_iter().enumerate() {
        // The first seven values share a block whose scale is 1; each other value has its own
        // block.
        let at = if i < 7 { i } else { 64 * i };
        if let Some(value) = values.get_mut(at) {
            *value = v;
        }
    }
    values
}

#[test]
fn rows_are_stored_with_the_bits_of_the_format() {
    for kernels in all_kernels() {
        for &format in hal::op::KV_FORMATS {
            for n in [32, 96, 1024, 1, 8, 33, 300] {
                let n = n * format.block_values();
                let values = edge_values(n);
                let mut row = vec![0xA5; format.row_bytes(n).unwrap()];
                (kernels.cache(format).store)(&values, &mut row);
                assert!(row == cached(format, &values), "{:?} {format} {n}", kernels.level());
            }
        }
    }
}

fn cached(format: Format, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xA5; format.row_bytes(values.len()).unwrap()];
    format.quantize_cache(values, &mut bytes);
    bytes
}

/// A cache of `n` rows of three heads in shuffled order; the middle head is tested.
struct Cache {
    bytes: Vec<u8>,
    ids: Vec<u32>,
    format: Format,
    n_cols: usize,
}

impl Cache {
    fn new(format: Format, n: usize, n_cols: usize) -> Cache {
        let bytes = cached(format, &random(n * 3 * n_cols, 8));
        let ids = (0..n).map(|i| ((i * 7 + 3) % n) as u32).collect();
        Cache { bytes, ids, format, n_cols }
    }

    fn head(&self) -> HeadRows<'_> {
        let len = self.format.row_bytes(self.n_cols).unwrap();
        let (bytes, row_bytes, n_cols) = (&self.bytes[..], 3 * len, self.n_cols);
        HeadRows { bytes, row_bytes, at: len, len, n_cols, ids: &self.ids, next: &self.ids[1..] }
    }

    fn row(&self, i: usize) -> Vec<f64> {
        let row = self.head().row(i);
        dequantized(self.format, row, self.n_cols).into_iter().map(f64::from).collect()
    }
}

fn caches() -> impl Iterator<Item = Cache> {
    // No number of rows is a multiple of 7, so the order visits every row.
    let sizes =
        [(1, 32), (5, 64), (16, 96), (37, 128), (40, 256), (33, 40), (18, 80), (20, 6), (3, 1)];
    let formats = hal::op::KV_FORMATS.iter();
    let all = formats.flat_map(move |&format| sizes.map(|(n, n_cols)| (format, n, n_cols)));
    all.filter(|(format, _, n_cols)| *n_cols % format.block_values() == 0)
        .map(|(format, n, n_cols)| Cache::new(format, n, n_cols))
}

#[test]
fn scores_do_not_depend_on_other_queries() {
    for kernels in all_kernels() {
        for cache in caches() {
            let (head, stride) = (cache.head(), 64);
            let (n, width) = (head.ids.len(), head.width());
            let Some(RowKernels { scores, .. }) = kernels.cache(cache.format).rows else {
                continue;
            };
            let case = format!("{:?} {} {n} x {}", kernels.level(), cache.format, cache.n_cols);
            let mut q = random(7 * width, 9);
            q.chunks_exact_mut(width).for_each(|q| q[cache.n_cols..].fill(0.0));
            let mut all = vec![f32::NAN; 7 * stride];
            scores(&q, &head, &mut all, stride);
            for (r, q) in q.chunks_exact(width).enumerate() {
                let mut alone = vec![f32::NAN; stride];
                scores(q, &head, &mut alone, stride);
                let row = &all[r * stride..][..stride];
                assert!(row[n..].iter().chain(&alone[n..]).all(|s| s.is_nan()), "{case}");
                for (i, (a, b)) in row[..n].iter().zip(&alone).enumerate() {
                    assert_eq!(a.to_bits(), b.to_bits(), "{case} {r} {i}");
                    let products =
                        || cache.row(i).into_iter().zip(q).map(|(k, q)| k * f64::from(*q));
                    assert_close(*a, products().sum(), products().map(f64::abs).sum(), &case);
                }
            }
        }
    }
}

#[test]
fn weighted_sums_do_not_depend_on_other_queries() {
    for kernels in all_kernels() {
        for cache in caches() {
            let (head, stride) = (cache.head(), 64);
            let (n, width) = (head.ids.len(), head.width());
            let case = format!("{:?} {} {n} x {}", kernels.level(), cache.format, cache.n_cols);
            let CacheKernels { rows, widen, .. } = kernels.cache(cache.format);
            let weights = random(4 * stride, 3);
            let begin = random(4 * width, 4);
            let mut wide = vec![f32::NAN; n * width];
            widen(&head, &mut wide);
            for n_queries in 1..=4 {
                let Some(RowKernels { add_weighted, .. }) = rows else { continue };
                let mut all = begin[..n_queries * width].to_vec();
                add_weighted(&weights, stride, &head, &mut all);
                for (r, sums) in all.chunks_exact(width).enumerate() {
                    let mut alone = begin[r * width..][..width].to_vec();
                    add_weighted(&weights[r * stride..], stride, &head, &mut alone);
                    for c in 0..cache.n_cols {
                        assert_eq!(sums[c].to_bits(), alone[c].to_bits(), "{case} {r} {c}");
                        let start = f64::from(begin[r * width + c]);
                        let weight = |i: usize| f64::from(weights[r * stride + i]);
                        let terms = || (0..n).map(|i| weight(i) * cache.row(i)[c]);
                        let magnitude = start.abs() + terms().map(f64::abs).sum::<f64>();
                        assert_close(sums[c], start + terms().sum::<f64>(), magnitude, &case);
                    }
                }
            }
            for (i, wide) in wide.chunks_exact(width).enumerate() {
                let row: Vec<f64> = wide.iter().map(|v| f64::from(*v)).collect();
                assert!(row[..cache.n_cols] == cache.row(i), "{case}");
                assert!(row[cache.n_cols..].iter().all(|v| *v == 0.0), "{case}");
            }
        }
    }
}
