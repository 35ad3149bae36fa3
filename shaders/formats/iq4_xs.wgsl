// IQ4_XS: nibbles; d (f16), the upper two bits of eight scales and their lower four, per 256
// values.
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let at = row + 4u * nb + 2u * (b >> 3u);
    let first = {{self}}_word(at);
    let j = b & 7u;
    let scale = (({{self}}_word(at + 1u) >> (4u * j)) & 15u) | (((first >> (16u + 2u * j)) & 3u) << 4u);
    return one_scale(f16_at(first, 0u) * f32(i32(scale) - 32));
}
