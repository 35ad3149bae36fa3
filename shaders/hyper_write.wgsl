// The new residual streams of hyper-connections, from a block's output and the old streams.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weights: array<f32>;
@group(0) @binding(2) var<storage, read_write> streams: array<f32>;

struct Params {
    at_x: u32,
    at_weights: u32,
    at_streams: u32,
    n_values: u32,
    n: u32,
    width: u32,
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
    let post = p.at_weights + token * p.n * (p.n + 2u) + p.n;
    let mix = post + p.n;
    let own = p.at_streams + token * p.n * p.width + i % p.width;
    var old = array<f32, 8>();
    for (var s = 0u; s < p.n; s++) { old[s] = streams[own + s * p.width]; }
    let block = x[p.at_x + i];
    for (var to = 0u; to < p.n; to++) {
        var sum = weights[post + to] * block;
        for (var s = 0u; s < p.n; s++) { sum += weights[mix + s * p.n + to] * old[s]; }
        streams[own + to * p.width] = sum;
    }
}
