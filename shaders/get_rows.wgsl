// y[t] = scale * table[id of t], or y[t] += table[position of t + offset]: rows of a weight
// selected by the batch.

@group(0) @binding(0) var<storage, read> weight_data: {{weight_type}};
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

struct Params {
    at_weight: u32,
    at_tables: u32,
    at_batch: u32,
    at_y: u32,
    // First bound row, and number of bound rows.
    first: u32,
    n: u32,
    row_words: u32,
    n_cols: u32,
    n_tokens: u32,
    // Word offset in the batch of the tokens' ids or positions, the constant added to each, and the
    // last valid row.
    numbers: u32,
    offset: u32,
    last: u32,
    // Bits of the scale factor, which is not used if rows are added.
    scale: u32,
    add: u32,
}
var<immediate> p: Params;

{{include block}}
{{include weight}}
{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = flat_index(id, groups);
    let fours = (p.n_cols + 3u) / 4u;
    let token = i / fours;
    let q = i % fours;
    if (token >= min(p.n_tokens, batch[p.at_batch])) { return; }
    let r = min(batch[p.at_batch + p.numbers + token] + p.offset, p.last);
    if (r < p.first || r >= p.first + p.n) { return; }
    let values = weight_four(p.at_weight + (r - p.first) * p.row_words, r, p.n_cols, q);
    for (var c = 0u; c < 4u && 4u * q + c < p.n_cols; c++) {
        let to = p.at_y + token * p.n_cols + 4u * q + c;
        if (p.add != 0u) { y[to] += values[c]; } else { y[to] = bitcast<f32>(p.scale) * values[c]; }
    }
}
