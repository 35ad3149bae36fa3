//! Trains a predictor's two matrices, starting from the factors.
//!
//! The loss is the cost of skipping with a soft threshold: the fraction of the squared
//! contributions that is missed, plus a price for each listed neuron. The price is a multiple of
//! the loss per neuron in the untrained list, so the lists stay about as accurate and get shorter.
//! The forward pass quantises the weights; the gradients ignore the rounding.
//!
//! Products are divided into the same blocks on every machine, so the number of threads does not
//! change any bit of a predictor.
//!
//! Source: straight-through rounding, Bengio et al. 2013; Adam, Kingma and Ba 2015.

use faer::MatMut;
use faer::linalg::matmul::matmul;
use faer::{Accum, MatRef};
use hal::format::Format;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::Result;
use super::factor::Factors;
use super::make::Formats;
use super::matrix::{DenseMatrix, PAR};
use super::observations::Observations;

/// Tokens per training step.
const BATCH: usize = 512;
/// Width of the soft threshold, in standard deviations of a neuron's test value given its score.
const THRESHOLD_WIDTH: f32 = 0.5;
/// Price of a listed neuron, relative to the loss per neuron of the untrained list.
const PRICE: f64 = 3.0;
/// The learning rate of the first step, relative to the root mean square of the matrix. It
/// decreases linearly to 0.
const RATE: f64 = 0.02;
/// The learning rate of biases, in standard deviations; it decreases like [`RATE`].
const BIAS_RATE: f64 = 0.02;
/// Rows of a product that one thread computes at once.
const BLOCK_ROWS: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct TrainedFactors {
    pub(super) factors: Factors,
    pub(super) bias: Vec<f32>,
}

/// Trains `start` for `n_steps` on the observations `seen`; `lengths` are the norms of the neurons'
/// rows of down. `step` receives the number of finished steps and cancels by returning `false`; the
/// result is then `None`.
///
/// # Errors
/// [`super::Error::Read`] if quantised weights cannot be read back.
pub(super) fn train(
    start: &TrainedFactors,
    formats: Formats,
    seen: &Observations,
    lengths: &[f32],
    n_steps: usize,
    step: &mut dyn FnMut(usize) -> bool,
) -> Result<Option<TrainedFactors>> {
    let mut trained = start.clone();
    let Factors { fc1, fc2 } = &start.factors;
    let mut adam = [
        Adam::new(RATE * root_mean_square(&fc1.values), fc1.values.len()),
        Adam::new(RATE * root_mean_square(&fc2.values), fc2.values.len()),
        Adam::new(BIAS_RATE, start.bias.len()),
    ];
    let mut random = ChaCha8Rng::seed_from_u64(seen.n_tokens() as u64);
    let mut price = None;
    for done in 0..n_steps {
        if !step(done) {
            return Ok(None);
        }
        let batch = Batch::random(seen, lengths, formats.0, &mut random);
        let forward = Forward::new(&trained, formats, &batch)?;
        let price = *price.get_or_insert_with(|| {
            PRICE * forward.missed_fraction(&batch.costs) / forward.mean_listed().max(1e-6)
        });
        let gradients = forward.gradients(&batch, price);
        let left = 1.0 - done as f64 / n_steps as f64;
        let TrainedFactors { factors, bias } = &mut trained;
        let parameters = [&mut factors.fc1.values, &mut factors.fc2.values, bias];
        for ((adam, values), gradient) in adam.iter_mut().zip(parameters).zip(&gradients) {
            adam.step(left, values, gradient);
        }
    }
    Ok(Some(trained))
}

fn root_mean_square(values: &[f32]) -> f64 {
    let squares: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    (squares / values.len().max(1) as f64).sqrt()
}

/// Randomly drawn tokens of the text.
struct Batch {
    /// Inputs, rounded as the engine rounds them: `[BATCH, n_embd]`.
    x: DenseMatrix,
    /// The squared norm of every neuron's contribution: `[BATCH, n_ff]`.
    costs: DenseMatrix,
}

impl Batch {
    fn random(
        seen: &Observations,
        lengths: &[f32],
        format: Format,
        random: &mut ChaCha8Rng,
    ) -> Batch {
        let mut x = DenseMatrix::new(0, seen.n_embd());
        let mut costs = DenseMatrix::new(BATCH, seen.n_ff());
        for i in 0..BATCH {
            let t = random.random_range(0..seen.n_tokens());
            x.push(seen.x.row(t));
            for part in seen.contributions(t) {
                let n = part.neuron as usize;
                costs.values[i * seen.n_ff() + n] = (part.h * lengths[n]).powi(2);
            }
        }
        Batch { x: x.activations(format), costs }
    }
}

/// Intermediate results that the backward pass needs.
struct Forward {
    /// The second matrix as quantised: `[n_ff, rank]`.
    fc2: DenseMatrix,
    /// `x fc1^T`: `[BATCH, rank]`.
    hidden: DenseMatrix,
    /// Soft membership of each neuron in the list, from 0 to 1: `[BATCH, n_ff]`.
    listed: DenseMatrix,
}

impl Forward {
    fn new(trained: &TrainedFactors, formats: Formats, batch: &Batch) -> Result<Forward> {
        let TrainedFactors { factors, bias } = trained;
        let fc1 = DenseMatrix::dequantize(&factors.fc1.quantized(formats.0))?;
        let fc2 = DenseMatrix::dequantize(&factors.fc2.quantized(formats.1))?;
        let hidden = product(batch.x.view(), fc1.view().transpose());
        let mut listed = product(hidden.view(), fc2.view().transpose());
        listed.values.par_chunks_mut(bias.len().max(1)).for_each(|row| {
            for (score, bias) in row.iter_mut().zip(bias) {
                *score = logistic((*score + bias) / THRESHOLD_WIDTH);
            }
        });
        Ok(Forward { fc2, hidden, listed })
    }

    /// Fraction of the costs on neurons that are not listed.
    fn missed_fraction(&self, costs: &DenseMatrix) -> f64 {
        let pairs = self.listed.values.iter().zip(&costs.values);
        let missed: f64 = pairs.map(|(listed, cost)| f64::from(cost * (1.0 - listed))).sum();
        missed / total(costs)
    }

    fn mean_listed(&self) -> f64 {
        sum(&self.listed.values) / self.listed.values.len().max(1) as f64
    }

    /// Gradients of `missed + price * mean_listed` with respect to both matrices and the bias, with
    /// straight-through rounding.
    fn gradients(self, batch: &Batch, price: f64) -> [Vec<f32>; 3] {
        let Forward { fc2, hidden, listed } = self;
        let per_cost = (1.0 / total(&batch.costs)) as f32;
        let per_neuron = (price / listed.values.len().max(1) as f64) as f32;
        let mut scores = listed;
        scores.values.par_iter_mut().zip(&batch.costs.values).for_each(|(value, cost)| {
            let slope = *value * (1.0 - *value) / THRESHOLD_WIDTH;
            *value = (per_neuron - cost * per_cost) * slope;
        });
        let mut bias = vec![0.0; scores.n_cols];
        for row in scores.values.chunks_exact(scores.n_cols.max(1)) {
            bias.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        let by_hidden = product(scores.view(), fc2.view());
        let by_fc2 = product(scores.view().transpose(), hidden.view());
        let by_fc1 = product(by_hidden.view().transpose(), batch.x.view());
        [by_fc1.values, by_fc2.values, bias]
    }
}

/// `1 / (1 + exp(-x))` with an error of a few units in the last place. The compiler vectorises it,
/// unlike `exp` of the C library, and the result is the same on all machines.
fn logistic(x: f32) -> f32 {
    // Adding this rounds to a whole number, and leaves it in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: products of the first with whole numbers below 2^8 are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -0.000_212_194_44];
    const TAYLOR: [f32; 7] = [1.0, 1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0];
    let power = (-x).clamp(-87.0, 87.0);
    let rounded = power * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let rest = (power - n * LN_2[0]) - n * LN_2[1];
    let exp = TAYLOR.iter().rev().fold(0.0, |sum, factor| sum * rest + factor);
    let scale = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    1.0 / (1.0 + exp * scale)
}

/// The sum of the costs, at least 1e-30, because it is a divisor and all costs may be 0.
fn total(costs: &DenseMatrix) -> f64 {
    sum(&costs.values).max(1e-30)
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v)).sum()
}

/// `a * b`, in parallel blocks of rows.
fn product(a: MatRef<'_, f32>, b: MatRef<'_, f32>) -> DenseMatrix {
    let mut to = DenseMatrix::new(a.nrows(), b.ncols());
    let n_cols = to.n_cols;
    let blocks = to.values.par_chunks_mut((BLOCK_ROWS * n_cols).max(1));
    blocks.enumerate().for_each(|(block, values)| {
        let n_rows = values.len() / n_cols.max(1);
        let rows = a.subrows(block * BLOCK_ROWS, n_rows);
        let out = MatMut::from_row_major_slice_mut(values, n_rows, n_cols);
        matmul(out, Accum::Replace, rows, b, 1.0, PAR);
    });
    to
}

/// The optimiser of one matrix or of the biases.
struct Adam {
    /// Learning rate of the first step.
    rate: f64,
    n_steps: i32,
    /// Running means of the gradient and of its square.
    means: Vec<f32>,
    squares: Vec<f32>,
}

impl Adam {
    const BETA1: f32 = 0.9;
    const BETA2: f32 = 0.999;
    const EPS: f32 = 1e-8;

    fn new(rate: f64, n: usize) -> Adam {
        Adam { rate, n_steps: 0, means: vec![0.0; n], squares: vec![0.0; n] }
    }

    /// One Adam step; `share` scales the learning rate.
    fn step(&mut self, share: f64, values: &mut [f32], gradient: &[f32]) {
        self.n_steps += 1;
        let rate = (self.rate * share) as f32;
        let unbiased = |beta: f32| 1.0 / (1.0 - f64::from(beta).powi(self.n_steps)) as f32;
        let (scale1, scale2) = (unbiased(Adam::BETA1), unbiased(Adam::BETA2));
        let state = self.means.iter_mut().zip(&mut self.squares);
        for ((value, g), (mean, square)) in values.iter_mut().zip(gradient).zip(state) {
            *mean = Adam::BETA1 * *mean + (1.0 - Adam::BETA1) * g;
            *square = Adam::BETA2 * *square + (1.0 - Adam::BETA2) * g * g;
            *value -= rate * (*mean * scale1) / ((*square * scale2).sqrt() + Adam::EPS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: Formats = Formats(Format::F32, Format::F32);

    fn dense(n_rows: usize, n_cols: usize, random: &mut ChaCha8Rng) -> DenseMatrix {
        let values = (0..n_rows * n_cols).map(|_| random.random_range(-1.0..1.0)).collect();
        DenseMatrix { n_rows, n_cols, values }
    }

    fn loss(trained: &TrainedFactors, batch: &Batch, price: f64) -> f64 {
        let forward = Forward::new(trained, FORMATS, batch).unwrap();
        forward.missed_fraction(&batch.costs) + price * forward.mean_listed()
    }

    #[test]
    fn the_logistic_function_is_accurate() {
        for i in -4000..=4000 {
            let x = i as f32 / 46.0;
            let expected = 1.0 / (1.0 + (-f64::from(x)).exp());
            let off = (f64::from(logistic(x)) - expected).abs();
            assert!(off <= 5e-7 * expected.max(1e-37), "{x}: {expected} {off}");
        }
        assert!(logistic(f32::MAX) == 1.0 && logistic(f32::MIN) < 1e-30);
        assert!(logistic(f32::NAN).is_nan());
    }

    #[test]
    fn gradients_match_the_loss() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let (n_tokens, n_embd, rank, n_ff) = (70, 9, 5, 13);
        let factors =
            Factors { fc1: dense(rank, n_embd, &mut random), fc2: dense(n_ff, rank, &mut random) };
        let bias = dense(1, n_ff, &mut random).values;
        let trained = TrainedFactors { factors, bias };
        let mut costs = dense(n_tokens, n_ff, &mut random);
        costs.values.iter_mut().for_each(|v| *v *= *v);
        let batch = Batch { x: dense(n_tokens, n_embd, &mut random), costs };
        let price = 0.7;
        let forward = Forward::new(&trained, FORMATS, &batch).unwrap();
        let gradients = forward.gradients(&batch, price);
        let add = |to: &mut TrainedFactors, which: usize, i: usize, by: f32| match which {
            0 => to.factors.fc1.values[i] += by,
            1 => to.factors.fc2.values[i] += by,
            _ => to.bias[i] += by,
        };
        for (which, gradient) in gradients.iter().enumerate() {
            for (i, &found) in gradient.iter().enumerate() {
                let at = |by: f32| {
                    let mut moved = trained.clone();
                    add(&mut moved, which, i, by);
                    loss(&moved, &batch, price)
                };
                let expected = (at(1e-2) - at(-1e-2)) / 2e-2;
                assert!(
                    (f64::from(found) - expected).abs() < 1e-5,
                    "{which} {i}: {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn adam_follows_its_formula() {
        let mut adam = Adam::new(0.1, 1);
        let mut value = [1.0f32];
        // The first Adam step is as long as the rate, for any gradient.
        adam.step(1.0, &mut value, &[0.25]);
        assert!((value[0] - 0.9).abs() < 1e-6);
        adam.step(0.5, &mut value, &[-0.25]);
        // The mean gradient is 0.025, then -0.0025, to be divided by 1 - 0.9^2 = 0.19. The mean
        // square is 6.25e-5, then 1.249375e-4, to be divided by 1 - 0.999^2 = 0.001999.
        let moved = 0.05 * (-0.0025 / 0.19) / (1.249_375e-4f32 / 0.001_999).sqrt();
        assert!((value[0] - (0.9 - moved)).abs() < 1e-5, "{}", value[0]);
    }
}
