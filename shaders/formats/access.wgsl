// Words of a weight. `row` is always the offset of a row in words, a multiple of four.
fn {{self}}_word(i: u32) -> u32 { return {{self}}_data[i >> 2u][i & 3u]; }
fn {{self}}_half(at: u32, i: u32) -> f32 { return f16_at({{self}}_word(at + (i >> 1u)), i & 1u); }
fn {{self}}_short(at: u32, i: u32) -> u32 { return ({{self}}_word(at + (i >> 1u)) >> (16u * (i & 1u))) & 0xffffu; }
fn {{self}}_byte(at: u32, i: u32) -> u32 { return ({{self}}_word(at + (i >> 2u)) >> (8u * (i & 3u))) & 0xffu; }
fn {{self}}_nibble(row: u32, b: u32, g: u32) -> u32 {
    return ({{self}}_word(row + 4u * b + (g & 3u)) >> (4u * (g >> 2u))) & 0x0f0f0f0fu;
}
fn {{self}}_nibbles(row: u32, b: u32) -> Codes { return nibbles_of({{self}}_data[(row >> 2u) + b]); }
