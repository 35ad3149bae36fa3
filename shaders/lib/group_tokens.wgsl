// The bound rows of an expert, for the tokens that use it (`experts_pairs.wgsl`).
fn rows_of(g: u32) -> vec2<u32> {
    let begin = max(group_rows[p.at_group_rows + 2u * g], p.first);
    return vec2<u32>(begin, max(begin, min(group_rows[p.at_group_rows + 2u * g + 1u], p.first + p.n)));
}
fn n_here(g: u32) -> u32 { return pairs[p.at_pairs + g + 1u] - pairs[p.at_pairs + g]; }
fn y_row(g: u32, i: u32) -> u32 { return pairs[p.at_pairs + g] + i; }
fn x_row(g: u32, i: u32) -> u32 {
    let pair = y_row(g, i);
    if (p.x_by_pair != 0u) { return pair; }
    return pairs[p.at_pairs + p.n_group + 1u + pair] & 0xffffu;
}
fn y_column(g: u32, row: u32) -> u32 { return row - group_rows[p.at_group_rows + 2u * g]; }
