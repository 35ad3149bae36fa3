// Indices of the nearest of `IQ4_CODES`. The value farthest from zero has code -127; then the scale is
// fitted to the codes by least squares.

struct {{self}}_Scales {
    scale: f32,
    inverse: f32,
    min: f32,
}

fn {{self}}_scales_of(first: u32) -> {{self}}_Scales {
    let start = -divided({{self}}_farthest_of(first), 127.0);
    var scales = {{self}}_Scales(start, inverse_of(start), 0.0);
    var products: array<f32, 32>;
    var squares: array<f32, 32>;
    for (var i = 0u; i < 32u; i++) {
        let t = {{self}}_x[first + i] * scales.inverse;
        let code = {{self}}_entry({{self}}_code_of({{self}}_x[first + i], scales));
        let weighted = t * t * code;
        products[i] = unfused(weighted * t);
        squares[i] = unfused(weighted * code);
    }
    for (var n = 16u; n > 0u; n /= 2u) {
        for (var i = 0u; i < n; i++) {
            products[i] = products[2u * i] + products[2u * i + 1u];
            squares[i] = squares[2u * i] + squares[2u * i + 1u];
        }
    }
    if (squares[0] > 0.0) {
        let ratio = products[0] / squares[0];
        scales.scale = start * (ratio + fma(-ratio, squares[0], products[0]) / squares[0]);
    }
    return scales;
}

fn {{self}}_code_of(v: f32, scales: {{self}}_Scales) -> u32 {
    let t = v * scales.inverse;
    let a = u32(t >= -115.5) + u32(t >= -93.5) + u32(t >= -74.0) + u32(t >= -57.0) + u32(t >= -42.0);
    let b = u32(t >= -28.5) + u32(t >= -16.0) + u32(t >= -4.5) + u32(t >= 7.0) + u32(t >= 19.0);
    return a + b + u32(t >= 31.5) + u32(t >= 45.5) + u32(t >= 61.0) + u32(t >= 79.0) + u32(t >= 101.0);
}

// The block's value farthest from zero; of several the first.
fn {{self}}_farthest_of(first: u32) -> f32 {
    var far = 0.0;
    for (var i = 0u; i < 32u; i++) {
        if (abs({{self}}_x[first + i]) > abs(far)) { far = {{self}}_x[first + i]; }
    }
    return far;
}
