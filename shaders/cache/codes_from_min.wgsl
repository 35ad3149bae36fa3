// Codes from the smallest value of a block, 0, to the largest, TOP.
struct {{self}}_Scales {
    scale: f32,
    inverse: f32,
    min: f32,
}

fn {{self}}_scales_of(first: u32) -> {{self}}_Scales {
    var low = {{self}}_x[first];
    var high = low;
    for (var i = 1u; i < 32u; i++) {
        low = min(low, {{self}}_x[first + i]);
        high = max(high, {{self}}_x[first + i]);
    }
    let scale = divided(high - low, {{self}}_TOP);
    return {{self}}_Scales(scale, inverse_of(scale), low);
}

fn {{self}}_code_of(v: f32, scales: {{self}}_Scales) -> u32 {
    return u32(clamp(unfused((v - scales.min) * scales.inverse) + 0.5, 0.0, {{self}}_TOP));
}
