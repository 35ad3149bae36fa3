// IQ1_M: the lower bits of four grid indices; their upper bits, each with the sign of its delta of
// 1/8; 8 bytes with d (f16) and the scales of 16 values each, per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let l = g >> 1u;
    let upper = ({{self}}_short(row + nb, b) >> (4u * l)) & 15u;
    let place = (({{self}}_word(row + b) >> (8u * l)) & 0xffu) | ((upper & 7u) << 8u);
    return one_eighth(tables[4352u + 2u * place + (g & 1u)], (upper & 8u) != 0u);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let at = row + nb + (nb >> 1u) + 2u * (b >> 3u);
    let low = {{self}}_word(at);
    let high = {{self}}_word(at + 1u);
    let d = f16_at(((low >> 12u) & 15u) | ((low >> 24u) & 0xf0u) | ((high >> 4u) & 0xf00u) | ((high >> 16u) & 0xf000u), 0u);
    let j = b & 7u;
    let three = {{self}}_short(at, j >> 1u) >> (6u * (j & 1u));
    return Scales(d * vec2<f32>(f32(2u * (three & 7u) + 1u), f32(2u * ((three >> 3u) & 7u) + 1u)) * 0.125, vec2<f32>(0.0));
}
