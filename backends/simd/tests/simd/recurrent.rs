//! Compares the recurrent kernels of every level with the formulas in f64.

use crate::{all_kernels, random};
use thermocline_simd::{DeltaColumns, DeltaToken, Kernels, ScanToken};

/// The largest difference divided by the largest expected value.
fn error(got: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(0.0, |most: f64, e| most.max(e.abs()));
    let difference =
        got.iter().zip(expected).fold(0.0, |most: f64, (g, e)| most.max((f64::from(*g) - e).abs()));
    difference / largest
}

/// Splits `d_v` columns into ranges of `width`; the last range may be narrower.
fn column_ranges(d_v: usize, width: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..d_v).step_by(width).map(move |first| first..d_v.min(first + width))
}

fn delta(kernels: &Kernels, token: &DeltaToken<'_>, state: &mut [f32], v: &[f32]) -> Vec<f32> {
    let mut y = vec![f32::NAN; v.len()];
    for columns in column_ranges(v.len(), kernels.delta_columns()) {
        let place = DeltaColumns { state, d_v: v.len(), first: columns.start };
        kernels.delta()(token, place, &v[columns.clone()], &mut y[columns]);
    }
    y
}

#[test]
fn delta_rule_matches_the_formula() {
    for (d_k, d_v) in [(1, 1), (5, 7), (16, 33), (128, 128), (130, 75)] {
        let (q, k, v) = (random(d_k, 1), random(d_k, 2), random(d_v, 3));
        let before = random(d_k * d_v, 4);
        let k_dot_q: f64 = k.iter().zip(&q).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let (decay, beta, scale) = (0.75, 0.3, 0.125);
        let token = DeltaToken { q: &q, k: &k, k_dot_q: k_dot_q as f32, decay, beta, scale };
        let mut expected: Vec<f64> =
            before.iter().map(|s| f64::from(*s) * f64::from(decay)).collect();
        let mut expected_y = vec![0.0; d_v];
        for j in 0..d_v {
            let product = |state: &[f64], x: &[f32]| -> f64 {
                (0..d_k).map(|i| state[i * d_v + j] * f64::from(x[i])).sum()
            };
            let change = f64::from(beta) * (f64::from(v[j]) - product(&expected, &k));
            for i in 0..d_k {
                expected[i * d_v + j] += change * f64::from(k[i]);
            }
            expected_y[j] = f64::from(scale) * product(&expected, &q);
        }
        for kernels in all_kernels() {
            let mut state = before.clone();
            let y = delta(&kernels, &token, &mut state, &v);
            let errors = [error(&y, &expected_y), error(&state, &expected)];
            assert!(errors.iter().all(|e| *e < 3e-6), "{kernels:?} {d_k}x{d_v}: {errors:?}");
        }
    }
}

#[test]
fn scan_matches_the_formula() {
    for (n, d_state) in [(1, 1), (5, 7), (9, 64), (16, 128), (6, 200)] {
        let (b, c, x) = (random(d_state, 1), random(d_state, 2), random(n, 3));
        let before = random(n * d_state, 4);
        let (dt, decay, d) = (0.6, 0.9, -0.4);
        let token = ScanToken { b: &b, c: &c, dt, decay, d };
        let [dt, decay, d] = [dt, decay, d].map(f64::from);
        let mut expected = vec![0.0; n * d_state];
        let mut expected_y = vec![0.0; n];
        for r in 0..n {
            expected_y[r] = d * f64::from(x[r]);
            for i in 0..d_state {
                let at = r * d_state + i;
                expected[at] =
                    decay * f64::from(before[at]) + dt * f64::from(x[r]) * f64::from(b[i]);
                expected_y[r] += expected[at] * f64::from(c[i]);
            }
        }
        for kernels in all_kernels() {
            let (mut state, mut y) = (before.clone(), vec![f32::NAN; n]);
            kernels.scan()(&token, &mut state, &x, &mut y);
            let errors = [error(&y, &expected_y), error(&state, &expected)];
            assert!(errors.iter().all(|e| *e < 3e-6), "{kernels:?} {n}x{d_state}: {errors:?}");
        }
    }
}

#[test]
fn other_channels_do_not_change_a_channel_of_the_scan() {
    let (n, d_state) = (7, 37);
    let (b, c, x) = (random(d_state, 1), random(d_state, 2), random(n, 3));
    let token = ScanToken { b: &b, c: &c, dt: 0.6, decay: 0.9, d: 0.2 };
    for kernels in all_kernels() {
        let (mut state, mut y) = (random(n * d_state, 4), vec![0.0; n]);
        let alone: Vec<u32> = (0..n)
            .map(|r| {
                let mut y = [0.0];
                let mut state = state[r * d_state..][..d_state].to_vec();
                kernels.scan()(&token, &mut state, &x[r..=r], &mut y);
                y[0].to_bits()
            })
            .collect();
        kernels.scan()(&token, &mut state, &x, &mut y);
        assert_eq!(y.iter().map(|y| y.to_bits()).collect::<Vec<_>>(), alone, "{kernels:?}");
    }
}

#[test]
fn multiply_add_matches_the_formula() {
    for n in [0, 1, 8, 31, 64, 77] {
        let (a, b, before) = (random(n, 1), random(n, 2), random(n, 3));
        for kernels in all_kernels() {
            let mut y = before.clone();
            kernels.multiply_add()(&mut y, &a, &b);
            for i in 0..n {
                let expected = f64::from(before[i]) + f64::from(a[i]) * f64::from(b[i]);
                let near = (f64::from(y[i]) - expected).abs() <= 2e-7 * (1.0 + expected.abs());
                assert!(near, "{kernels:?} {i} of {n}: {} instead of {expected}", y[i]);
            }
        }
    }
}
