// Hyperbolic tangent without overflow, unlike the built-in of some drivers.
fn tanh_of(x: f32) -> f32 {
    let e = exp(-2.0 * abs(x));
    return sign(x) * ((1.0 - e) / (1.0 + e));
}
