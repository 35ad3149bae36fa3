// Q4_0: nibbles; d (f16) per 32 values.
const {{self}}_OFFSET: i32 = 8;
fn {{self}}_codes(row: u32, nb: u32, b: u32) -> Codes { return {{self}}_nibbles(row, b); }
fn {{self}}_quad(row: u32, nb: u32, b: u32, g: u32) -> u32 { return {{self}}_nibble(row, b, g); }
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales { return one_scale({{self}}_half(row + 4u * nb, b)); }
