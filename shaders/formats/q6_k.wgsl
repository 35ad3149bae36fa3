// Q6_K: nibbles; a signed byte per 16 values, their scale; the upper two bits of the codes; d (f16)
// per 256 values.
const {{self}}_OFFSET: i32 = 32;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    let at = row + 4u * nb + (nb >> 1u) + 2u * b;
    return joined({{self}}_nibbles(row, b), pairs_of({{self}}_word(at), {{self}}_word(at + 1u)), 4u);
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let at = row + 4u * nb + (nb >> 1u) + 2u * b;
    let pair = ({{self}}_word(at + (g >> 2u)) >> (2u * (g & 3u))) & 0x03030303u;
    return {{self}}_nibble(row, b, g) | (pair << 4u);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let d = {{self}}_half(row + 6u * nb + (nb >> 1u), b >> 3u);
    let both = {{self}}_word(row + 4u * nb + (b >> 1u));
    let k = 2u * (b & 1u);
    return Scales(d * vec2<f32>(signed_byte(both, k), signed_byte(both, k + 1u)), vec2<f32>(0.0));
}
