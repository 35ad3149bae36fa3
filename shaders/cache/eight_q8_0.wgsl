// Eight values of a block, whose codes may begin in the middle of a word.
fn {{self}}_eight(row: u32, first: u32, i: u32, d: u32) -> Eight {
    let block = 17u * ((first + i) / 32u);
    let half = block + 1u + ((first + i) % 32u) / 2u;
    let odd = half & 1u;
    let at = row + half / 2u;
    let words = vec3<u32>({{self}}_data[at], {{self}}_data[at + 1u], {{self}}_data[at + 1u + odd]);
    let codes = select(words.xy, (words.xy >> vec2<u32>(16u)) | (words.yz << vec2<u32>(16u)), odd == 1u);
    let scale = unpack2x16float({{self}}_half(row, block)).x;
    return Eight(scale * vec4<f32>(unpack4xI8(codes.x)), scale * vec4<f32>(unpack4xI8(codes.y)));
}
