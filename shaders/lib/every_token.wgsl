// All bound rows, for all tokens.
fn rows_of(g: u32) -> vec2<u32> { return vec2<u32>(p.first, p.first + p.n); }
fn n_here(g: u32) -> u32 { return p.n_tokens; }
fn x_row(g: u32, i: u32) -> u32 { return i; }
fn y_row(g: u32, i: u32) -> u32 { return i; }
fn y_column(g: u32, row: u32) -> u32 { return row; }
