// The sigmoid of x, computed with a power of e that cannot overflow.
fn sigmoid_of(x: f32) -> f32 {
    let e = exp(-abs(x));
    return select(1.0, e, x < 0.0) / (1.0 + e);
}

// ln(1 + exp(x)).
fn softplus_of(x: f32) -> f32 {
    let e = exp(-abs(x));
    // If 1 + e loses bits of e, two terms of the series are accurate enough.
    return max(x, 0.0) + select(log(1.0 + e), e - 0.5 * e * e, e < 1e-4);
}
