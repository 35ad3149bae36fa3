//! Low-rank factors of the matrix that determines the active neurons.
//!
//! `test = w . x` is the test value (the product of the gate, or of up). The factors of rank `r`
//! with the least error on the inputs of a text differ from those of `w` alone: an error in a
//! direction in which no input lies costs nothing. A component that is the same for all inputs is
//! a constant per neuron, which is included in the bias of its score, so only the variation of
//! inputs about their mean counts. With `C = L L^T` their covariance, `E|(w - w') (x - mean)|^2 =
//! |(w - w') L|^2`, so the best `w'` is the truncated singular value decomposition of `w L`,
//! multiplied by `L^-1`. Its right vectors are the eigenvectors of `L^T w^T w L`.
//!
//! The mean must not be one of the directions: in models whose neurons are seldom active, its
//! column would be many times larger than all others, and would reduce the precision of the values
//! in the same quantised block.
//!
//! If only a few of many directions are needed, subspace iteration finds them: a narrow random
//! matrix that is repeatedly multiplied by `w L` and its transpose converges to the directions
//! with the largest singular values.
//!
//! Source: data-aware low-rank factors as in SVD-LLM (Wang et al. 2024) and SVDP; randomised
//! subspace iteration, Halko, Martinsson and Tropp 2011.

use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_upper_triangular_in_place;
use faer::{Accum, Mat, MatRef, Side};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::matrix::{DenseMatrix, PAR};

/// Minimum fraction of each input's variance that is treated as independent of other inputs, so
/// that directions that do not occur in the text keep some variance.
const RIDGE: f64 = 1e-4;
/// An input with less than this fraction of the mean variance counts as constant.
const CONSTANT: f64 = 1e-9;
/// From this number of tokens per direction on, only the minimum shrinkage is applied.
const TOKENS_PER_DIRECTION: usize = 4;
/// Rows that are converted to f64 and added to a moment at once.
const BATCH_ROWS: usize = 2048;
/// Subspace iteration is used for ranks up to the width divided by this number.
const MIN_WIDTH_PER_RANK: usize = 4;
/// Additional directions of subspace iteration, so that the last needed ones are accurate too.
const EXTRA_DIRECTIONS: usize = 16;
const ITERATIONS: usize = 3;

/// The first two moments of inputs.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    /// `sum over tokens of x`
    sum: Vec<f64>,
    /// `sum over tokens of x x^T`
    squares: Mat<f64>,
    n_tokens: usize,
}

impl Moment {
    #[must_use]
    pub(super) fn new(n_embd: usize) -> Moment {
        Moment { sum: vec![0.0; n_embd], squares: Mat::zeros(n_embd, n_embd), n_tokens: 0 }
    }

    /// Adds the rows of `x`, in batches, because they take twice the memory as f64.
    pub(super) fn add(&mut self, x: &DenseMatrix) {
        for values in x.values.chunks(BATCH_ROWS * x.n_cols.max(1)) {
            let rows = MatRef::from_row_major_slice(values, values.len() / x.n_cols, x.n_cols);
            let rows = Mat::from_fn(rows.nrows(), rows.ncols(), |i, j| f64::from(rows[(i, j)]));
            matmul(self.squares.as_mut(), Accum::Add, rows.transpose(), rows.as_ref(), 1.0, PAR);
        }
        for row in x.values.chunks_exact(x.n_cols.max(1)) {
            self.sum.iter_mut().zip(row).for_each(|(sum, &v)| *sum += f64::from(v));
        }
        self.n_tokens += x.n_rows;
    }

    fn covariance(&self) -> Mat<f64> {
        let n = self.sum.len();
        let per_token = 1.0 / self.n_tokens.max(1) as f64;
        Mat::from_fn(n, n, |i, j| {
            let means = self.sum[i] * per_token * self.sum[j] * per_token;
            self.squares[(i, j)] * per_token - means
        })
    }

    /// The fraction, from 0 to 1, by which the inputs' `correlation` is shrunk: a few tokens lie in
    /// a few directions by chance, and contain no information about the others.
    ///
    /// Source: oracle approximating shrinkage, Chen, Wiesel, Eldar and Hero 2010, applied to
    /// correlations, because the variances of a model's inputs differ by orders of magnitude (as in
    /// Schafer and Strimmer 2005).
    fn shrinkage(&self, correlation: &Mat<f64>) -> f64 {
        let n = correlation.nrows();
        if self.n_tokens >= TOKENS_PER_DIRECTION * n {
            return RIDGE;
        }
        let (p, tokens) = (n as f64, self.n_tokens as f64);
        let square = correlation.norm_l2().powi(2);
        let trace = (0..n).map(|i| correlation[(i, i)]).sum::<f64>().powi(2);
        let rest = 1.0 - 2.0 / p;
        let share = (rest * square + trace) / ((tokens + rest) * (square - trace / p));
        if share.is_finite() && share > 0.0 { share.clamp(RIDGE, 1.0) } else { 1.0 }
    }

    /// The lower Cholesky factor of the covariance, and the indices of the inputs that are the same
    /// for all tokens. The factor treats these inputs as independent, with the mean variance; the
    /// caller must exclude them from all directions.
    fn root(&self) -> Result<(Mat<f64>, Vec<usize>), &'static str> {
        let covariance = self.covariance();
        let n = covariance.nrows();
        let mean = (0..n).map(|i| covariance[(i, i)]).sum::<f64>() / n.max(1) as f64;
        if !(mean.is_finite() && mean > 0.0) {
            return Err("the inputs are all the same or contain NaN");
        }
        let constant: Vec<bool> = (0..n).map(|i| covariance[(i, i)] <= CONSTANT * mean).collect();
        let deviation =
            |i: usize| if constant[i] { mean.sqrt() } else { covariance[(i, i)].sqrt() };
        let correlation = Mat::from_fn(n, n, |i, j| {
            if i == j {
                1.0
            } else if constant[i] || constant[j] {
                0.0
            } else {
                covariance[(i, j)] / (deviation(i) * deviation(j))
            }
        });
        let share = self.shrinkage(&correlation);
        let shrunk = Mat::from_fn(n, n, |i, j| {
            let together = correlation[(i, j)] * if i == j { 1.0 } else { 1.0 - share };
            together * deviation(i) * deviation(j)
        });
        let factor = shrunk.llt(Side::Lower).map_err(|_| "it is not positive definite")?;
        Ok((factor.L().to_owned(), (0..n).filter(|&i| constant[i]).collect()))
    }
}

/// `test ~ fc2 . fc1 . x`, with columns and rows in order of importance.
#[derive(Clone, Debug)]
pub(super) struct Factors {
    /// `[rank, n_embd]`; on the inputs of the moment, its outputs have variance 1 and are
    /// uncorrelated. The columns of inputs that are the same for all tokens are 0.
    pub(super) fc1: DenseMatrix,
    /// `[n_ff, rank]`
    pub(super) fc2: DenseMatrix,
}

impl Factors {
    /// The best factors of rank `rank` of `w` `[n_ff, n_embd]` on inputs of `moment`, up to a
    /// constant for each neuron.
    ///
    /// # Errors
    /// The reason why the moment or `w` cannot be factored.
    pub(super) fn new(
        w: &DenseMatrix,
        moment: &Moment,
        rank: usize,
    ) -> Result<Factors, &'static str> {
        let (root, constant) = moment.root()?;
        let (mut w, n) = (w.to_f64(), root.nrows());
        for &i in &constant {
            w.col_mut(i).fill(0.0);
        }
        let rank = rank.min(n);
        let (right, fc2) = if rank * MIN_WIDTH_PER_RANK <= n {
            approximate_factors(w.as_ref(), root.as_ref(), rank)?
        } else {
            exact_factors(w.as_ref(), root.as_ref(), rank)?
        };
        // fc1 = right^T L^-1, so fc1^T = L^-T right.
        let mut fc1 = right;
        solve_upper_triangular_in_place(root.transpose(), fc1.as_mut(), PAR);
        // The solver leaves rounding errors here; these entries must be exactly zero.
        for &i in &constant {
            fc1.row_mut(i).fill(0.0);
        }
        let factors = Factors {
            fc1: DenseMatrix::from_f64(fc1.transpose()),
            fc2: DenseMatrix::from_f64(fc2.as_ref()),
        };
        let finite = |dense: &DenseMatrix| dense.values.iter().all(|v| v.is_finite());
        if finite(&factors.fc1) && finite(&factors.fc2) {
            Ok(factors)
        } else {
            Err("a factor is NaN")
        }
    }

    /// The first `rank` rows of `fc1` and columns of `fc2`.
    #[must_use]
    pub(super) fn truncated(&self, rank: usize) -> Factors {
        let rank = rank.min(self.fc1.n_rows);
        let mut fc1 = self.fc1.clone();
        fc1.values.truncate(rank * fc1.n_cols);
        fc1.n_rows = rank;
        let mut fc2 = DenseMatrix::new(0, rank);
        self.fc2.values.chunks_exact(self.fc2.n_cols).for_each(|row| fc2.push(&row[..rank]));
        Factors { fc1, fc2 }
    }
}

fn product(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Mat<f64> {
    let mut to = Mat::zeros(a.nrows(), b.ncols());
    matmul(to.as_mut(), Accum::Replace, a, b, 1.0, PAR);
    to
}

/// The eigenvectors of `square` for its `rank` largest eigenvalues, in descending order.
fn largest_eigenvectors(square: &Mat<f64>, rank: usize) -> Result<Mat<f64>, &'static str> {
    let eigen = square.self_adjoint_eigen(Side::Lower).map_err(|_| "no eigenvectors")?;
    let n = square.nrows();
    Ok(Mat::from_fn(n, rank, |i, j| eigen.U()[(i, n - 1 - j)]))
}

/// The right singular vectors of `w root` for its `rank` largest singular values, and the products
/// of `w root` with these vectors.
fn exact_factors(
    w: MatRef<'_, f64>,
    root: MatRef<'_, f64>,
    rank: usize,
) -> Result<(Mat<f64>, Mat<f64>), &'static str> {
    let projected = product(w, root);
    let right = largest_eigenvectors(&product(projected.transpose(), projected.as_ref()), rank)?;
    let fc2 = product(projected.as_ref(), right.as_ref());
    Ok((right, fc2))
}

/// As [`exact_factors`], approximated by subspace iteration, which is faster if `rank` is much
/// smaller than the width of `root`.
fn approximate_factors(
    w: MatRef<'_, f64>,
    root: MatRef<'_, f64>,
    rank: usize,
) -> Result<(Mat<f64>, Mat<f64>), &'static str> {
    let n = root.nrows();
    let apply = |v: &Mat<f64>| product(w, product(root, v.as_ref()).as_ref());
    let mut random = ChaCha8Rng::seed_from_u64(n as u64);
    let start =
        Mat::from_fn(n, (rank + EXTRA_DIRECTIONS).min(n), |_, _| random.random_range(-1.0..1.0));
    let mut basis = start.qr().compute_thin_Q();
    for _ in 0..ITERATIONS {
        let left = apply(&basis).qr().compute_thin_Q();
        let right = product(root.transpose(), product(w.transpose(), left.as_ref()).as_ref());
        basis = right.qr().compute_thin_Q();
    }
    let projected = apply(&basis);
    let rotation = largest_eigenvectors(&product(projected.transpose(), projected.as_ref()), rank)?;
    Ok((product(basis.as_ref(), rotation.as_ref()), product(projected.as_ref(), rotation.as_ref())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matrix(n_rows: usize, n_cols: usize) -> impl Strategy<Value = DenseMatrix> {
        let values = proptest::collection::vec(-1.0f32..1.0, n_rows * n_cols);
        values.prop_map(move |values| DenseMatrix { n_rows, n_cols, values })
    }

    /// The error of factors, up to a constant for each neuron.
    fn error(w: &DenseMatrix, factors: &Factors, x: &DenseMatrix) -> f64 {
        let (exact, near) = (x.times(w), x.times(&factors.fc1).times(&factors.fc2));
        let pairs = exact.values.iter().zip(&near.values);
        let rest: Vec<f64> = pairs.map(|(a, b)| f64::from(a - b)).collect();
        varying(&rest, w.n_rows)
    }

    /// The sum of squares after subtracting the mean from each of the `n` columns of `values`.
    fn varying(values: &[f64], n: usize) -> f64 {
        let column_error = |column: usize| {
            let values = || values.iter().skip(column).step_by(n);
            let mean = values().sum::<f64>() / values().count() as f64;
            values().map(|v| (v - mean).powi(2)).sum::<f64>()
        };
        (0..n).map(column_error).sum()
    }

    fn size(w: &DenseMatrix, x: &DenseMatrix) -> f64 {
        let values: Vec<f64> = x.times(w).values.iter().copied().map(f64::from).collect();
        varying(&values, w.n_rows)
    }

    fn moment(x: &DenseMatrix) -> Moment {
        let mut moment = Moment::new(x.n_cols);
        moment.add(x);
        moment
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_low_rank_matrix_is_recovered(a in matrix(20, 3), b in matrix(3, 12), x in matrix(40, 12)) {
            let w = a.times(&b.transposed());
            let factors = Factors::new(&w, &moment(&x), 3).unwrap();
            let size = size(&w, &x);
            prop_assert!(error(&w, &factors, &x) <= 1e-6 * size + 1e-6);
        }

        #[test]
        fn factors_in_random_directions_are_not_better(w in matrix(20, 8), x in matrix(60, 8), other in matrix(8, 3)) {
            // Inputs lie mostly in a few directions, which is why factors need a moment.
            let mut x = x;
            x.values.chunks_exact_mut(8).for_each(|row| row[4..].iter_mut().for_each(|v| *v *= 0.1));
            let moment = moment(&x);
            let best = error(&w, &Factors::new(&w, &moment, 3).unwrap(), &x);
            // The best factors for these inputs within another, random space of three directions.
            let z = x.times(&other.transposed());
            let small = Factors::new(&other.transposed(), &moment, 3).unwrap();
            prop_assert!(z.values.iter().all(|v| v.is_finite()));
            let fc2 = {
                // `w C fc1^T`, because the outputs of fc1 are uncorrelated with variance 1.
                let near = x.times(&small.fc1);
                let mut fc2 = DenseMatrix::new(20, 3);
                let exact = x.times(&w);
                for n in 0..20 {
                    for k in 0..3 {
                        let mean = (0..60).map(|t| f64::from(near.row(t)[k])).sum::<f64>() / 60.0;
                        let term = |t: usize| f64::from(exact.row(t)[n]) * (f64::from(near.row(t)[k]) - mean);
                        fc2.values[n * 3 + k] = ((0..60).map(term).sum::<f64>() / 60.0) as f32;
                    }
                }
                fc2
            };
            let other = error(&w, &Factors { fc1: small.fc1, fc2 }, &x);
            let size = size(&w, &x);
            prop_assert!(best <= other + 1e-3 * size, "{best} {other}");
        }

        #[test]
        fn a_higher_rank_is_never_worse(w in matrix(20, 8), x in matrix(60, 8)) {
            let factors = Factors::new(&w, &moment(&x), 8).unwrap();
            let errors: Vec<f64> = (1..=8).map(|rank| error(&w, &factors.truncated(rank), &x)).collect();
            let size = size(&w, &x);
            prop_assert!(errors.windows(2).all(|pair| pair[1] <= pair[0] + 1e-3 * size), "{errors:?}");
            prop_assert!(errors[7] <= 1e-6 * size);
        }
    }

    #[test]
    fn factors_of_20_tokens_fit_other_tokens() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut values = |n: usize, m: usize| DenseMatrix {
            n_rows: n,
            n_cols: m,
            values: (0..n * m).map(|_| random.random_range(-1.0f32..1.0)).collect(),
        };
        let (a, b, mut w) = (values(40, 3), values(3, 32), values(40, 32));
        let low = a.times(&b.transposed());
        w.values.iter_mut().zip(&low.values).for_each(|(w, low)| *w = 0.1 * *w + low);
        let (few, many) = (values(20, 32), values(400, 32));
        let factors = Factors::new(&w, &moment(&few), 3).unwrap();
        let size = size(&w, &many);
        let lost = error(&w, &factors, &many) / size;
        assert!(lost < 0.02, "{lost}");
    }

    #[test]
    fn constant_inputs_use_no_rank() {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let mut values = |n: usize, m: usize| DenseMatrix {
            n_rows: n,
            n_cols: m,
            values: (0..n * m).map(|_| random.random_range(-1.0f32..1.0)).collect(),
        };
        // Seldom active neurons: each has large negative weights on an input that never changes and
        // on an input that hardly changes.
        let (a, b, mut x) = (values(40, 3), values(3, 32), values(100, 32));
        let mut w = a.times(&b.transposed());
        w.values.chunks_exact_mut(32).for_each(|row| row[..2].fill(-50.0));
        for (t, row) in x.values.chunks_exact_mut(32).enumerate() {
            row[0] = 1.0;
            row[1] = 1.0 + 1e-6 * (t % 3) as f32;
        }
        let factors = Factors::new(&w, &moment(&x), 3).unwrap();
        assert!((0..3).all(|k| factors.fc1.row(k)[0] == 0.0));
        let lost = error(&w, &factors, &x) / size(&w, &x);
        assert!(lost < 1e-4, "{lost}");
        let largest = |row: &[f32]| row.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        assert!(largest(&factors.fc2.values) < 10.0, "{}", largest(&factors.fc2.values));
    }

    #[test]
    fn subspace_iteration_is_nearly_as_accurate() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut values = |n: usize, m: usize| DenseMatrix {
            n_rows: n,
            n_cols: m,
            values: (0..n * m).map(|_| random.random_range(-1.0f32..1.0)).collect(),
        };
        // Singular values that decrease slowly, the hard case.
        let (mut w, x) = (values(90, 64), values(300, 64));
        for row in w.values.chunks_exact_mut(64) {
            row.iter_mut().enumerate().for_each(|(i, v)| *v /= (1.0 + i as f32).sqrt());
        }
        let (root, _) = moment(&x).root().unwrap();
        let wide = w.to_f64();
        let rest = |found: (Mat<f64>, Mat<f64>)| {
            let exact = product(wide.as_ref(), root.as_ref());
            let near = product(found.1.as_ref(), found.0.transpose());
            (exact - near).norm_l2()
        };
        let [exact, near] = [
            rest(exact_factors(wide.as_ref(), root.as_ref(), 12).unwrap()),
            rest(approximate_factors(wide.as_ref(), root.as_ref(), 12).unwrap()),
        ];
        assert!(near >= exact * 0.999_999 && near <= exact * 1.01, "{near} {exact}");
    }

    #[test]
    fn constant_and_nan_inputs_are_rejected() {
        let w = DenseMatrix::new(4, 3);
        assert!(Factors::new(&w, &Moment::new(3), 2).is_err());
        let mut moment = Moment::new(3);
        moment.add(&DenseMatrix { n_rows: 1, n_cols: 3, values: vec![f32::NAN, 0.0, 0.0] });
        assert!(Factors::new(&w, &moment, 2).is_err());
    }
}
