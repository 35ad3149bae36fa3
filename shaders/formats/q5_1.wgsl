// Q5_1: nibbles; the high bits of the codes; d and the minimum (f16, added) per 32 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    return joined({{self}}_nibbles(row, b), bits_of({{self}}_word(row + 4u * nb + b)), 4u);
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 {
    return {{self}}_nibble(row, b, g) | ((({{self}}_word(row + 4u * nb + b) >> g) & 0x01010101u) << 4u);
}
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales {
    let both = unpack2x16float({{self}}_word(row + 5u * nb + b));
    return Scales(both.xx, -both.yy);
}
