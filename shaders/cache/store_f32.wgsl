fn {{self}}_store(from_x: u32, piece: u32, to: u32) {
    {{self}}_cache[to + piece] = bitcast<u32>({{self}}_x[from_x + piece]);
}
