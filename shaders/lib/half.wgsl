// Converts to F16 and rounds to nearest even, in integers, since the drivers' own conversions
// differ.
fn to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign_bit = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign_bit | 0x7e00u | ((size >> 13u) & 0x3ffu);
    }
    // At least half a step above the largest F16: the result is infinity.
    if (size >= 0x477ff000u) {
        return sign_bit | 0x7c00u;
    }
    if (size < 0x38800000u) {
        // Below 2^-14, F16 values are multiples of 2^-24.
        let shift = 126u - (size >> 23u);
        if (shift > 24u) {
            return sign_bit;
        }
        let mantissa = (size & 0x7fffffu) | 0x800000u;
        let kept = mantissa >> shift;
        let rest = mantissa & ((1u << shift) - 1u);
        let middle = 1u << (shift - 1u);
        let up = rest > middle || (rest == middle && (kept & 1u) == 1u);
        return sign_bit | (kept + select(0u, 1u, up));
    }
    let rounded = size + 0xfffu + ((size >> 13u) & 1u);
    return sign_bit | ((rounded - 0x38000000u) >> 13u);
}

fn to_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
