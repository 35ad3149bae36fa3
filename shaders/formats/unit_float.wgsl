// A float weight times F32 activations: the values of one word at once.
alias {{self}}_Unit = vec2<f32>;

fn {{self}}_units(n_cols: u32) -> u32 { return (n_cols + {{self}}_PER_WORD - 1u) / {{self}}_PER_WORD; }

fn {{self}}_load(row: u32, n_cols: u32, i: u32) -> vec2<f32> { return {{self}}_values({{self}}_data[row + i]); }

fn {{self}}_dot(acc: f32, unit: vec2<f32>, x_first: u32, n_cols: u32, i: u32) -> f32 {
    let k = {{self}}_PER_WORD * i;
    let at = p.at_{{self}}_x + x_first + k;
    let first = fma(unit.x, {{self}}_x[at], acc);
    if ({{self}}_PER_WORD == 1u || k + 1u >= n_cols) { return first; }
    return fma(unit.y, {{self}}_x[at + 1u], first);
}
