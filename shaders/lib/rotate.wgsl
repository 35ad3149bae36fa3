// Rotates pair j of the head of {{self}}_x whose first rotated value is at `begin`.
fn {{self}}_rotate(begin: u32, j: u32, pos: u32) {
    let one = begin + j * p.pair_step;
    let other = one + p.pair_other;
    let pair = rotated({{self}}_x[one], {{self}}_x[other], f32(pos) * freqs[p.at_freqs + j], p.scale);
    {{self}}_x[one] = pair.x;
    {{self}}_x[other] = pair.y;
}
