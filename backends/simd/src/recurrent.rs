//! Kernels for one token of the recurrent layers, written once for all SIMD levels.
//!
//! A result's bits depend only on its inputs and its index in the head: the delta rule sums a
//! column in the order of the rows, the scan sums a channel in vectors of one width. The kernels
//! are a macro, because each level compiles them against its own module `vector`.

/// The inputs of one head of the gated delta rule for one token ([`hal::op::GatedDelta`]).
#[derive(Clone, Copy, Debug)]
pub struct DeltaToken<'a> {
    /// Query, `[d_k]`.
    pub q: &'a [f32],
    /// Key, `[d_k]`.
    pub k: &'a [f32],
    /// `k . q`
    pub k_dot_q: f32,
    /// Decay factor of the state, `exp(a * dt)`.
    pub decay: f32,
    /// Write strength, after the sigmoid.
    pub beta: f32,
    /// Factor on the output.
    pub scale: f32,
}

/// Some columns of a head's state.
#[derive(Debug)]
pub struct DeltaColumns<'a> {
    /// State of the whole head, `[d_k, d_v]`.
    pub state: &'a mut [f32],
    /// Number of columns of the head.
    pub d_v: usize,
    /// The first column.
    pub first: usize,
}

/// Advances some columns of a state by one token: `v` and `y` belong to these columns.
pub type DeltaFn = fn(token: &DeltaToken<'_>, columns: DeltaColumns<'_>, v: &[f32], y: &mut [f32]);

/// The inputs of one token for channels of [`hal::op::SsmScan`] that are heads with a decay rate
/// for each value of their state (Mamba-1).
#[derive(Clone, Copy, Debug)]
pub struct ScanRates<'a> {
    /// Input projection B, `[d_state]`.
    pub b: &'a [f32],
    /// Output projection C, `[d_state]`.
    pub c: &'a [f32],
    /// Step sizes of the channels, after softplus, `[n]`.
    pub dt: &'a [f32],
    /// Decay rates, at most 0, `[n, d_state]`.
    pub rates: &'a [f32],
    /// Factors of the skip connection, `[n]`.
    pub d: &'a [f32],
}

/// As [`ScanFn`], for channels with a decay rate for each value of their state.
pub type ScanRatesFn = fn(token: &ScanRates<'_>, state: &mut [f32], x: &[f32], y: &mut [f32]);

/// The inputs of one head of the Mamba-2 recurrence for one token ([`hal::op::SsmScan`]).
#[derive(Clone, Copy, Debug)]
pub struct ScanToken<'a> {
    /// Input projection B, `[d_state]`.
    pub b: &'a [f32],
    /// Output projection C, `[d_state]`.
    pub c: &'a [f32],
    /// Step size, after softplus.
    pub dt: f32,
    /// Decay factor of the state, `exp(a * dt)`.
    pub decay: f32,
    /// Factor of the skip connection.
    pub d: f32,
}

/// Advances the state `[n, d_state]` of some channels by one token; `x` and `y` are `[n]`.
pub type ScanFn = fn(token: &ScanToken<'_>, state: &mut [f32], x: &[f32], y: &mut [f32]);

/// The inputs of one head of RWKV-7's recurrence for one token ([`hal::op::Wkv7`]). The gated delta
/// rule with a decay factor per row ([`hal::op::GatedDelta`]) is the same recurrence.
#[derive(Clone, Copy, Debug)]
pub struct WkvToken<'a> {
    /// Decay factors of the state's rows, `[d]`.
    pub decay: &'a [f32],
    /// Decay times receptance, `[d]`.
    pub decayed_r: &'a [f32],
    /// Removal key of length 1, `[d]`.
    pub u: &'a [f32],
    /// Removal key times rate, `[d]`.
    pub rated_u: &'a [f32],
    /// Key, `[d]`.
    pub k: &'a [f32],
    /// `k . r`
    pub k_dot_r: f32,
    /// `rated_u . r`
    pub u_dot_r: f32,
}

/// Advances the state `[d, n]` of a head, or `n` of its columns, by one token; `v` and `y` are `[n]`.
pub type WkvFn = fn(token: &WkvToken<'_>, state: &mut [f32], v: &[f32], y: &mut [f32]);

/// `x = exp(x)`, value by value.
pub type ExpFn = fn(x: &mut [f32]);

/// `y += a * b`, value by value.
pub type MultiplyAddFn = fn(y: &mut [f32], a: &[f32], b: &[f32]);

/// Maximum number of columns per call, over all SIMD levels.
pub const MAX_DELTA_COLUMNS: usize = 64;

/// Kernels of one SIMD level for recurrent layers.
pub(super) struct RecurrentKernels {
    /// Number of columns at which a call of `delta` is fastest, because their sums fill the
    /// registers.
    pub(super) delta_columns: usize,
    pub(super) delta: DeltaFn,
    pub(super) scan: ScanFn,
    pub(super) scan_rates: ScanRatesFn,
    pub(super) wkv: WkvFn,
    pub(super) exp: ExpFn,
    pub(super) multiply_add: MultiplyAddFn,
}

/// Contents of the module `recurrent` of a SIMD level; `$level` are the attributes of the
/// functions.
macro_rules! recurrent_kernels {
    ($(#[$level:meta])*) => {
        use super::super::recurrent::{
            DeltaColumns, DeltaToken, MAX_DELTA_COLUMNS, RecurrentKernels, ScanRates, ScanToken,
            WkvToken,
        };
        use super::activation::exp;

        pub(in super::super) const RECURRENT: RecurrentKernels = RecurrentKernels {
            delta_columns: {
                assert!(4 * LANES <= MAX_DELTA_COLUMNS);
                4 * LANES
            },
            // SAFETY: `Kernels::select` returns this level only if it was detected.
            delta: |token, columns, v, y| unsafe { delta(token, columns, v, y) },
            // SAFETY: as above.
            scan: |token, state, x, y| unsafe { scan(token, state, x, y) },
            // SAFETY: as above.
            scan_rates: |token, state, x, y| unsafe { scan_rates(token, state, x, y) },
            // SAFETY: as above.
            wkv: |token, state, v, y| unsafe { wkv(token, state, v, y) },
            // SAFETY: as above.
            exp: |x| unsafe { exp_all(x) },
            // SAFETY: as above.
            multiply_add: |y, a, b| unsafe { multiply_add(y, a, b) },
        };

        $(#[$level])*
        fn delta(token: &DeltaToken<'_>, columns: DeltaColumns<'_>, v: &[f32], y: &mut [f32]) {
            let DeltaColumns { state, d_v, first } = columns;
            assert!(first + v.len() <= d_v && v.len() == y.len(), "the columns exceed the head");
            assert!(token.q.len() == token.k.len() && token.k.len() * d_v == state.len());
            let mut at = 0;
            while v.len() - at >= 4 * LANES {
                delta_vectors::<4>(token, state, d_v, first + at, &v[at..], &mut y[at..]);
                at += 4 * LANES;
            }
            while v.len() - at >= LANES {
                delta_vectors::<1>(token, state, d_v, first + at, &v[at..], &mut y[at..]);
                at += LANES;
            }
            for at in at..v.len() {
                y[at] = delta_column(token, state, d_v, first + at, v[at]);
            }
        }

        /// Advances N vectors of columns from column `first` on. `known` and `sum` are the products
        /// of the old state with the key and with the query. The product of the new state with the
        /// query is `decay * sum + change * (k . q)`, so the output needs no second pass over the
        /// state.
        #[inline]
        $(#[$level])*
        fn delta_vectors<const N: usize>(
            token: &DeltaToken<'_>,
            state: &mut [f32],
            d_v: usize,
            first: usize,
            v: &[f32],
            y: &mut [f32],
        ) {
            let (mut known, mut sum) = ([zero(); N], [zero(); N]);
            for ((row, k), q) in state.chunks_exact(d_v).zip(token.k).zip(token.q) {
                let (row, k, q) = (&row[first..][..N * LANES], splat(*k), splat(*q));
                for c in 0..N {
                    let s = load_ps(row, c * LANES);
                    known[c] = fmadd(s, k, known[c]);
                    sum[c] = fmadd(s, q, sum[c]);
                }
            }
            let decay = splat(token.decay);
            let mut change = [zero(); N];
            for c in 0..N {
                let missing = fnmadd(decay, known[c], load_ps(v, c * LANES));
                change[c] = mul(splat(token.beta), missing);
                let product = fmadd(change[c], splat(token.k_dot_q), mul(decay, sum[c]));
                store_ps(y, c * LANES, mul(splat(token.scale), product));
            }
            for (row, k) in state.chunks_exact_mut(d_v).zip(token.k) {
                let (row, k) = (&mut row[first..][..N * LANES], splat(*k));
                for c in 0..N {
                    let s = fmadd(change[c], k, mul(decay, load_ps(row, c * LANES)));
                    store_ps(row, c * LANES, s);
                }
            }
        }

        /// Advances one column after the last whole vector.
        #[inline]
        $(#[$level])*
        fn delta_column(
            token: &DeltaToken<'_>,
            state: &mut [f32],
            d_v: usize,
            column: usize,
            v: f32,
        ) -> f32 {
            let (mut known, mut sum) = (0.0, 0.0);
            for ((row, k), q) in state.chunks_exact(d_v).zip(token.k).zip(token.q) {
                known += row[column] * k;
                sum += row[column] * q;
            }
            let change = token.beta * (v - token.decay * known);
            for (row, k) in state.chunks_exact_mut(d_v).zip(token.k) {
                row[column] = token.decay * row[column] + change * k;
            }
            token.scale * (token.decay * sum + change * token.k_dot_q)
        }

        $(#[$level])*
        fn scan(token: &ScanToken<'_>, state: &mut [f32], x: &[f32], y: &mut [f32]) {
            let d_state = token.b.len();
            assert!(token.c.len() == d_state && state.len() == x.len() * d_state);
            assert!(x.len() == y.len(), "x and y differ in length");
            let mut at = 0;
            while x.len() - at >= 4 {
                scan_channels::<4>(token, &mut state[at * d_state..], &x[at..], &mut y[at..]);
                at += 4;
            }
            for at in at..x.len() {
                scan_channels::<1>(token, &mut state[at * d_state..], &x[at..], &mut y[at..]);
            }
        }

        /// Advances N channels, which share the loads of `b` and `c`.
        #[inline]
        $(#[$level])*
        fn scan_channels<const N: usize>(
            token: &ScanToken<'_>,
            state: &mut [f32],
            x: &[f32],
            y: &mut [f32],
        ) {
            let d_state = token.b.len();
            let (b, b_rest) = token.b.as_chunks::<LANES>();
            let (c, c_rest) = token.c.as_chunks::<LANES>();
            let (n, whole) = (b.len(), b.len() * LANES);
            let c = &c[..n];
            let decay = splat(token.decay);
            let mut inputs = [0.0; N];
            for (input, x) in inputs.iter_mut().zip(x) {
                *input = token.dt * x;
            }
            let mut rows = state.chunks_exact_mut(d_state);
            let mut channels: [&mut [f32]; N] =
                std::array::from_fn(|_| rows.next().expect("the state has a row per channel"));
            // All slices have length `n`, so the loop has no bounds checks.
            let vectors = channels.each_mut().map(|row| &mut row.as_chunks_mut::<LANES>().0[..n]);
            let mut sums = [zero(); N];
            for i in 0..n {
                let (b, c) = (load_ps(&b[i], 0), load_ps(&c[i], 0));
                for r in 0..N {
                    let before = mul(decay, load_ps(&vectors[r][i], 0));
                    let after = fmadd(splat(inputs[r]), b, before);
                    store_ps(&mut vectors[r][i], 0, after);
                    sums[r] = fmadd(after, c, sums[r]);
                }
            }
            for r in 0..N {
                let mut sum = total(sums[r]);
                for ((s, b), c) in channels[r][whole..].iter_mut().zip(b_rest).zip(c_rest) {
                    *s = token.decay * *s + inputs[r] * b;
                    sum += *s * c;
                }
                y[r] = token.d * x[r] + sum;
            }
        }

        $(#[$level])*
        fn scan_rates(token: &ScanRates<'_>, state: &mut [f32], x: &[f32], y: &mut [f32]) {
            let (n, d_state) = (x.len(), token.b.len());
            assert!(token.c.len() == d_state && state.len() == n * d_state && y.len() == n);
            assert!(token.rates.len() == state.len() && token.dt.len() == n && token.d.len() == n);
            for channel in 0..n {
                let own = channel * d_state..(channel + 1) * d_state;
                let (state, rates) = (&mut state[own.clone()], &token.rates[own]);
                let (dt, input) = (token.dt[channel], token.dt[channel] * x[channel]);
                y[channel] = token.d[channel] * x[channel] + channel_of(token, state, rates, dt, input);
            }
        }

        /// Advances one channel; returns the product of its state with C.
        #[inline]
        $(#[$level])*
        fn channel_of(
            token: &ScanRates<'_>,
            state: &mut [f32],
            rates: &[f32],
            dt: f32,
            input: f32,
        ) -> f32 {
            let (b, c) = (token.b, token.c);
            let mut sums = zero();
            let whole = b.len() / LANES * LANES;
            for i in (0..whole).step_by(LANES) {
                let decay = exp(mul(splat(dt), load_ps(rates, i)));
                let after =
                    fmadd(splat(input), load_ps(b, i), mul(decay, load_ps(state, i)));
                store_ps(state, i, after);
                sums = fmadd(after, load_ps(c, i), sums);
            }
            let mut sum = total(sums);
            for i in whole..b.len() {
                state[i] = (dt * rates[i]).exp() * state[i] + input * b[i];
                sum += state[i] * c[i];
            }
            sum
        }

        $(#[$level])*
        fn wkv(token: &WkvToken<'_>, state: &mut [f32], v: &[f32], y: &mut [f32]) {
            let (n, d) = (v.len(), token.k.len());
            assert!(y.len() == n && n > 0 && state.len() == d * n);
            assert!(token.decay.len() == d && token.decayed_r.len() == d);
            assert!(token.u.len() == d && token.rated_u.len() == d);
            let mut at = 0;
            while n - at >= 4 * LANES {
                wkv_vectors::<4>(token, state, at, v, y);
                at += 4 * LANES;
            }
            while n - at >= LANES {
                wkv_vectors::<1>(token, state, at, v, y);
                at += LANES;
            }
            for column in at..n {
                let (mut known, mut sum) = (0.0, 0.0);
                for (i, row) in state.chunks_exact(n).enumerate() {
                    known += row[column] * token.u[i];
                    sum += row[column] * token.decayed_r[i];
                }
                for (i, row) in state.chunks_exact_mut(n).enumerate() {
                    let added = token.k[i] * v[column] - token.rated_u[i] * known;
                    row[column] = token.decay[i] * row[column] + added;
                }
                y[column] = sum + v[column] * token.k_dot_r - known * token.u_dot_r;
            }
        }

        /// Advances N vectors of columns from column `at` on. The output follows from the products
        /// of the old state, so that it needs no second pass.
        #[inline]
        $(#[$level])*
        fn wkv_vectors<const N: usize>(
            token: &WkvToken<'_>,
            state: &mut [f32],
            at: usize,
            v: &[f32],
            y: &mut [f32],
        ) {
            let n = v.len();
            let (mut known, mut sum) = ([zero(); N], [zero(); N]);
            for ((row, u), r) in state.chunks_exact(n).zip(token.u).zip(token.decayed_r) {
                let (row, u, r) = (&row[at..][..N * LANES], splat(*u), splat(*r));
                for c in 0..N {
                    let s = load_ps(row, c * LANES);
                    known[c] = fmadd(s, u, known[c]);
                    sum[c] = fmadd(s, r, sum[c]);
                }
            }
            let values: [_; N] = std::array::from_fn(|c| load_ps(v, at + c * LANES));
            for c in 0..N {
                let kept = fnmadd(known[c], splat(token.u_dot_r), sum[c]);
                store_ps(y, at + c * LANES, fmadd(values[c], splat(token.k_dot_r), kept));
            }
            let factors = token.decay.iter().zip(token.k).zip(token.rated_u);
            for (row, ((decay, k), u)) in state.chunks_exact_mut(n).zip(factors) {
                let row = &mut row[at..][..N * LANES];
                for c in 0..N {
                    let kept = mul(splat(*decay), load_ps(row, c * LANES));
                    let added = fmadd(splat(*k), values[c], kept);
                    store_ps(row, c * LANES, fnmadd(splat(*u), known[c], added));
                }
            }
        }

        $(#[$level])*
        fn exp_all(x: &mut [f32]) {
            let whole = x.len() / LANES * LANES;
            for i in (0..whole).step_by(LANES) {
                store_ps(x, i, exp(load_ps(x, i)));
            }
            x[whole..].iter_mut().for_each(|x| *x = x.exp());
        }

        $(#[$level])*
        fn multiply_add(y: &mut [f32], a: &[f32], b: &[f32]) {
            assert!(y.len() == a.len() && y.len() == b.len(), "the operands differ in length");
            let whole = y.len() / LANES * LANES;
            for i in (0..whole).step_by(LANES) {
                store_ps(y, i, fmadd(load_ps(a, i), load_ps(b, i), load_ps(y, i)));
            }
            for i in whole..y.len() {
                y[i] += a[i] * b[i];
            }
        }
    };
}
pub(super) use recurrent_kernels;
