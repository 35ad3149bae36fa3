// x[t] *= 1 + factor * ln(1 + floor((pos_t + offset) / length)).

@group(0) @binding(0) var<storage, read> batch: array<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

struct Params {
    at_batch: u32,
    at_x: u32,
    max_tokens: u32,
    n_rows: u32,
    n_cols: u32,
    length: u32,
    offset: u32,
    factor: f32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    let t = i / p.n_cols;
    if (t >= min(batch[p.at_batch], p.n_rows)) {
        return;
    }
    let pos = batch[p.at_batch + 4u + 2u * p.max_tokens + t];
    x[p.at_x + i] *= 1.0 + p.factor * log(1.0 + f32((pos + p.offset) / p.length));
}
