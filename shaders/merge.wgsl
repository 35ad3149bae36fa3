// y = answer, or y += answer, for the real tokens of the step.

@group(0) @binding(0) var<storage, read> answer: array<f32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

struct Params {
    at_answer: u32,
    at_batch: u32,
    at_y: u32,
    n_rows: u32,
    n_cols: u32,
    accumulate: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= min(batch[p.at_batch], p.n_rows) * p.n_cols) {
        return;
    }
    let before = select(0.0, y[p.at_y + i], p.accumulate != 0u);
    y[p.at_y + i] = before + answer[p.at_answer + i];
}
