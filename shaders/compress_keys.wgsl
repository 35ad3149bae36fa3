// Keys of the blocks that end in this step (op::CompressKeys): means of values with learned weights, normed and rotated, for
// the tokens at the last position of a block. A workgroup per token. Earlier positions are tokens of the step, or in the
// state, which `compress_state` then brings up to date.

@group(0) @binding(0) var<storage, read> values: array<f32>;
@group(0) @binding(1) var<storage, read> gates: array<f32>;
@group(0) @binding(2) var<storage, read> ape: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> freqs: array<f32>;
@group(0) @binding(5) var<storage, read> state: array<f32>;
@group(0) @binding(6) var<storage, read> batch: array<u32>;
@group(0) @binding(7) var<storage, read_write> k_cache: array<u32>;

struct Params {
    at_values: u32,
    at_gates: u32,
    at_ape: u32,
    at_norm: u32,
    at_freqs: u32,
    at_state: u32,
    at_batch: u32,
    at_k_cache: u32,
    max_tokens: u32,
    n_rows: u32,
    // Columns of the values, and of a key.
    width: u32,
    k_cols: u32,
    ratio: u32,
    n_positions: u32,
    n_pairs: u32,
    // As in `rope.wgsl`.
    pair_step: u32,
    pair_other: u32,
    // Invocations that store a key.
    k_stores: u32,
    k_words: u32,
    // Positions that share a row.
    per_row: u32,
    eps: f32,
}
var<immediate> p: Params;

// The key of the token.
var<workgroup> k_x: array<f32, 1024>;
// Sequence, position plus 1 (0 if no block ends there), and cache row of the token.
var<workgroup> facts: vec3<u32>;

{{include sum}}
{{include turn}}
{{include half}}
{{include rounded}}
{{include k}}

fn batch_seq(t: u32) -> u32 { return batch[p.at_batch + 4u + p.max_tokens + t]; }

// The mean of column `i` over the last positions of token `t`.
fn mean_of(t: u32, seq: u32, end: u32, i: u32) -> f32 {
    var most = -3.0e38;
    var sum = 0.0;
    var total = 0.0;
    var token = t;
    var in_step = true;
    for (var j = 0u; j < min(p.n_positions, end); j++) {
        let pos = end - 1u - j;
        let c = select(i, p.width - p.k_cols + i, j < p.ratio);
        if (j > 0u) {
            // The token before of the sequence.
            while (in_step) {
                if (token == 0u) { in_step = false; break; }
                token--;
                if (batch_seq(token) == seq) { break; }
            }
        }
        var value = 0.0;
        var gate = 0.0;
        if (in_step) {
            value = values[p.at_values + token * p.width + c];
            gate = gates[p.at_gates + token * p.width + c];
        } else {
            let slot = p.at_state + (seq * p.n_positions + pos % p.n_positions) * 2u * p.width + c;
            value = state[slot];
            gate = state[slot + p.width];
        }
        gate += ape[p.at_ape + pos % p.ratio * p.width + c];
        // What was added so far had a smaller maximum.
        let larger = max(most, gate);
        let fade = exp(most - larger);
        let weight = exp(gate - larger);
        sum = sum * fade + weight * value;
        total = total * fade + weight;
        most = larger;
    }
    return sum / total;
}

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let t = group.x + group.y * groups.x;
    if (lane == 0u) {
        var found = vec3<u32>(0u);
        if (t < min(batch[p.at_batch], p.n_rows)) {
            let of_token = p.at_batch + 4u + t;
            let end = batch[of_token + 2u * p.max_tokens] + 1u;
            if (end % p.ratio == 0u) { found = vec3<u32>(batch_seq(t), end, batch[of_token + 3u * p.max_tokens] / p.per_row); }
        }
        facts = found;
    }
    let known = workgroupUniformLoad(&facts);
    if (known.y == 0u) {
        return;
    }
    var squares = 0.0;
    for (var i = lane; i < p.k_cols; i += {{ROW}}u) {
        let mean = mean_of(t, known.x, known.y, i);
        k_x[i] = mean;
        squares += mean * mean;
    }
    let factor = 1.0 / sqrt(sum_all(squares, lane) / f32(p.k_cols) + p.eps);
    for (var i = lane; i < p.k_cols; i += {{ROW}}u) { k_x[i] *= factor * norm[p.at_norm + i]; }
    workgroupBarrier();
    let first = p.k_cols - 2u * p.n_pairs;
    for (var j = lane; j < p.n_pairs; j += {{ROW}}u) {
        let one = first + j * p.pair_step;
        let other = one + p.pair_other;
        let pair = rotated(k_x[one], k_x[other], f32(known.y - p.ratio) * freqs[p.at_freqs + j], 1.0);
        k_x[one] = pair.x;
        k_x[other] = pair.y;
    }
    workgroupBarrier();
    for (var i = lane; i < p.k_stores; i += {{ROW}}u) { k_store(0u, i, p.at_k_cache + known.z * p.k_words); }
}
