// y[i] = x[out_i]: copies the rows of the tokens whose output is needed.

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

struct Params {
    at_x: u32,
    at_batch: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n_cols: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let i = at / p.n_cols;
    if (i >= min(batch[p.at_batch + 2u], p.n_rows)) {
        return;
    }
    let t = batch[p.at_batch + 4u + 4u * p.max_tokens + i];
    y[p.at_y + at] = x[p.at_x + t * p.n_cols + at % p.n_cols];
}
