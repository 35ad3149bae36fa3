// IQ2_XS: grid indices (9 bits) and signs (7 bits) per eight values; scales per 16 values; d (f16)
// per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let both = {{self}}_short(row + 2u * b, g >> 1u);
    return with_signs(tables[512u + 2u * (both & 511u) + (g & 1u)], even(both >> 9u) >> (4u * (g & 1u)));
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let both = {{self}}_byte(row + 2u * nb, b);
    let d = {{self}}_half(row + 2u * nb + (nb >> 2u), b >> 3u);
    return Scales(d * (0.5 + vec2<f32>(f32(both & 15u), f32(both >> 4u))) * 0.25, vec2<f32>(0.0));
}
