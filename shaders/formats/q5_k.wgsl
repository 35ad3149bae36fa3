// Q5_K: nibbles; d, dmin (f16) and 12 bytes with the scales and minimums, per 256 values; the high
// bits of the codes.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    return joined({{self}}_nibbles(row, b), bits_of({{self}}_word(row + 4u * nb + (nb >> 1u) + b)), 4u);
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let bit = ({{self}}_word(row + 4u * nb + (nb >> 1u) + b) >> g) & 0x01010101u;
    return {{self}}_nibble(row, b, g) | (bit << 4u);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let all = {{self}}_data[(row >> 2u) + nb + (b >> 3u)];
    let d = unpack2x16float(all.x);
    let by = 8u * (b & 3u);
    let scale = (all.y >> by) & 0xffu;
    let min = (all.z >> by) & 0xffu;
    let both = (all.w >> by) & 0xffu;
    let upper = (b & 4u) != 0u;
    let s = select(scale & 63u, (both & 15u) | ((scale >> 6u) << 4u), upper);
    let m = select(min & 63u, (both >> 4u) | ((min >> 6u) << 4u), upper);
    return Scales(vec2<f32>(d.x * f32(s)), vec2<f32>(d.y * f32(m)));
}
