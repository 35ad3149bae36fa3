// Values of a float weight, four at a time.

fn {{self}}_one(row: u32, n_cols: u32, k: u32) -> f32 {
    if (k >= n_cols) { return 0.0; }
    return {{self}}_values({{self}}_data[row + k / {{self}}_PER_WORD])[k % {{self}}_PER_WORD];
}

// Values 4q to 4q + 3 of a row; 0 past its end.
fn {{self}}_four(row: u32, slot: u32, n_cols: u32, q: u32) -> vec4<f32> {
    return vec4<f32>({{self}}_one(row, n_cols, 4u * q), {{self}}_one(row, n_cols, 4u * q + 1u),
                     {{self}}_one(row, n_cols, 4u * q + 2u), {{self}}_one(row, n_cols, 4u * q + 3u));
}
