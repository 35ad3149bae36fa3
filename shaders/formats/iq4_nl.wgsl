// IQ4_NL: nibbles; d (f16) per 32 values.
fn {{self}}_scales(row: u32, nb: u32, b: u32) -> Scales { return one_scale({{self}}_half(row + 4u * nb, b)); }
