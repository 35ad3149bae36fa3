// y = partial sums in order, plus biases; also counts active neurons.

@group(0) @binding(0) var<storage, read> partial: array<f32>;
@group(0) @binding(1) var<storage, read> bias_down: array<f32>;
@group(0) @binding(2) var<storage, read> group_weight: array<f32>;
@group(0) @binding(3) var<storage, read> counts: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read_write> carried: array<f32>;

struct Params {
    at_partial: u32,
    at_bias_down: u32,
    at_group_weight: u32,
    at_counts: u32,
    at_y: u32,
    at_carried: u32,
    n_out: u32,
    n_tokens: u32,
    n_slices: u32,
    n_group: u32,
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
    for (var s = 0u; s < p.n_slices; s++) { sum += partial[p.at_partial + s * p.n_tokens * p.n_out + i]; }
    if (p.has_bias != 0u) {
        for (var g = 0u; g < max(p.n_group, 1u); g++) {
            var by = 1.0;
            if (p.n_group != 0u) { by = group_weight[p.at_group_weight + token * p.n_group + g]; }
            sum = fma(by, bias_down[p.at_bias_down + g * p.n_out + column], sum);
        }
    }
    if (p.accumulate != 0u) { sum += y[p.at_y + i]; }
    y[p.at_y + i] = sum;
}
