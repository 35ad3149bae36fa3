// Rotates queries and keys, and writes keys and values to their cache rows: two `rope` dispatches and
// a `store_kv` dispatch in one. A workgroup per head of a token: query heads first, then key heads
// with their value heads.

@group(0) @binding(0) var<storage, read> freqs: array<f32>;
@group(0) @binding(1) var<storage, read> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> q_x: array<f32>;
@group(0) @binding(3) var<storage, read_write> k_x: array<f32>;
@group(0) @binding(4) var<storage, read> v_x: array<f32>;
@group(0) @binding(5) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(6) var<storage, read_write> v_cache: array<u32>;

struct Params {
    at_freqs: u32,
    at_batch: u32,
    at_q_x: u32,
    at_k_x: u32,
    at_v_x: u32,
    at_k_cache: u32,
    at_v_cache: u32,
    max_tokens: u32,
    n_rows: u32,
    n_head: u32,
    n_head_kv: u32,
    d_head: u32,
    first: u32,
    n_pairs: u32,
    // As in `rope.wgsl`.
    pair_step: u32,
    pair_other: u32,
    k_cols: u32,
    v_cols: u32,
    // Invocations that store a key head, and a value head.
    k_stores: u32,
    v_stores: u32,
    k_words: u32,
    v_words: u32,
    cache_rows: u32,
    scale: f32,
}
var<immediate> p: Params;

{{include turn}}
{{include half}}
{{include rounded}}
{{include q}}
{{include k}}
{{include v}}

// 1 for a token of the step, its position and its cache row.
var<workgroup> facts: vec3<u32>;

@compute @workgroup_size({{ROW}})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = group.x + group.y * groups.x;
    let n_heads = p.n_head + p.n_head_kv;
    let t = at / n_heads;
    let head = at % n_heads;
    if (lane == 0u) {
        var found = vec3<u32>(0u);
        if (t < min(batch[p.at_batch], p.n_rows)) {
            let of_token = p.at_batch + 4u + t;
            found = vec3<u32>(1u, batch[of_token + 2u * p.max_tokens], batch[of_token + 3u * p.max_tokens]);
        }
        facts = found;
    }
    let known = workgroupUniformLoad(&facts);
    if (known.x == 0u) {
        return;
    }
    if (head < p.n_head) {
        let from_q = p.at_q_x + (t * p.n_head + head) * p.d_head + p.first;
        for (var j = lane; j < p.n_pairs; j += {{ROW}}u) { q_rotate(from_q, j, known.y); }
        return;
    }
    let g = head - p.n_head;
    let from_k = p.at_k_x + (t * p.n_head_kv + g) * p.d_head + p.first;
    for (var j = lane; j < p.n_pairs; j += {{ROW}}u) { k_rotate(from_k, j, known.y); }
    storageBarrier();
    if (known.z >= p.cache_rows) {
        return;
    }
    for (var i = lane; i < p.k_stores; i += {{ROW}}u) { k_store_token(t, g * p.k_stores + i, known.z); }
    for (var i = lane; i < p.v_stores; i += {{ROW}}u) { v_store_token(t, g * p.v_stores + i, known.z); }
}
