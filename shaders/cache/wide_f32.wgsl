// Eight values of a head in two loads: rows and heads begin at multiples of 16 bytes.
fn {{self}}_eight(row: u32, first: u32, i: u32, d: u32) -> Eight {
    let at = (row + first + i) >> 2u;
    return Eight(bitcast<vec4<f32>>({{self}}_data[at]), bitcast<vec4<f32>>({{self}}_data[at + 1u]));
}
