// Codes of IQ4: a nibble is a table index; a table entry has the codes of two nibbles.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_looked_up(word: u32, by: u32) -> u32 {
    let a = (tables[8448u + (word & 0xffu)] >> by) & 0xffu;
    let b = (tables[8448u + ((word >> 8u) & 0xffu)] >> by) & 0xffu;
    let c = (tables[8448u + ((word >> 16u) & 0xffu)] >> by) & 0xffu;
    let d = (tables[8448u + (word >> 24u)] >> by) & 0xffu;
    return a | (b << 8u) | (c << 16u) | (d << 24u);
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    return {{self}}_looked_up({{self}}_word(row + 4u * b + (g & 3u)), 16u * (g >> 2u));
}
