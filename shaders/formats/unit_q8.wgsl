// A quantised weight times activations in Q8 blocks: 32 values at once.
//
// A block of activations is three times four words: codes 0 to 15, codes 16 to 31, then d and the
// sums of both halves.
struct {{self}}_Unit { codes: Codes, scales: Scales }

fn {{self}}_units(n_cols: u32) -> u32 { return n_cols >> 5u; }

fn {{self}}_load(row: u32, n_cols: u32, i: u32) -> {{self}}_Unit {
    return {{self}}_Unit({{self}}_codes(row, n_cols >> 5u, i), {{self}}_scales(row, n_cols >> 5u, i));
}

// `acc` plus the product of `unit` with unit i of the activations' row at offset `x_first`.
fn {{self}}_dot(acc: f32, unit: {{self}}_Unit, x_first: u32, n_cols: u32, i: u32) -> f32 {
    let at = (p.at_{{self}}_x >> 2u) + 3u * ((x_first >> 5u) + i);
    return q8_dot(acc, unit.codes, unit.scales, {{self}}_OFFSET, {{self}}_x[at], {{self}}_x[at + 1u], {{self}}_x[at + 2u]);
}
