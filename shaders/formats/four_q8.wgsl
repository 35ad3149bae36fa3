// Values of a quantised weight, four at a time. `slot` is the row number; only formats with
// separate scale tables use it.

// Values 4q to 4q + 3 of a row.
fn {{self}}_four(row: u32, slot: u32, n_cols: u32, q: u32) -> vec4<f32> {
    let nb = n_cols >> 5u;
    let scales = {{self}}_scales(row, nb, q >> 3u);
    let upper = (q & 4u) != 0u;
    let codes = vec4<f32>(unpack4xI8({{self}}_quad(row, nb, q >> 3u, q & 7u)) - vec4<i32>({{self}}_OFFSET));
    return fma(vec4<f32>(select(scales.d.x, scales.d.y, upper)), codes, -vec4<f32>(select(scales.m.x, scales.m.y, upper)));
}
