//! Computes the values of neurons on the host, for statistics only.

use hal::op::{Activation, FfnKind};

use model::Model;

use super::ObservedBlock;

impl ObservedBlock<'_> {
    /// Writes the inputs of down to `out`, `[n_tokens, n_ff]`: the activations of the neurons.
    /// Accurate to about six digits.
    pub fn down_inputs(&self, model: &Model, out: &mut Vec<f32>) {
        let (kind, activation) = (model.ffn_kind, self.activation);
        let tests = self.gate.unwrap_or(self.up);
        let each = |(&test, &up): (&f32, &f32)| neuron(kind, activation, test, up);
        out.clear();
        out.extend(tests.iter().zip(self.up).map(each));
    }

    /// Writes the neurons' values to `out`, `[n_tokens, n_ff]`: [`ObservedBlock::down_inputs`],
    /// multiplied by the router's weights.
    pub fn values(&self, model: &Model, out: &mut Vec<f32>) {
        self.down_inputs(model, out);
        let Some(weights) = self.weights.filter(|weights| !weights.is_empty()) else { return };
        // Every expert has the same number of neurons; for each token, the values are ordered by
        // expert.
        let n_per_expert = (self.up.len() / weights.len()).max(1);
        for (values, &weight) in out.chunks_exact_mut(n_per_expert).zip(weights) {
            if weight == 0.0 {
                values.fill(0.0)
            } else {
                values.iter_mut().for_each(|value| *value *= weight)
            }
        }
    }
}

/// The value of a neuron from `test`, the output of the gate (of up in blocks without a gate), and
/// `up`.
fn neuron(kind: FfnKind, activation: Activation, test: f32, up: f32) -> f32 {
    let gate = activate(activation, test);
    let up = match activation.up_cap() {
        Some(cap) if kind == FfnKind::Gated => cap * (up / cap).tanh(),
        Some(_) | None => up,
    };
    match (kind, activation.up_limit()) {
        (FfnKind::Plain, _) => gate,
        (FfnKind::Gated, Some((limit, added))) => gate * (up.clamp(-limit, limit) + added),
        (FfnKind::Gated, _) => gate * up,
        (FfnKind::GatedBoth, _) => gate * activate(activation, up),
    }
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::Relu2 => x.max(0.0) * x.max(0.0),
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => {
            // 0.5 * (1 + tanh(z)) is the sigmoid of 2z.
            const TWICE_ROOT_2_OVER_PI: f32 = 1.595_769;
            x * sigmoid(TWICE_ROOT_2_OVER_PI * x * (1.0 + 0.044_715 * x * x))
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::SwigluOai { alpha, limit } => {
            let x = x.min(limit);
            x * sigmoid(alpha * x)
        }
        Activation::SwigluClamped { limit } => {
            let x = x.min(limit);
            x * sigmoid(x)
        }
        Activation::SiluClamped { limit } => (x * sigmoid(x)).min(limit),
        Activation::XIelu { positive, negative, slope } => {
            slope * x + if x > 0.0 { positive * x * x } else { negative * (x.exp_m1() - x) }
        }
        Activation::Situ { beta, .. } => beta * (x / beta).tanh() * sigmoid(x),
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function, with an absolute error of up to 1.5e-7. Source: Abramowitz and Stegun,
/// 7.1.26.
fn erf(x: f32) -> f32 {
    const FACTORS: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let sum = FACTORS.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    (1.0 - sum * (-x * x).exp()).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_match_tabulated_values() {
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_9), (-1.0, -0.842_700_8), (3.0, 0.999_977_9)] {
            assert!((erf(x) - y).abs() < 1e-6, "erf({x}) is {}", erf(x));
        }
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} and {b}");
        near(activate(Activation::Silu, 1.0), 0.731_058_6);
        near(activate(Activation::Gelu, 1.0), 0.841_192);
        near(activate(Activation::GeluErf, 1.0), 0.841_344_7);
        near(activate(Activation::Silu, -200.0), 0.0);
        assert_eq!(activate(Activation::Relu, -1.0), 0.0);
        assert_eq!(activate(Activation::Relu2, 3.0), 9.0);
        let oai = Activation::SwigluOai { alpha: 1.702, limit: 7.0 };
        near(activate(oai, 9.0), 7.0 / (1.0 + (-1.702f32 * 7.0).exp()));
        near(neuron(FfnKind::Gated, oai, 9.0, -9.0), -6.0 * activate(oai, 9.0));
        let situ = Activation::Situ { beta: 4.0, cap: 25.0 };
        near(activate(situ, 2.0), 4.0 * 0.5f32.tanh() / (1.0 + (-2.0f32).exp()));
        near(neuron(FfnKind::Gated, situ, 2.0, 50.0), activate(situ, 2.0) * 25.0 * 2.0f32.tanh());
        assert_eq!(neuron(FfnKind::GatedBoth, Activation::Relu, 2.0, -1.0), 0.0);
        assert_eq!(neuron(FfnKind::Gated, Activation::Relu, 2.0, -1.0), -2.0);
        assert_eq!(neuron(FfnKind::Plain, Activation::Relu2, 2.0, 2.0), 4.0);
    }
}
