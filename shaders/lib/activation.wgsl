// Activation functions of feed-forward blocks, by code (`activation_codes` of the wgpu backend).

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }

// Source: Abramowitz and Stegun 7.1.26, within 1.5e-7.
fn erf(x: f32) -> f32 {
    let t = 1.0 / fma(0.3275911, abs(x), 1.0);
    let series = t * fma(t, fma(t, fma(t, fma(t, 1.061405429, -1.453152027), 1.421413741), -0.284496736), 0.254829592);
    return sign(x) * (1.0 - series * exp(-x * x));
}

// exp(x) - 1 - x for x <= 0: near 0 a Taylor polynomial, because the difference loses digits.
fn exp_curve(x: f32) -> f32 {
    let high = fma(fma(fma(x, 1.0 / 40320.0, 1.0 / 5040.0), x, 1.0 / 720.0), x, 1.0 / 120.0);
    let near = x * x * fma(fma(fma(high, x, 1.0 / 24.0), x, 1.0 / 6.0), x, 0.5);
    return select(near, exp(x) - 1.0 - x, x < -0.5);
}

// cap * tanh(x / cap), without overflow.
fn soft_cap(x: f32, cap: f32) -> f32 {
    let e = exp(-2.0 * abs(x) / cap);
    let size = cap * (1.0 - e) / (1.0 + e);
    return select(size, -size, x < 0.0);
}

fn activate(kind: u32, x: f32, alpha: f32, slope: f32, limit: f32) -> f32 {
    switch kind {
        // Written so that NaN stays NaN.
        case 0u: { return select(x, 0.0, x <= 0.0); }
        case 1u: { return select(x * x, 0.0, x <= 0.0); }
        case 2u: { return x * sigmoid(x); }
        case 3u: {
            // Beyond 10 the hyperbolic tangent is 1, and some drivers overflow.
            let inner = clamp(0.7978845608 * x * fma(0.044715 * x, x, 1.0), -10.0, 10.0);
            return 0.5 * x * (1.0 + tanh(inner));
        }
        case 4u: { return 0.5 * x * (1.0 + erf(x * 0.7071067812)); }
        case 7u: {
            let silu = x * sigmoid(x);
            return select(silu, limit, silu > limit);
        }
        case 8u: { return fma(slope, x, select(limit * exp_curve(x), alpha * x * x, x > 0.0)); }
        case 9u: { return soft_cap(x, alpha) * sigmoid(x); }
        default: {
            let capped = select(x, limit, x > limit);
            return capped * sigmoid(alpha * capped);
        }
    }
}

// A neuron's value from its test value (the gate, or up without a gate) and up. FFN kinds: plain,
// gated, both gated.
fn neuron(kind: u32, activation: u32, test: f32, up: f32, alpha: f32, slope: f32, limit: f32) -> f32 {
    let gate = activate(activation, test, alpha, slope, limit);
    if (kind == 0u) { return gate; }
    if (kind == 2u) { return gate * activate(activation, up, alpha, slope, limit); }
    if (activation >= 5u && activation < 8u) { return gate * (clamp(up, -limit, limit) + select(0.0, 1.0, activation == 5u)); }
    if (activation == 9u && limit > 0.0) { return gate * soft_cap(up, limit); }
    return gate * up;
}
