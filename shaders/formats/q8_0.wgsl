// Q8_0: signed bytes; d (f16) per 32 values.
const {{self}}_OFFSET: i32 = 0;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes {
    let at = (row >> 2u) + 2u * b;
    return Codes({{self}}_data[at], {{self}}_data[at + 1u]);
}
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 { return {{self}}_word(row + 8u * b + g); }
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales { return one_scale({{self}}_half(row + 8u * nb, b)); }
