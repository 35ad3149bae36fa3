// Q2_K: a byte with scale and minimum per 16 values; 2-bit codes; d and dmin (f16) per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    let at = row + (nb >> 1u) + 2u * b;
    return pairs_of({{self}}_word(at), {{self}}_word(at + 1u));
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    return ({{self}}_word(row + (nb >> 1u) + 2u * b + (g >> 2u)) >> (2u * (g & 3u))) & 0x03030303u;
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let both = {{self}}_short(row, b);
    let d = unpack2x16float({{self}}_word(row + (nb >> 1u) + 2u * nb + (b >> 3u)));
    return Scales(d.x * vec2<f32>(f32(both & 15u), f32((both >> 8u) & 15u)),
                  d.y * vec2<f32>(f32((both >> 4u) & 15u), f32(both >> 12u)));
}
