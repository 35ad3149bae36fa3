// IQ1_S: the lower bits of four grid indices; their upper bits, a scale and the sign of the delta
// of 1/8, per 32 values; d (f16) per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let l = g >> 1u;
    let more = {{self}}_short(row + nb, b);
    let place = (({{self}}_word(row + b) >> (8u * l)) & 0xffu) | (((more >> (3u * l)) & 7u) << 8u);
    return one_eighth(tables[4352u + 2u * place + (g & 1u)], (more & 0x8000u) != 0u);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let scale = ({{self}}_short(row + nb, b) >> 12u) & 7u;
    return one_scale({{self}}_half(row + nb + (nb >> 1u), b >> 3u) * f32(2u * scale + 1u) * 0.125);
}
