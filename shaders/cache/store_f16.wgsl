fn store_piece(from_x: u32, piece: u32, to: u32) {
    let i = 2u * piece;
    var word = to_f16(x[from_x + i]);
    if (i + 1u < p.n_cols) {
        word |= to_f16(x[from_x + i + 1u]) << 16u;
    }
    cache[to + piece] = word;
}
