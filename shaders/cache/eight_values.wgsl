// Eight values of a head of `d` values, from value i on; zeros past the end of the head.
fn {{self}}_within(row: u32, first: u32, i: u32, d: u32) -> f32 {
    if (i >= d) { return 0.0; }
    return {{self}}_value(row, first + i);
}

fn {{self}}_eight(row: u32, first: u32, i: u32, d: u32) -> Eight {
    return Eight(
        vec4<f32>({{self}}_within(row, first, i, d), {{self}}_within(row, first, i + 1u, d),
                  {{self}}_within(row, first, i + 2u, d), {{self}}_within(row, first, i + 3u, d)),
        vec4<f32>({{self}}_within(row, first, i + 4u, d), {{self}}_within(row, first, i + 5u, d),
                  {{self}}_within(row, first, i + 6u, d), {{self}}_within(row, first, i + 7u, d)));
}
