// A short causal convolution per channel. An invocation processes a channel of a sequence, in token
// order.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> batch: array<u32>;
@group(0) @binding(4) var<storage, read_write> state: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

struct Params {
    at_x: u32,
    at_weight: u32,
    at_bias: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n: u32,
    has_bias: u32,
    silu: u32,
}
var<immediate> p: Params;

{{include flat}}
{{include sigmoid}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let c = at % p.n;
    let seq = at / p.n;
    if (seq >= batch[p.at_batch + 1u]) {
        return;
    }
    let from_state = p.at_state + seq * {{TAPS}}u * p.n + c;
    // The last inputs, the oldest first.
    var inputs: array<f32, {{TAPS}} + 1>;
    for (var i = 0u; i < {{TAPS}}u; i++) { inputs[i] = state[from_state + i * p.n]; }
    for (var t = 0u; t < min(batch[p.at_batch], p.n_rows); t++) {
        if (batch[p.at_batch + 4u + p.max_tokens + t] != seq) {
            continue;
        }
        let begins = batch[p.at_batch + 4u + 2u * p.max_tokens + t] == 0u;
        for (var i = 0u; i < {{TAPS}}u; i++) { inputs[i] = select(inputs[i], 0.0, begins); }
        inputs[{{TAPS}}] = x[p.at_x + t * p.n + c];
        var sum = 0.0;
        if (p.has_bias != 0u) { sum = bias[p.at_bias + c]; }
        for (var i = 0u; i <= {{TAPS}}u; i++) { sum += weight[p.at_weight + c * ({{TAPS}}u + 1u) + i] * inputs[i]; }
        y[p.at_y + t * p.n + c] = select(sum, sum * sigmoid_of(sum), p.silu != 0u);
        for (var i = 0u; i < {{TAPS}}u; i++) { inputs[i] = inputs[i + 1u]; }
    }
    for (var i = 0u; i < {{TAPS}}u; i++) { state[from_state + i * p.n] = inputs[i]; }
}
