// IQ3_S: the lower bits of eight grid indices; signs; the upper bits of the indices; a scale per
// 32 values; d (f16) per 256 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    let low = ({{self}}_word(row + 2u * b + (g >> 2u)) >> (8u * (g & 3u))) & 0xffu;
    let upper = ({{self}}_byte(row + 3u * nb, b) >> g) & 1u;
    return with_signs(tables[3840u + (low | (upper << 8u))], {{self}}_word(row + 2u * nb + b) >> (4u * g));
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let at = row + 3u * nb + (nb >> 2u);
    let scale = ({{self}}_byte(at, b >> 1u) >> (4u * (b & 1u))) & 15u;
    return one_scale({{self}}_half(at + (nb >> 3u), b >> 3u) * f32(1u + 2u * scale));
}
