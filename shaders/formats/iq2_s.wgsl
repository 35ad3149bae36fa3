// IQ2_S: the lower bits of four grid indices; signs; the upper bits of the indices; scales per 16
// values; d (f16) per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let l = g >> 1u;
    let low = ({{self}}_word(row + b) >> (8u * l)) & 0xffu;
    let upper = ({{self}}_byte(row + 2u * nb, b) >> (2u * l)) & 3u;
    let signs = {{self}}_word(row + nb + b) >> (8u * l + 4u * (g & 1u));
    return with_signs(tables[1536u + 2u * (low | (upper << 8u)) + (g & 1u)], signs);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let both = {{self}}_byte(row + 2u * nb + (nb >> 2u), b);
    let d = {{self}}_half(row + 2u * nb + (nb >> 1u), b >> 3u);
    return Scales(d * (0.5 + vec2<f32>(f32(both & 15u), f32(both >> 4u))) * 0.25, vec2<f32>(0.0));
}
