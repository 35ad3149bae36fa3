// Stores two blocks of 34 bytes, which are 17 words together. The last block of a row may be stored alone.

fn {{self}}_store(from_x: u32, piece: u32, to: u32) {
    // The lower half word of a pair, until the upper one is known.
    var held = 0u;
    for (var block = 2u * piece; block < min(2u * piece + 2u, p.{{self}}_cols / 32u); block++) {
        let first = from_x + 32u * block;
        var most = 0.0;
        for (var i = 0u; i < 32u; i++) { most = max(most, abs({{self}}_x[first + i])); }
        let scale = divided(most, 127.0);
        let inverse = inverse_of(scale);
        for (var h = 0u; h < 17u; h++) {
            var value = to_f16(scale);
            if (h > 0u) {
                let i = first + 2u * h - 2u;
                value = {{self}}_code_of({{self}}_x[i] * inverse) | ({{self}}_code_of({{self}}_x[i + 1u] * inverse) << 8u);
            }
            let at = 17u * block + h;
            if ((at & 1u) == 0u) {
                held = value;
            } else {
                {{self}}_cache[to + at / 2u] = held | (value << 16u);
            }
            // The last half word of a row that does not end at a whole word.
            if (at + 1u == 17u * (p.{{self}}_cols / 32u) && (at & 1u) == 0u) {
                {{self}}_cache[to + at / 2u] = held;
            }
        }
    }
}

// The nearest integer as a byte, with ties away from zero.
fn {{self}}_code_of(v: f32) -> u32 {
    let size = floor(abs(v));
    let rounded = size + select(0.0, 1.0, abs(v) - size >= 0.5);
    return u32(i32(select(rounded, -rounded, v < 0.0))) & 0xffu;
}
