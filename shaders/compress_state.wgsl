// Keeps the values and gates of the last positions of every sequence (op::CompressKeys). An invocation copies a column of a
// sequence, in token order.

@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;

struct Params {
    at_values: u32,
    at_gates: u32,
    at_batch: u32,
    at_state: u32,
    max_tokens: u32,
    n_rows: u32,
    width: u32,
    n_positions: u32,
}
var<immediate> p: Params;

{{include flat}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let c = at % p.width;
    let seq = at / p.width;
    if (seq >= batch[p.at_batch + 1u]) {
        return;
    }
    for (var t = 0u; t < min(batch[p.at_batch], p.n_rows); t++) {
        if (batch[p.at_batch + 4u + p.max_tokens + t] != seq) {
            continue;
        }
        let pos = batch[p.at_batch + 4u + 2u * p.max_tokens + t];
        let slot = p.at_state + (seq * p.n_positions + pos % p.n_positions) * 2u * p.width + c;
        state[slot] = values[p.at_values + t * p.width + c];
        state[slot + p.width] = gates[p.at_gates + t * p.width + c];
    }
}
