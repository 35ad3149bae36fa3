// Eight values of a head of `d` values, a multiple of eight: two groups of four.
fn {{self}}_eight(row: u32, first: u32, i: u32, d: u32) -> Eight {
    return Eight({{self}}_four(row, first + i), {{self}}_four(row, first + i + 4u));
}
