// Arithmetic with the rounding of `hal`, whatever the driver's division and fusion are.

// x / n rounded to nearest, for n = 2^k - 1: n q is 2^k q - q, and both operations are exact.
fn divided(x: f32, n: f32) -> f32 {
    let q = x / n;
    let rest = (x - q * (n + 1.0)) + q;
    return q + rest / n;
}

// 1 / x rounded to nearest; 0 for 0.
fn inverse_of(x: f32) -> f32 {
    if (x == 0.0) { return 0.0; }
    let y = 1.0 / x;
    return fma(y, fma(-x, y, 1.0), y);
}

// A product that the driver cannot fuse with a later addition: it does not know that a row has fewer
// than 2^31 values.
fn unfused(product: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(product) ^ (p.k_cols >> 31u));
}
