// A down matrix with one row per neuron (`hal::format::TransposedLayout`): a row of codes per
// slot, its group number, and one scale and minimum per group and output.

fn {{self}}_table(at: u32, q: u32) -> vec4<f32> {
    if ({{WIDE}}) {
        let i = at + 4u * q;
        return vec4<f32>(bitcast<f32>(side[i]), bitcast<f32>(side[i + 1u]), bitcast<f32>(side[i + 2u]), bitcast<f32>(side[i + 3u]));
    }
    let i = at + 2u * q;
    return vec4<f32>(unpack2x16float(side[i]), unpack2x16float(side[i + 1u]));
}

fn {{self}}_four(row: u32, slot: u32, n_cols: u32, q: u32) -> vec4<f32> {
    var codes = 0u;
    if ({{NIBBLES}}) {
        codes = {{self}}_nibble(row, q >> 3u, q & 7u);
    } else {
        codes = {{self}}_word(row + q);
    }
    let group = side[p.at_side + p.side_groups + slot] * p.side_words;
    let values = vec4<f32>(unpack4xI8(codes) - vec4<i32>({{OFFSET}}));
    let d = {{self}}_table(p.at_side + p.side_scales + group, q);
    if (!{{MINS}}) { return d * values; }
    return fma(d, values, -{{self}}_table(p.at_side + p.side_mins + group, q));
}
