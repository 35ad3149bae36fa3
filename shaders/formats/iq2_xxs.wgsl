// IQ2_XXS: four grid indices of eight values, then their signs, seven bits each, and a scale, per
// 32 values; d (f16) per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let l = g >> 1u;
    let place = ({{self}}_word(row + 2u * b) >> (8u * l)) & 0xffu;
    let signs = even(({{self}}_word(row + 2u * b + 1u) >> (7u * l)) & 127u);
    return with_signs(tables[2u * place + (g & 1u)], signs >> (4u * (g & 1u)));
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let scale = {{self}}_word(row + 2u * b + 1u) >> 28u;
    return one_scale({{self}}_half(row + 2u * nb, b >> 3u) * (0.5 + f32(scale)) * 0.25);
}
