fn {{self}}_store(from_x: u32, piece: u32, to: u32) {
    let i = 2u * piece;
    var word = to_bf16({{self}}_x[from_x + i]);
    if (i + 1u < p.{{self}}_cols) {
        word |= to_bf16({{self}}_x[from_x + i + 1u]) << 16u;
    }
    {{self}}_cache[to + piece] = word;
}
