// Codes of a block as eight groups of four, for formats whose codes come from tables.
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    return Codes(
        vec4<u32>({{self}}_quad(row, nb, b, 0u), {{self}}_quad(row, nb, b, 1u), {{self}}_quad(row, nb, b, 2u), {{self}}_quad(row, nb, b, 3u)),
        vec4<u32>({{self}}_quad(row, nb, b, 4u), {{self}}_quad(row, nb, b, 5u), {{self}}_quad(row, nb, b, 6u), {{self}}_quad(row, nb, b, 7u)));
}
