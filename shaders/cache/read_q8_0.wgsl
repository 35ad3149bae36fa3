// Blocks of 34 bytes, read as 16-bit half words; the first half word of a block is its scale.
fn {{self}}_half(row: u32, h: u32) -> u32 {
    return ({{self}}_data[row + h / 2u] >> (16u * (h & 1u))) & 0xffffu;
}

fn {{self}}_value(row: u32, i: u32) -> f32 {
    let first = 17u * (i / 32u);
    let scale = unpack2x16float({{self}}_half(row, first)).x;
    let pair = {{self}}_half(row, first + 1u + (i % 32u) / 2u);
    return scale * f32(i32(pair << select(24u, 16u, (i & 1u) == 1u)) >> 24u);
}

fn {{self}}_four(row: u32, i: u32) -> vec4<f32> {
    let first = 17u * (i / 32u);
    let scale = unpack2x16float({{self}}_half(row, first)).x;
    let h = first + 1u + (i % 32u) / 2u;
    let codes = {{self}}_half(row, h) | ({{self}}_half(row, h + 1u) << 16u);
    let bytes = vec4<i32>(vec4<u32>(codes) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return scale * vec4<f32>(bytes);
}
