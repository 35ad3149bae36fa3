fn {{self}}_value(row: u32, i: u32) -> f32 {
    let word = {{self}}_data[row + i / 2u];
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (i & 1u) == 1u));
}

fn {{self}}_four(row: u32, i: u32) -> vec4<f32> {
    let at = row + i / 2u;
    let words = vec2<u32>({{self}}_data[at], {{self}}_data[at + 1u]);
    let low = bitcast<vec2<f32>>(words << vec2<u32>(16u));
    let high = bitcast<vec2<f32>>(words & vec2<u32>(0xffff0000u));
    return vec4<f32>(low.x, high.x, low.y, high.y);
}
