// The gated delta rule; an invocation to a column of a head's state of a sequence, token after token.

@group(0) @binding(0) var<storage, read> q: array<f32>;
@group(0) @binding(1) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(3) var<storage, read> decay: array<f32>;
@group(0) @binding(4) var<storage, read> beta: array<f32>;
@group(0) @binding(5) var<storage, read> batch: array<u32>;
@group(0) @binding(6) var<storage, read_write> state: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

struct Params {
    at_q: u32,
    at_k: u32,
    at_v: u32,
    at_decay: u32,
    at_beta: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    d_k: u32,
    d_v: u32,
    scale: f32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let j = at % p.d_v;
    let h = (at / p.d_v) % p.n_head;
    let seq = at / (p.d_v * p.n_head);
    if (seq >= batch[p.at_batch + 1u]) {
        return;
    }
    let column = p.at_state + (seq * p.n_head + h) * p.d_k * p.d_v + j;
    for (var t = 0u; t < min(batch[p.at_batch], p.n_rows); t++) {
        if (batch[p.at_batch + 4u + p.max_tokens + t] != seq) {
            continue;
        }
        let begins = batch[p.at_batch + 4u + 2u * p.max_tokens + t] == 0u;
        let token = t * p.n_head + h;
        let factor = exp(decay[p.at_decay + token]);
        let from_k = p.at_k + token * p.d_k;
        let from_q = p.at_q + token * p.d_k;
        var known = 0.0;
        for (var i = 0u; i < p.d_k; i++) {
            let before = select(factor * state[column + i * p.d_v], 0.0, begins);
            known += before * k[from_k + i];
        }
        let change = beta[p.at_beta + token] * (v[p.at_v + token * p.d_v + j] - known);
        var sum = 0.0;
        for (var i = 0u; i < p.d_k; i++) {
            let before = select(factor * state[column + i * p.d_v], 0.0, begins);
            let after = before + change * k[from_k + i];
            state[column + i * p.d_v] = after;
            sum += after * q[from_q + i];
        }
        y[p.at_y + token * p.d_v + j] = p.scale * sum;
    }
}
