// y = the sums of each token's pairs in order, plus biases; also counts active neurons.

@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read> bias_down: array<f32>;
@group(0) @binding(2) var<storage, read> group_weight: array<f32>;
@group(0) @binding(3) var<storage, read> pairs: array<u32>;
@group(0) @binding(4) var<storage, read> counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> carried: array<f32>;

struct Params {
    at_partial: u32,
    at_bias_down: u32,
    at_group_weight: u32,
    at_pairs: u32,
    at_counts: u32,
    at_y: u32,
    at_carried: u32,
    n_out: u32,
    n_tokens: u32,
    n_group: u32,
    n_used: u32,
    n_pairs: u32,
    of_tokens: u32,
    // Number of partial sums per expert: one for each binding of the down projection.
    n_parts: u32,
    has_bias: u32,
    accumulate: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = flat_index(id, groups);
    if (i < p.n_tokens) { carried[p.at_carried + i] += f32(counts[p.at_counts + i]); }
    if (i >= p.n_tokens * p.n_out) { return; }
    let token = i / p.n_out;
    let column = i % p.n_out;
    var sum = 0.0;
    for (var k = 0u; k < p.n_used; k++) {
        let pair = pairs[p.at_pairs + p.of_tokens + token * p.n_used + k];
        if (pair == 0xffffffffu) { break; }
        for (var part = 0u; part < p.n_parts; part++) {
            sum += partial[p.at_partial + (part * p.n_pairs + pair) * p.n_out + column];
        }
    }
    if (p.has_bias != 0u) {
        for (var g = 0u; g < p.n_group; g++) {
            sum = fma(group_weight[p.at_group_weight + token * p.n_group + g], bias_down[p.at_bias_down + g * p.n_out + column], sum);
        }
    }
    if (p.accumulate != 0u) { sum += y[p.at_y + i]; }
    y[p.at_y + i] = sum;
}
