// Q3_K: the lower two bits of the codes; their high bits; 12 bytes with 16 scales, one per 16
// values; d (f16) per 256 values.
const {{self}}_OFFSET: i32 = 4;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    let at = row + 2u * b;
    return joined(pairs_of({{self}}_word(at), {{self}}_word(at + 1u)), bits_of({{self}}_word(row + 2u * nb + b)), 2u);
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let pair = ({{self}}_word(row + 2u * b + (g >> 2u)) >> (2u * (g & 3u))) & 0x03030303u;
    return pair | ((({{self}}_word(row + 2u * nb + b) >> g) & 0x01010101u) << 2u);
}
fn {{self}}_scale(at: u32, i: u32) -> f32 {
    let low = ({{self}}_byte(at, i & 7u) >> (4u * (i >> 3u))) & 15u;
    let upper = ({{self}}_byte(at, 8u + (i & 3u)) >> (2u * (i >> 2u))) & 3u;
    return f32(i32(low | (upper << 4u)) - 32);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let at = row + 3u * nb;
    let i = 2u * (b & 7u);
    let d = {{self}}_half(at + 3u * (nb >> 3u), b >> 3u);
    let packed = at + 3u * (b >> 3u);
    return Scales(d * vec2<f32>({{self}}_scale(packed, i), {{self}}_scale(packed, i + 1u)), vec2<f32>(0.0));
}
