// Rotates pairs of values of every head by position times frequency, in place; an invocation per
// pair.

@group(0) @binding(0) var<storage, read> freqs: array<f32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> q_x: array<f32>;

struct Params {
    at_freqs: u32,
    at_batch: u32,
    at_q_x: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    d_head: u32,
    first: u32,
    n_pairs: u32,
    // Pair j is value j * pair_step of the rotated values, and the value `pair_other` after it.
    pair_step: u32,
    pair_other: u32,
    scale: f32,
}
var<immediate> p: Params;

{{include flat}}
{{include turn}}
{{include q}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let j = at % p.n_pairs;
    let h = (at / p.n_pairs) % p.n_head;
    let t = at / (p.n_pairs * p.n_head);
    if (t >= min(batch[p.at_batch], p.n_rows)) {
        return;
    }
    let pos = batch[p.at_batch + 4u + 2u * p.max_tokens + t];
    q_rotate(p.at_q_x + (t * p.n_head + h) * p.d_head + p.first, j, pos);
}
