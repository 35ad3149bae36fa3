// x[t, i] *= act(g[t, i / per_gate]), for each value.

@group(0) @binding(0) var<storage, read> g: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

struct Params {
    at_g: u32,
    at_x: u32,
    n: u32,
    n_cols: u32,
    // Number of consecutive values of a token that one gate value scales.
    per_gate: u32,
    // Number of gate values per token, or 0 if all tokens share them.
    gate_stride: u32,
    activation: u32,
}
var<immediate> p: Params;

{{include flat}}
{{include sigmoid}}

// `mul` in `backends/wgpu/src/ops/elementwise.rs` defines the codes of the activations.
fn gate(v: f32) -> f32 {
    switch p.activation {
        case 0u: { return v; }
        case 1u: { return sigmoid_of(v); }
        case 2u: { return v * sigmoid_of(v); }
        case 3u: { return softplus_of(v); }
        // (1 + tanh y) / 2 is the sigmoid of 2 y.
        case 4u: { return v * sigmoid_of(1.5957691216 * v * fma(0.044715 * v, v, 1.0)); }
        default: { return sigmoid_of(sign(v) * sqrt(max(abs(v), 1e-6))); }
    }
}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let i = flat_index(id, groups);
    if (i < p.n) {
        let t = i / p.n_cols;
        x[p.at_x + i] *= gate(g[p.at_g + t * p.gate_stride + (i - t * p.n_cols) / p.per_gate]);
    }
}
