// Codes around ZERO; the value farthest from zero has code 0, so the scale may be negative.
{{include farthest}}

struct Scales {
    scale: f32,
    inverse: f32,
    min: f32,
}

fn scales_of(first: u32) -> Scales {
    let scale = farthest_of(first) * (-1.0 / store_ZERO);
    return Scales(scale, inverse_of(scale), 0.0);
}

fn code_of(v: f32, scales: Scales) -> u32 {
    return u32(clamp(unfused(v * scales.inverse) + (store_ZERO + 0.5), 0.0, store_TOP));
}
