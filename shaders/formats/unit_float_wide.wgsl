// A float weight times F32 activations: the values of four words at once, in rows of whole fours of
// words.
alias {{self}}_Unit = vec4<u32>;

fn {{self}}_units(n_cols: u32) -> u32 { return n_cols / (4u * {{self}}_PER_WORD); }

fn {{self}}_load(row: u32, n_cols: u32, i: u32) -> vec4<u32> { return {{self}}_data[(row >> 2u) + i]; }

fn {{self}}_dot(acc: f32, unit: vec4<u32>, x_first: u32, n_cols: u32, i: u32) -> f32 {
    let at = ((p.at_{{self}}_x + x_first) >> 2u) + {{self}}_PER_WORD * i;
    let a = {{self}}_values(unit.x);
    let b = {{self}}_values(unit.y);
    let c = {{self}}_values(unit.z);
    let d = {{self}}_values(unit.w);
    let first = {{self}}_x[at];
    if ({{self}}_PER_WORD == 1u) { return fma(d.x, first.w, fma(c.x, first.z, fma(b.x, first.y, fma(a.x, first.x, acc)))); }
    let second = {{self}}_x[at + 1u];
    let half = fma(b.y, first.w, fma(b.x, first.z, fma(a.y, first.y, fma(a.x, first.x, acc))));
    return fma(d.y, second.w, fma(d.x, second.z, fma(c.y, second.y, fma(c.x, second.x, half))));
}
