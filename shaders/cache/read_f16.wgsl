fn {{self}}_value(row: u32, i: u32) -> f32 {
    let pair = unpack2x16float({{self}}_data[row + i / 2u]);
    return select(pair.x, pair.y, (i & 1u) == 1u);
}

fn {{self}}_four(row: u32, i: u32) -> vec4<f32> {
    let at = row + i / 2u;
    return vec4<f32>(unpack2x16float({{self}}_data[at]), unpack2x16float({{self}}_data[at + 1u]));
}
