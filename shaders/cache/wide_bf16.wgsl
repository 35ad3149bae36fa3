// Eight values of a head in one load: rows and heads begin at multiples of 16 bytes.
fn {{self}}_eight(row: u32, first: u32, i: u32, d: u32) -> Eight {
    let words = {{self}}_data[(row + (first + i) / 2u) >> 2u];
    let low = bitcast<vec4<f32>>(words << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(words & vec4<u32>(0xffff0000u));
    return Eight(vec4<f32>(low.x, high.x, low.y, high.y), vec4<f32>(low.z, high.z, low.w, high.w));
}
