// Codes from the smallest value of a block, 0, to the largest, TOP.
struct Scales {
    scale: f32,
    inverse: f32,
    min: f32,
}

fn scales_of(first: u32) -> Scales {
    var low = x[first];
    var high = low;
    for (var i = 1u; i < 32u; i++) {
        low = min(low, x[first + i]);
        high = max(high, x[first + i]);
    }
    let scale = divided(high - low, store_TOP);
    return Scales(scale, inverse_of(scale), low);
}

fn code_of(v: f32, scales: Scales) -> u32 {
    return u32(clamp(unfused((v - scales.min) * scales.inverse) + 0.5, 0.0, store_TOP));
}
