// Eight values of a head in one load: rows and heads begin at multiples of 16 bytes.
fn {{self}}_eight(row: u32, first: u32, i: u32, d: u32) -> Eight {
    let words = {{self}}_data[(row + (first + i) / 2u) >> 2u];
    return Eight(vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y)),
                 vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w)));
}
