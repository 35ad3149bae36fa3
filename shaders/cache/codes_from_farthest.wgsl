// Codes around ZERO; the value farthest from zero has code 0, so the scale may be negative.

struct {{self}}_Scales {
    scale: f32,
    inverse: f32,
    min: f32,
}

fn {{self}}_scales_of(first: u32) -> {{self}}_Scales {
    let scale = {{self}}_farthest_of(first) * (-1.0 / {{self}}_ZERO);
    return {{self}}_Scales(scale, inverse_of(scale), 0.0);
}

fn {{self}}_code_of(v: f32, scales: {{self}}_Scales) -> u32 {
    return u32(clamp(unfused(v * scales.inverse) + ({{self}}_ZERO + 0.5), 0.0, {{self}}_TOP));
}

// The block's value farthest from zero; of several the first.
fn {{self}}_farthest_of(first: u32) -> f32 {
    var far = 0.0;
    for (var i = 0u; i < 32u; i++) {
        if (abs({{self}}_x[first + i]) > abs(far)) { far = {{self}}_x[first + i]; }
    }
    return far;
}
