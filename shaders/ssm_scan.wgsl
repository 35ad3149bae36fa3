// The Mamba-2 recurrence; an invocation to a channel's state of a sequence, token after token.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> dt: array<f32>;
@group(0) @binding(2) var<storage, read> dt_bias: array<f32>;
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(4) var<storage, read> b: array<f32>;
@group(0) @binding(5) var<storage, read> c: array<f32>;
@group(0) @binding(6) var<storage, read> d: array<f32>;
@group(0) @binding(7) var<storage, read> batch: array<u32>;
@group(0) @binding(8) var<storage, read_write> state: array<f32>;
@group(0) @binding(9) var<storage, read_write> y: array<f32>;

struct Params {
    at_x: u32,
    at_dt: u32,
    at_dt_bias: u32,
    at_a: u32,
    at_b: u32,
    at_c: u32,
    at_d: u32,
    at_batch: u32,
    at_state: u32,
    at_y: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    n_group: u32,
    d_head: u32,
    d_state: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let n = p.n_head * p.d_head;
    let channel = at % n;
    let seq = at / n;
    if (seq >= batch[p.at_batch + 1u]) {
        return;
    }
    let h = channel / p.d_head;
    let group = h * p.n_group / p.n_head;
    let from_state = p.at_state + at * p.d_state;
    for (var t = 0u; t < min(batch[p.at_batch], p.n_rows); t++) {
        if (batch[p.at_batch + 4u + p.max_tokens + t] != seq) {
            continue;
        }
        let begins = batch[p.at_batch + 4u + 2u * p.max_tokens + t] == 0u;
        let raw = dt[p.at_dt + t * p.n_head + h] + dt_bias[p.at_dt_bias + h];
        let step = max(raw, 0.0) + log(1.0 + exp(-abs(raw)));
        let factor = exp(step * a[p.at_a + h]);
        let value = x[p.at_x + t * n + channel];
        let from_group = (t * p.n_group + group) * p.d_state;
        var sum = d[p.at_d + h] * value;
        for (var i = 0u; i < p.d_state; i++) {
            let before = select(factor * state[from_state + i], 0.0, begins);
            let after = before + step * value * b[p.at_b + from_group + i];
            state[from_state + i] = after;
            sum += after * c[p.at_c + from_group + i];
        }
        y[p.at_y + t * n + channel] = sum;
    }
}
