// Stores two blocks as `read_nibbles.wgsl` reads them; together they are whole words. The last block
// of a row may be stored alone.
fn {{self}}_nibbles_at(i: u32, scales: {{self}}_Scales) -> u32 {
    return ({{self}}_code_of({{self}}_x[i], scales) & 15u) | (({{self}}_code_of({{self}}_x[i + 16u], scales) & 15u) << 4u);
}

fn {{self}}_store(from_x: u32, piece: u32, to: u32) {
    let n_halves = {{self}}_HEAD + 8u;
    // The lower half word of a pair, until the upper one is known.
    var held = 0u;
    for (var block = 2u * piece; block < min(2u * piece + 2u, p.{{self}}_cols / 32u); block++) {
        let first = from_x + 32u * block;
        let scales = {{self}}_scales_of(first);
        var high = 0u;
        if ({{self}}_FIVE_BITS) {
            for (var i = 0u; i < 32u; i++) { high |= ({{self}}_code_of({{self}}_x[first + i], scales) >> 4u) << i; }
        }
        for (var h = 0u; h < n_halves; h++) {
            var value = to_f16(scales.scale);
            if (h >= {{self}}_HEAD) {
                let i = first + 2u * (h - {{self}}_HEAD);
                value = {{self}}_nibbles_at(i, scales) | ({{self}}_nibbles_at(i + 1u, scales) << 8u);
            } else if ({{self}}_HAS_MIN && h == 1u) {
                value = to_f16(scales.min);
            } else if (h > 0u) {
                value = (high >> (16u * (h + 2u - {{self}}_HEAD))) & 0xffffu;
            }
            let at = n_halves * block + h;
            if ((at & 1u) == 0u) {
                held = value;
            } else {
                {{self}}_cache[to + at / 2u] = held | (value << 16u);
            }
            // The last half word of a row that does not end at a whole word.
            if (at + 1u == n_halves * (p.{{self}}_cols / 32u) && (at & 1u) == 0u) {
                {{self}}_cache[to + at / 2u] = held;
            }
        }
    }
}
