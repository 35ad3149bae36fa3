// Blocks of 32 codes of four or five bits, read as 16-bit half words: a scale; with HAS_MIN the value
// of code 0; with FIVE_BITS two half words with the codes' highest bits; after these HEAD half words
// 16 bytes of nibbles, of which byte j has the lower bits of codes j and j + 16.
fn {{self}}_half(row: u32, h: u32) -> u32 {
    return ({{self}}_data[row + h / 2u] >> (16u * (h & 1u))) & 0xffffu;
}

// The value of a code in the block that begins at half word `block`.
fn {{self}}_scaled(row: u32, block: u32, entry: vec4<f32>) -> vec4<f32> {
    let scale = unpack2x16float({{self}}_half(row, block)).x;
    if ({{self}}_HAS_MIN) {
        return scale * entry + unpack2x16float({{self}}_half(row, block + 1u)).x;
    }
    return scale * entry;
}

fn {{self}}_value(row: u32, i: u32) -> f32 {
    let at = i % 32u;
    let block = ({{self}}_HEAD + 8u) * (i / 32u);
    let pair = {{self}}_half(row, block + {{self}}_HEAD + (at % 16u) / 2u) >> (8u * (at & 1u));
    var code = (pair >> (4u * (at / 16u))) & 15u;
    if ({{self}}_FIVE_BITS) {
        code |= (({{self}}_half(row, block + {{self}}_HEAD - 2u + at / 16u) >> (at % 16u)) & 1u) << 4u;
    }
    return {{self}}_scaled(row, block, vec4<f32>({{self}}_entry(code))).x;
}

fn {{self}}_four(row: u32, i: u32) -> vec4<f32> {
    let at = i % 32u;
    let block = ({{self}}_HEAD + 8u) * (i / 32u);
    let h = block + {{self}}_HEAD + (at % 16u) / 2u;
    let pairs = {{self}}_half(row, h) | ({{self}}_half(row, h + 1u) << 16u);
    var codes = (vec4<u32>(pairs >> (4u * (at / 16u))) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
    if ({{self}}_FIVE_BITS) {
        let high = {{self}}_half(row, block + {{self}}_HEAD - 2u + at / 16u) >> (at % 16u);
        codes |= ((vec4<u32>(high) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(4u);
    }
    let entries = vec4<f32>({{self}}_entry(codes.x), {{self}}_entry(codes.y), {{self}}_entry(codes.z), {{self}}_entry(codes.w));
    return {{self}}_scaled(row, block, entries);
}
