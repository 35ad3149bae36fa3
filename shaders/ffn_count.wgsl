// Adds to each row's count of hits the number of tokens for which the row was active.

@group(0) @binding(0) var<storage, read> h: array<u32>;
@group(0) @binding(1) var<storage, read_write> hits: array<f32>;

struct Params {
    at_h: u32,
    at_hits: u32,
    n_rows: u32,
    n_tokens: u32,
}
var<immediate> p: Params;

{{include flat}}

// Marks a skipped neuron, as in `lib/wanted.wgsl`.
const DROPPED: u32 = 0x80000000u;

@compute @workgroup_size({{FLAT}})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let row = flat_index(id, groups);
    if (row >= p.n_rows) { return; }
    var n = 0u;
    for (var token = 0u; token < p.n_tokens; token++) {
        if (h[p.at_h + token * p.n_rows + row] != DROPPED) { n++; }
    }
    if (n > 0u) { hits[p.at_hits + row] += f32(n); }
}
