// Slices of all bound rows, for all tokens.
fn slice_of(z: u32) -> vec2<u32> {
    let begin = p.first + z * p.slice;
    return vec2<u32>(begin, min(begin + p.slice, p.first + p.n));
}
fn n_of(z: u32) -> u32 { return p.n_tokens; }
fn h_row(z: u32, i: u32) -> u32 { return i; }
fn h_column(z: u32, row: u32) -> u32 { return row; }
fn sums_row(z: u32, i: u32) -> u32 { return (p.part + z) * p.n_tokens + i; }
