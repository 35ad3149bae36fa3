// Stores two blocks of 34 bytes, which are 17 words together. The last block of a row may be stored alone.

{{include rounded}}

fn store_piece(from_x: u32, piece: u32, to: u32) {
    // The lower half word of a pair, until the upper one is known.
    var held = 0u;
    for (var block = 2u * piece; block < min(2u * piece + 2u, p.n_cols / 32u); block++) {
        let first = from_x + 32u * block;
        var most = 0.0;
        for (var i = 0u; i < 32u; i++) { most = max(most, abs(x[first + i])); }
        let scale = divided(most, 127.0);
        let inverse = inverse_of(scale);
        for (var h = 0u; h < 17u; h++) {
            var value = to_f16(scale);
            if (h > 0u) {
                let i = first + 2u * h - 2u;
                value = code_of(x[i] * inverse) | (code_of(x[i + 1u] * inverse) << 8u);
            }
            let at = 17u * block + h;
            if ((at & 1u) == 0u) {
                held = value;
            } else {
                cache[to + at / 2u] = held | (value << 16u);
            }
            // The last half word of a row that does not end at a whole word.
            if (at + 1u == 17u * (p.n_cols / 32u) && (at & 1u) == 0u) {
                cache[to + at / 2u] = held;
            }
        }
    }
}

// The nearest integer as a byte, with ties away from zero.
fn code_of(v: f32) -> u32 {
    let size = floor(abs(v));
    let rounded = size + select(0.0, 1.0, abs(v) - size >= 0.5);
    return u32(i32(select(rounded, -rounded, v < 0.0))) & 0xffu;
}
