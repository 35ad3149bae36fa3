//! Trains a predictor's two matrices, starting from the factors.
//!
//! The loss is the cost of skipping with a soft threshold: the share of the squared contributions
//! that is missed, plus a price for each listed neuron. The price is the value of a neuron in the
//! untrained list, so the lists stay about as accurate and get shorter. Weights are quantised in
//! the forward pass, not in the backward pass.
//!
//! Source: straight-through rounding, Bengio et al. 2013; the optimiser is candle's AdamW.

use candle_core::{Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use hal::format::Format;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::factor::Factors;
use super::make::Formats;
use super::matrix::Dense;
use super::seen::Seen;

/// Tokens of a step.
const BATCH: usize = 512;
/// Width of the soft threshold, in standard deviations of a neuron's test value given its score.
const SOFT: f64 = 0.5;
/// Price of a listed neuron, relative to the loss per neuron of the untrained list.
const PRICE: f64 = 3.0;
/// The learning rate of the first step, as a share of a matrix's mean deviation; it decreases
/// linearly to 0.
const RATE: f64 = 0.02;
/// The same for biases, in deviations.
const BIAS_RATE: f64 = 0.02;

/// The trained parameters.
#[derive(Clone, Debug)]
pub(super) struct Trained {
    pub(super) factors: Factors,
    pub(super) bias: Vec<f32>,
}

/// Trains `start` for `n_steps` on the observations `seen`; `lengths` are the norms of the
/// neurons' rows of down. `step` receives the number of finished steps and cancels by returning
/// `false`.
pub(super) fn train(
    start: &Trained,
    formats: Formats,
    seen: &Seen,
    lengths: &[f32],
    n_steps: usize,
    step: &mut dyn FnMut(usize) -> bool,
) -> candle_core::Result<Option<Trained>> {
    let Factors { fc1, fc2 } = &start.factors;
    let on = Device::Cpu;
    let var = |dense: &Dense| {
        let shape = (dense.n_rows, dense.n_cols);
        Var::from_tensor(&Tensor::from_slice(&dense.values, shape, &on)?)
    };
    let (fc1_var, fc2_var) = (var(fc1)?, var(fc2)?);
    let bias = Var::from_tensor(&Tensor::from_slice(&start.bias, start.bias.len(), &on)?)?;
    let optimiser = |var: &Var, lr: f64| {
        let params = ParamsAdamW { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
        AdamW::new(vec![var.clone()], params)
    };
    let rates = [RATE * spread(&fc1.values), RATE * spread(&fc2.values), BIAS_RATE];
    let mut optimisers = [
        optimiser(&fc1_var, rates[0])?,
        optimiser(&fc2_var, rates[1])?,
        optimiser(&bias, rates[2])?,
    ];
    let mut random = ChaCha8Rng::seed_from_u64(seen.n_tokens() as u64);
    let mut price = None;
    for done in 0..n_steps {
        if !step(done) {
            return Ok(None);
        }
        let (x, costs) = batch(seen, lengths, formats.0, &mut random, &on)?;
        let hidden = x.matmul(&rounded(&fc1_var, fc1, formats.0)?.t()?)?;
        let scores = hidden.matmul(&rounded(&fc2_var, fc2, formats.1)?.t()?)?;
        let scores = scores.broadcast_add(bias.as_tensor())?;
        let listed = candle_nn::ops::sigmoid(&(scores / SOFT)?)?;
        let missed = (costs.broadcast_mul(&(1.0 - &listed)?)?.sum_all()? / costs.sum_all()?)?;
        let length = listed.mean_all()?;
        let price = match price {
            Some(price) => price,
            None => {
                let [missed, length] = [missed.to_scalar::<f32>()?, length.to_scalar::<f32>()?];
                *price.insert(PRICE * f64::from(missed / length.max(1e-6)))
            }
        };
        let loss = (missed + (length * price)?)?;
        let gradients = loss.backward()?;
        let left = 1.0 - done as f64 / n_steps as f64;
        for (optimiser, rate) in optimisers.iter_mut().zip(rates) {
            optimiser.set_learning_rate(rate * left);
            optimiser.step(&gradients)?;
        }
    }
    let values = |var: &Var| var.as_tensor().flatten_all()?.to_vec1::<f32>();
    let factors = Factors {
        fc1: Dense { values: values(&fc1_var)?, n_rows: fc1.n_rows, n_cols: fc1.n_cols },
        fc2: Dense { values: values(&fc2_var)?, n_rows: fc2.n_rows, n_cols: fc2.n_cols },
    };
    Ok(Some(Trained { factors, bias: values(&bias)? }))
}

fn spread(values: &[f32]) -> f64 {
    let squares: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    (squares / values.len().max(1) as f64).sqrt()
}

/// Inputs of random tokens, and the squared norm of every neuron's contribution.
fn batch(
    seen: &Seen,
    lengths: &[f32],
    format: Format,
    random: &mut ChaCha8Rng,
    on: &Device,
) -> candle_core::Result<(Tensor, Tensor)> {
    let mut x = Dense::new(0, seen.n_embd());
    let mut costs = Dense::new(BATCH, seen.n_ff());
    for i in 0..BATCH {
        let t = random.random_range(0..seen.n_tokens());
        x.push(seen.x.row(t));
        for part in seen.parts(t) {
            let n = part.neuron as usize;
            costs.values[i * seen.n_ff() + n] = (part.h * lengths[n]).powi(2);
        }
    }
    let x = x.activations(format);
    let tensor = |dense: Dense| Tensor::from_vec(dense.values, (dense.n_rows, dense.n_cols), on);
    Ok((tensor(x)?, tensor(costs)?))
}

/// The values of `var` quantised to `format`; the gradient is that of the unquantised values.
fn rounded(var: &Var, shape: &Dense, format: Format) -> candle_core::Result<Tensor> {
    let values = var.as_tensor().flatten_all()?.to_vec1::<f32>()?;
    let dense = Dense { values, n_rows: shape.n_rows, n_cols: shape.n_cols };
    let near = Dense::of(&dense.quantized(format)).map_err(candle_core::Error::wrap)?;
    let near = Tensor::from_vec(near.values, (shape.n_rows, shape.n_cols), &Device::Cpu)?;
    let change = (near - var.as_tensor())?.detach();
    var.as_tensor() + change
}
