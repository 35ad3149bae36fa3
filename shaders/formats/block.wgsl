// Code shared by the formats: codes of 32 values as eight words, four values in each, and how
// planes of bits become codes. `backends/layout/src/planes.rs` defines the planes.

// Group g of four values is word g: 0 to 3 in `lo`, 4 to 7 in `hi`.
struct Codes { lo: vec4<u32>, hi: vec4<u32> }

// value = d * (code - OFFSET) - m; the first component of each is for values 0 to 15.
struct Scales { d: vec2<f32>, m: vec2<f32> }

fn one_scale(d: f32) -> Scales { return Scales(vec2<f32>(d), vec2<f32>(0.0)); }

fn f16_at(word: u32, upper: u32) -> f32 {
    let both = unpack2x16float(word);
    return select(both.x, both.y, upper == 1u);
}

fn signed_byte(word: u32, k: u32) -> f32 { return f32(bitcast<i32>(word << (24u - 8u * k)) >> 24u); }

fn nibbles_of(q: vec4<u32>) -> Codes {
    return Codes(q & vec4<u32>(0x0f0f0f0fu), (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}

fn pairs_of(low: u32, high: u32) -> Codes {
    let by = vec4<u32>(0u, 2u, 4u, 6u);
    return Codes((vec4<u32>(low) >> by) & vec4<u32>(0x03030303u), (vec4<u32>(high) >> by) & vec4<u32>(0x03030303u));
}

fn bits_of(word: u32) -> Codes {
    return Codes((vec4<u32>(word) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x01010101u),
                 (vec4<u32>(word) >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(0x01010101u));
}

fn joined(low: Codes, high: Codes, by: u32) -> Codes {
    return Codes(low.lo | (high.lo << vec4<u32>(by)), low.hi | (high.hi << vec4<u32>(by)));
}

// Applies the signs of four bits to four values, none of them 0, so that nothing carries from byte
// to byte.
fn with_signs(values: u32, bits: u32) -> u32 {
    let negative = ((bits & 15u) * 0x00204081u) & 0x01010101u;
    return (values ^ (negative * 255u)) + negative;
}

// Adds an eighth sign bit to seven, so that the number of set bits is even.
fn even(seven: u32) -> u32 { return seven | ((countOneBits(seven) & 1u) << 7u); }

// Codes of IQ1 in units of 1/8, with the delta of 1/8 added to or subtracted from each.
fn one_eighth(values: u32, take_off: bool) -> u32 {
    let moved = values ^ 0x80808080u;
    return select(moved + 0x01010101u, moved - 0x01010101u, take_off) ^ 0x80808080u;
}

// `acc` plus the product of 32 values with a block of activations. Every rounding step is explicit,
// so that all shaders that include this compute the same bits.
fn q8_dot(acc: f32, codes: Codes, scales: Scales, offset: i32, lo: vec4<u32>, hi: vec4<u32>, facts: vec4<u32>) -> f32 {
    let first = dot4I8Packed(codes.lo.x, lo.x) + dot4I8Packed(codes.lo.y, lo.y) + dot4I8Packed(codes.lo.z, lo.z)
        + dot4I8Packed(codes.lo.w, lo.w);
    let second = dot4I8Packed(codes.hi.x, hi.x) + dot4I8Packed(codes.hi.y, hi.y) + dot4I8Packed(codes.hi.z, hi.z)
        + dot4I8Packed(codes.hi.w, hi.w);
    let sums = vec2<i32>(bitcast<i32>(facts.y), bitcast<i32>(facts.z));
    let products = vec2<f32>(vec2<i32>(first, second) - offset * sums);
    let below = fma(scales.m.x, f32(sums.x), scales.m.y * f32(sums.y));
    return fma(bitcast<f32>(facts.x), fma(scales.d.x, products.x, fma(scales.d.y, products.y, -below)), acc);
}
