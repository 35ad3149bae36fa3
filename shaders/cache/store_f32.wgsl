fn store_piece(from_x: u32, piece: u32, to: u32) {
    cache[to + piece] = bitcast<u32>(x[from_x + piece]);
}
