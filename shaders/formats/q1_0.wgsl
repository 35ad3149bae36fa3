// Q1_0: one bit per value, 1 for d and 0 for -d; d (f16) per 128 values.
const {{self}}_OFFSET: i32 = 1;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    let bits = bits_of({{self}}_word(row + b));
    return Codes(bits.lo << vec4<u32>(1u), bits.hi << vec4<u32>(1u));
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    return (({{self}}_word(row + b) >> g) & 0x01010101u) << 1u;
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales { return one_scale({{self}}_half(row + nb, b >> 2u)); }
