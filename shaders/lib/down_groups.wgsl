// The bound rows of an expert, for the tokens that use it (`experts_pairs.wgsl`).
fn slice_of(z: u32) -> vec2<u32> {
    let begin = max(group_rows[p.at_group_rows + 2u * z], p.first);
    return vec2<u32>(begin, min(group_rows[p.at_group_rows + 2u * z + 1u], p.first + p.n));
}
fn n_of(z: u32) -> u32 { return pairs[p.at_pairs + z + 1u] - pairs[p.at_pairs + z]; }
fn h_row(z: u32, i: u32) -> u32 { return pairs[p.at_pairs + z] + i; }
fn h_column(z: u32, row: u32) -> u32 { return row - group_rows[p.at_group_rows + 2u * z]; }
fn sums_row(z: u32, i: u32) -> u32 { return p.part * p.n_pairs + h_row(z, i); }
