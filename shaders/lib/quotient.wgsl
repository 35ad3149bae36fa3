// a / b for positive numbers, rounded to nearest; 0 if the quotient is subnormal. A driver's division
// may be less exact, which would change codes.
fn quotient(a: f32, b: f32) -> f32 {
    let bits_a = bitcast<u32>(a);
    let bits_b = bitcast<u32>(b);
    var rest = (bits_a & 0x7fffffu) | 0x800000u;
    let by = (bits_b & 0x7fffffu) | 0x800000u;
    var exponent = 127 + i32(bits_a >> 23u) - i32(bits_b >> 23u);
    if (rest < by) {
        rest <<= 1u;
        exponent -= 1;
    }
    if (exponent < 1 || exponent > 254) { return 0.0; }
    // 24 bits of the quotient and one more for rounding.
    var quotient = 0u;
    for (var i = 0u; i < 25u; i++) {
        quotient <<= 1u;
        if (rest >= by) {
            rest -= by;
            quotient |= 1u;
        }
        rest <<= 1u;
    }
    var mantissa = quotient >> 1u;
    if ((quotient & 1u) != 0u && (rest != 0u || (mantissa & 1u) != 0u)) { mantissa += 1u; }
    return bitcast<f32>((u32(exponent - 1) << 23u) + mantissa);
}
