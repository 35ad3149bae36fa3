fn {{self}}_value(row: u32, i: u32) -> f32 {
    return bitcast<f32>({{self}}_data[row + i]);
}

fn {{self}}_four(row: u32, i: u32) -> vec4<f32> {
    let at = row + i;
    return bitcast<vec4<f32>>(vec4<u32>({{self}}_data[at], {{self}}_data[at + 1u], {{self}}_data[at + 2u], {{self}}_data[at + 3u]));
}
