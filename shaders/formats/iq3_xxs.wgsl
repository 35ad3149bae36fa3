// IQ3_XXS: eight grid indices of four values; signs of eight values, seven bits each, and a scale,
// per 32 values; d (f16) per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let place = ({{self}}_word(row + 2u * b + (g >> 2u)) >> (8u * (g & 3u))) & 0xffu;
    let signs = even(({{self}}_word(row + 2u * nb + b) >> (7u * (g >> 1u))) & 127u);
    return with_signs(tables[3584u + place], signs >> (4u * (g & 1u)));
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let scale = {{self}}_word(row + 2u * nb + b) >> 28u;
    return one_scale({{self}}_half(row + 3u * nb, b >> 3u) * (0.5 + f32(scale)) * 0.5);
}
