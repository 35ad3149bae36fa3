// A weighted sum of the residual streams of hyper-connections.

@group(0) @binding(0) var<storage, read> streams: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

struct Params {
    at_streams: u32,
    at_weights: u32,
    at_y: u32,
    n_values: u32,
    n: u32,
    width: u32,
    // Columns of the weights; 0 if all tokens have the same.
    stride: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i >= p.n_values) { return; }
    let token = i / p.width;
    let from_streams = p.at_streams + token * p.n * p.width + i % p.width;
    let from_weights = p.at_weights + token * p.stride;
    var sum = 0.0;
    for (var s = 0u; s < p.n; s++) { sum += weights[from_weights + s] * streams[from_streams + s * p.width]; }
    y[p.at_y + i] = sum;
}
