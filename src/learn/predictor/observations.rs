//! Observations of one layer while a text runs through the dense model.

use hal::op::{Activation, FfnKind};

use super::matrix::DenseMatrix;

/// A neuron's contribution to one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contribution {
    /// The neuron.
    pub neuron: u32,
    /// Factor on the neuron's row of down, with the router's weight of its expert; never 0.
    pub h: f32,
    /// Magnitude of the activated gate value, or of the activated up value in a block without gate.
    pub act: f32,
}

/// Tokens at one feed-forward block: inputs and contributing neurons.
#[derive(Clone, Debug)]
pub struct Observations {
    kind: FfnKind,
    activation: Activation,
    n_ff: usize,
    /// `[n_tokens, n_embd]`
    pub(super) x: DenseMatrix,
    /// Index of each token's first contribution, and finally the number of contributions.
    starts: Vec<usize>,
    contributions: Vec<Contribution>,
    /// Neurons that the dense model computes, summed over tokens: those of the experts used.
    n_computed: usize,
}

impl Observations {
    /// An empty list of observations of a block with `n_embd` inputs and `n_ff` neurons.
    #[must_use]
    pub fn new(kind: FfnKind, activation: Activation, n_embd: usize, n_ff: usize) -> Observations {
        let x = DenseMatrix::new(0, n_embd);
        let (starts, contributions) = (vec![0], Vec::new());
        Observations { kind, activation, n_ff, x, starts, contributions, n_computed: 0 }
    }

    /// Appends tokens: the predictor's input `x` `[n, n_embd]`, and the products of `gate` (if
    /// there is one) and `up` `[n, n_ff]`, biases included. `weights` `[n, n_expert]` are the
    /// router's, 0 for an expert that a token does not use; `None` in a block without experts.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn push(&mut self, x: &[f32], gate: Option<&[f32]>, up: &[f32], weights: Option<&[f32]>) {
        self.x.push(x);
        let n_tokens = self.x.n_rows - self.n_tokens();
        assert_eq!(up.len(), n_tokens * self.n_ff, "a row per token");
        assert_eq!(gate.is_some(), self.kind != FfnKind::Plain, "a gate where the block has one");
        let n_expert = weights.map_or(1, |weights| weights.len() / n_tokens.max(1)).max(1);
        let n_per_expert = self.n_ff / n_expert;
        for t in 0..n_tokens {
            for expert in 0..n_expert {
                let weight = weights.map_or(1.0, |weights| weights[t * n_expert + expert]);
                if weight == 0.0 {
                    continue;
                }
                let first = expert * n_per_expert;
                let at = t * self.n_ff + first..t * self.n_ff + first + n_per_expert;
                self.push_neurons(first, gate.map(|gate| &gate[at.clone()]), &up[at], weight);
            }
            self.starts.push(self.contributions.len());
        }
    }

    /// Appends the contributions of the neurons from `first` on to one token.
    fn push_neurons(&mut self, first: usize, gate: Option<&[f32]>, up: &[f32], weight: f32) {
        self.n_computed += up.len();
        for (n, &up) in up.iter().enumerate() {
            let test = activate(self.activation, gate.map_or(up, |gate| gate[n]));
            let h = match self.kind {
                FfnKind::Plain => test,
                FfnKind::Gated => gated(self.activation, test, up),
                FfnKind::GatedBoth => test * activate(self.activation, up),
            };
            if h != 0.0 {
                let (neuron, h) = ((first + n) as u32, weight * h);
                self.contributions.push(Contribution { neuron, h, act: test.abs() });
            }
        }
    }

    /// Number of tokens.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.starts.len() - 1
    }

    /// Neurons of the block.
    #[must_use]
    pub fn n_ff(&self) -> usize {
        self.n_ff
    }

    /// Width of the inputs.
    #[must_use]
    pub fn n_embd(&self) -> usize {
        self.x.n_cols
    }

    /// The contributions to token `t`, ascending by neuron.
    #[must_use]
    pub fn contributions(&self, t: usize) -> &[Contribution] {
        &self.contributions[self.starts[t]..self.starts[t + 1]]
    }

    /// Neurons that the dense model computes, summed over tokens.
    #[must_use]
    pub fn n_computed(&self) -> usize {
        self.n_computed
    }

    /// Mean fraction of contributing neurons among the neurons that the dense model computes, 0 to 1.
    #[must_use]
    pub fn density(&self) -> f64 {
        self.contributions.len() as f64 / self.n_computed.max(1) as f64
    }

    /// The sum over tokens of each neuron's squared `h`, `[n_ff]`.
    pub(super) fn energies(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.n_ff];
        for part in &self.contributions {
            sums[part.neuron as usize] += f64::from(part.h) * f64::from(part.h);
        }
        sums
    }
}

/// The activation function, computed in double precision.
fn activate(activation: Activation, v: f32) -> f32 {
    let x = f64::from(v);
    let value = match activation {
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0) * x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * libm::erfc(-x / std::f64::consts::SQRT_2),
        Activation::SwigluOai { alpha, limit } => {
            let x = x.min(f64::from(limit));
            x / (1.0 + (-f64::from(alpha) * x).exp())
        }
        Activation::SwigluClamped { limit } => {
            let x = x.min(f64::from(limit));
            x / (1.0 + (-x).exp())
        }
        Activation::SiluClamped { limit } => (x / (1.0 + (-x).exp())).min(f64::from(limit)),
        Activation::XIelu { positive, negative, slope } => {
            let [positive, negative, slope] = [positive, negative, slope].map(f64::from);
            slope * x + if x > 0.0 { positive * x * x } else { negative * (x.exp_m1() - x) }
        }
        Activation::Situ { beta, .. } => {
            let beta = f64::from(beta);
            beta * (x / beta).tanh() / (1.0 + (-x).exp())
        }
    };
    value as f32
}

/// The activated gate `test` times `up`, which some activations limit.
fn gated(activation: Activation, test: f32, up: f32) -> f32 {
    match (activation.up_limit(), activation.up_cap()) {
        (Some((limit, added)), _) => test * (up.clamp(-limit, limit) + added),
        (None, Some(cap)) => test * cap * (up / cap).tanh(),
        (None, None) => test * up,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_contributing_neurons_are_stored() {
        let mut seen = Observations::new(FfnKind::Gated, Activation::Relu, 2, 3);
        seen.push(&[1.0, 2.0], Some(&[1.0, -1.0, 2.0]), &[3.0, 5.0, -0.5], None);
        seen.push(&[0.0, 0.5], Some(&[-1.0, -1.0, -2.0]), &[3.0, 5.0, -0.5], None);
        let part = |neuron, h, act| Contribution { neuron, h, act };
        assert_eq!(seen.contributions(0), [part(0, 3.0, 1.0), part(2, -1.0, 2.0)]);
        assert_eq!(
            (seen.contributions(1), seen.n_tokens(), seen.density()),
            (&[][..], 2, 2.0 / 6.0)
        );
        assert_eq!(seen.energies(), [9.0, 0.0, 1.0]);
        let mut both = Observations::new(FfnKind::GatedBoth, Activation::Relu, 1, 2);
        both.push(&[1.0], Some(&[2.0, 2.0]), &[3.0, -3.0], None);
        assert_eq!(both.contributions(0), [part(0, 6.0, 2.0)]);
        // Two experts of one neuron each; each token uses one of them.
        let mut experts = Observations::new(FfnKind::Gated, Activation::Relu, 1, 2);
        let weights = Some(&[0.0, 0.5, 2.0, 0.0][..]);
        experts.push(&[1.0, 1.0], Some(&[1.0, 2.0, 3.0, 4.0]), &[1.0, 1.0, -1.0, 1.0], weights);
        assert_eq!(experts.contributions(0), [part(1, 1.0, 2.0)]);
        assert_eq!(experts.contributions(1), [part(0, -6.0, 3.0)]);
        assert_eq!((experts.n_computed(), experts.density()), (2, 1.0));
        let mut silu = Observations::new(FfnKind::Plain, Activation::Silu, 1, 1);
        silu.push(&[1.0], None, &[-1.0], None);
        assert!((silu.contributions(0)[0].h + 0.268_941_42).abs() < 1e-6);
        assert!((silu.contributions(0)[0].act - 0.268_941_42).abs() < 1e-6);
    }
}
