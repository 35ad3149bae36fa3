// Keys of blocks of positions (op::PoolKeys): the weighted means of the keys of their positions, for the
// tokens at the last position of a block; zeros for the others. An invocation computes eight columns.

@group(0) @binding(0) var<storage, read> k_data: {{k_type}};
@group(0) @binding(1) var<storage, read> ape: array<f32>;
@group(0) @binding(2) var<storage, read> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

struct Params {
    at_k: u32,
    at_ape: u32,
    at_batch: u32,
    at_y: u32,
    max_tokens: u32,
    max_seqs: u32,
    max_blocks: u32,
    n_rows: u32,
    d: u32,
    pool: u32,
    k_words: u32,
    has_ape: u32,
}
var<immediate> p: Params;

struct Eight { lo: vec4<f32>, hi: vec4<f32> }

{{include flat}}
{{include k}}

fn cache_row(seq: u32, pos: u32) -> u32 {
    let tables = p.at_batch + 4u + 5u * p.max_tokens + p.max_seqs;
    return batch[tables + seq * p.max_blocks + pos / 32u] * 32u + pos % 32u;
}

// The gates of eight columns, from `i` on, of position `j` of a block; `row` is its cached row.
fn gates(row: u32, j: u32, i: u32) -> Eight {
    if (p.has_ape == 0u) { return Eight(vec4<f32>(0.0), vec4<f32>(0.0)); }
    var own = k_eight(row, p.d, i, p.d);
    let more = p.at_ape + j * p.d + i;
    for (var c = 0u; c < 4u; c++) {
        if (i + c < p.d) { own.lo[c] += ape[more + c]; }
        if (i + 4u + c < p.d) { own.hi[c] += ape[more + 4u + c]; }
    }
    return own;
}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n_eights = (p.d + 7u) / 8u;
    let at = flat_index(id, groups);
    let t = at / n_eights;
    if (t >= min(batch[p.at_batch], p.n_rows)) { return; }
    let i = 8u * (at % n_eights);
    let seq = batch[p.at_batch + 4u + p.max_tokens + t];
    let end = batch[p.at_batch + 4u + 2u * p.max_tokens + t] + 1u;
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    if (end % p.pool == 0u) {
        var most = gates(p.at_k + cache_row(seq, end - p.pool) * p.k_words, 0u, i);
        for (var j = 1u; j < p.pool; j++) {
            let own = gates(p.at_k + cache_row(seq, end - p.pool + j) * p.k_words, j, i);
            most = Eight(max(most.lo, own.lo), max(most.hi, own.hi));
        }
        var total = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
        for (var j = 0u; j < p.pool; j++) {
            let row = p.at_k + cache_row(seq, end - p.pool + j) * p.k_words;
            let gate = gates(row, j, i);
            let weight = Eight(exp(gate.lo - most.lo), exp(gate.hi - most.hi));
            let key = k_eight(row, 0u, i, p.d);
            low += weight.lo * key.lo;
            high += weight.hi * key.hi;
            total = Eight(total.lo + weight.lo, total.hi + weight.hi);
        }
        low /= total.lo;
        high /= total.hi;
    }
    let to = p.at_y + t * p.d + i;
    for (var c = 0u; c < 4u; c++) {
        if (i + c < p.d) { y[to + c] = low[c]; }
        if (i + 4u + c < p.d) { y[to + 4u + c] = high[c]; }
    }
}
