// MXFP4: nibbles, each an E2M1 float (sign, two bits of exponent, one of mantissa); an exponent per
// 32 values.
const {{self}}_OFFSET: i32 = 0;
// The values of four E2M1 nibbles, doubled, one per byte.
fn {{self}}_e2m1(n: u32) -> u32 {
    let low = (n >> 1u) & 0x01010101u;
    let high = (n >> 2u) & 0x01010101u;
    let normal = low | high;
    let mantissa = n & 0x01010101u;
    let base = mantissa | (normal << 1u);
    let doubled = base + (base & (high * 255u));
    let size = doubled + (doubled & ((low & high) * 255u));
    // Zero has no sign.
    let negative = (n >> 3u) & (mantissa | normal);
    return (size ^ (negative * 255u)) + negative;
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 { return {{self}}_e2m1({{self}}_nibble(row, b, g)); }
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let exponent = {{self}}_byte(row + 4u * nb, b);
    return one_scale(bitcast<f32>(select((exponent - 1u) << 23u, 0x00200000u << (exponent & 1u), exponent < 2u)));
}
