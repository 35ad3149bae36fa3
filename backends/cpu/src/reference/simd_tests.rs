//! Compares the activation functions of every SIMD level with the f64 reference.

use hal::op::{Activation, GateActivation};

use simd::{Kernels, Level};

use super::{activate, gate};

const SMOOTH: [Activation; 8] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluErf,
    Activation::SwigluOai { alpha: 1.702, limit: 7.0 },
    Activation::SwigluClamped { limit: 7.0 },
    Activation::SiluClamped { limit: 7.0 },
    Activation::XIelu { positive: 1.2, negative: 1.4, slope: 0.5 },
    Activation::Situ { beta: 4.0, cap: 25.0 },
];
const RELUS: [Activation; 2] = [Activation::Relu, Activation::Relu2];

fn all_kernels() -> Vec<Kernels> {
    Level::ALL.into_iter().filter_map(Kernels::select).collect()
}

/// Inputs: a fine grid, floats of every magnitude, and the limits of the range.
fn inputs() -> Vec<f32> {
    let grid = (-110_000..110_000).map(|i| i as f32 * 1e-3 + 1e-5);
    let any = (0..200_000u32).map(|i| f32::from_bits(i.wrapping_mul(2_654_435_769)));
    let ends = [0.0, 1e-45, 1e-39, f32::MIN_POSITIVE, 87.3, 87.6, 88.1, 103.9, 1e30, f32::MAX];
    let ends = ends.into_iter().flat_map(|x| [x, -x]);
    grid.chain(any.filter(|x| x.is_finite())).chain(ends).collect()
}

fn run_activation(kernels: &Kernels, activation: Activation, x: &[f32]) -> Vec<f32> {
    let mut y = x.to_vec();
    kernels.activate()(activation, &mut y);
    y
}

/// Maximum absolute error: a few units in the last place of the value and of the exponential's
/// argument, plus x times a subnormal exponential, which is flushed to zero.
fn max_error(activation: Activation, x: f32, y: f64) -> f64 {
    let x = f64::from(x);
    let exponent = match activation {
        Activation::Relu | Activation::Relu2 => return 6e-8 * y + 1e-45,
        // Errors of the approximation, and of cancellation in its alternating sum.
        Activation::GeluErf => return 5e-7 * x.abs() + 1e-45,
        Activation::Silu | Activation::SiluClamped { .. } => 0.0,
        Activation::Situ { .. } => x,
        Activation::Gelu => 1.6 * x * (1.0 + 0.045 * x * x),
        Activation::SwigluOai { alpha, limit } => f64::from(alpha) * x.min(f64::from(limit)),
        Activation::SwigluClamped { limit } => x.min(f64::from(limit)),
        // Both terms of a negative value, whose signs differ.
        Activation::XIelu { negative, slope, .. } => {
            let terms = f64::from(negative + slope) * x.abs();
            let overflows = terms > f64::from(f32::MAX);
            return if overflows { f64::INFINITY } else { 5e-7 * (y.abs() + terms) + 3e-45 };
        }
    };
    // The reference loses precision in GELU's tail, where it subtracts from 1.
    let oracle = if activation == Activation::Gelu { 1e-15 } else { 1.2e-38 };
    5e-7 * (1.0 + exponent.abs().min(100.0)) * y.abs() + oracle * x.abs() + 3e-45
}

#[test]
fn activations_match_the_reference() {
    let x = inputs();
    for kernels in all_kernels() {
        for activation in SMOOTH.into_iter().chain(RELUS) {
            for (x, y) in x.iter().zip(run_activation(&kernels, activation, &x)) {
                let expected = activate(activation, f64::from(*x));
                let error = (f64::from(y) - expected).abs();
                // Squares overflow to infinity.
                let overflow = expected > f64::from(f32::MAX) && y == f32::INFINITY;
                let ok = error <= max_error(activation, *x, expected) || overflow;
                assert!(ok, "{:?} {activation:?} {x:e}: {y:e}, not {expected:e}", kernels.level());
            }
        }
    }
}

#[test]
fn gates_match_the_reference() {
    let x = inputs();
    for kernels in all_kernels() {
        let root = GateActivation::SigmoidOfRoot;
        for activation in [GateActivation::Sigmoid, GateActivation::Softplus, root] {
            let mut y = x.clone();
            kernels.gate()(activation, &mut y);
            for (x, y) in x.iter().zip(y) {
                let expected = gate(activation, f64::from(*x));
                let error = (f64::from(y) - expected).abs();
                // The last bits may differ, also those of a root, which the sigmoid amplifies, and
                // subnormal values may be 0.
                let amplified = if activation == root { x.abs().sqrt().min(100.0) } else { 0.0 };
                let ok = error <= (6e-7 + 1e-7 * f64::from(amplified)) * expected + 1.2e-38;
                assert!(ok, "{:?} {activation:?} {x:e}: {y:e}, not {expected:e}", kernels.level());
            }
            let mut y = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
            kernels.gate()(activation, &mut y);
            let top = if activation == GateActivation::Softplus { f32::INFINITY } else { 1.0 };
            assert!(y[0].is_nan() && y[1] == top && y[2] == 0.0, "{activation:?}: {y:?}");
        }
        for (of_gates, of_neurons) in
            [(GateActivation::Silu, Activation::Silu), (GateActivation::Gelu, Activation::Gelu)]
        {
            let mut y = x.clone();
            kernels.gate()(of_gates, &mut y);
            let neurons = run_activation(&kernels, of_neurons, &x);
            assert!(y.iter().zip(&neurons).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        let mut y = x.clone();
        kernels.gate()(GateActivation::None, &mut y);
        assert_eq!(y, x);
    }
}

#[test]
fn nan_stays_nan() {
    let [plus, minus] = [f32::INFINITY, f32::NEG_INFINITY];
    for kernels in all_kernels() {
        for activation in SMOOTH.into_iter().chain(RELUS) {
            let y = run_activation(&kernels, activation, &[f32::NAN, plus, minus, -f32::NAN]);
            let case = format!("{:?} {activation:?}", kernels.level());
            assert!(y[0].is_nan() && y[3].is_nan(), "{case}");
            let expected = activate(activation, f64::from(plus));
            assert!((f64::from(y[1]) - expected).abs() < 1e-5 || y[1] == plus, "{case}: {}", y[1]);
            // Infinity times zero is NaN; the reference returns NaN for the same inputs.
            assert_eq!(y[2].is_nan(), activate(activation, f64::from(minus)).is_nan(), "{case}");
        }
    }
}

#[test]
fn results_do_not_depend_on_the_index_in_the_slice() {
    let x: Vec<f32> = (0..67).map(|i| 3.0 * (i as f32 * 0.7).sin()).collect();
    for kernels in all_kernels() {
        for activation in SMOOTH.into_iter().chain(RELUS) {
            let all = run_activation(&kernels, activation, &x);
            for n in 0..x.len() {
                let some = run_activation(&kernels, activation, &x[n..]);
                let same = some.iter().zip(&all[n..]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{:?} {activation:?} from {n} on", kernels.level());
            }
        }
    }
}

#[test]
fn vector_levels_agree_to_the_bit_and_plain_rust_closely() {
    let x = inputs();
    let mut vectors = all_kernels();
    let plain = vectors.remove(0);
    assert_eq!(plain.level(), Level::Scalar);
    let Some((vectors, others)) = vectors.split_first() else {
        return println!("skipped: this CPU has no supported vector level");
    };
    for activation in SMOOTH {
        let expected = run_activation(vectors, activation, &x);
        for other in others {
            let other = run_activation(other, activation, &x);
            assert!(other.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        let mut most = 0;
        for ((x, a), b) in x.iter().zip(run_activation(&plain, activation, &x)).zip(expected) {
            // Tails are not compared: where values are tiny, one unit in the last place of the
            // exponential's argument is many units in the last place of the value. Negative values
            // of xIELU are differences.
            let is_difference = matches!(activation, Activation::XIelu { .. });
            let is_tail = x.abs() >= 1.0 && activation != Activation::Silu;
            if *x > 0.0 || !is_difference && !is_tail {
                most = most.max(a.to_bits().abs_diff(b.to_bits()));
            }
        }
        let limit = if activation == Activation::GeluErf { 12 } else { 4 };
        assert!(most <= limit, "{activation:?}: {most} units in the last place");
    }
}
