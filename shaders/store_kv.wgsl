// Writes keys and values of the real tokens to their cache rows; an invocation writes whole words of
// one of them.

@group(0) @binding(0) var<storage, read> k_x: array<f32>;
@group(0) @binding(1) var<storage, read> v_x: array<f32>;
@group(0) @binding(2) var<storage, read> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> k_cache: array<u32>;
@group(0) @binding(4) var<storage, read_write> v_cache: array<u32>;

struct Params {
    at_k_x: u32,
    at_v_x: u32,
    at_batch: u32,
    at_k_cache: u32,
    at_v_cache: u32,
    max_tokens: u32,
    n_rows: u32,
    k_cols: u32,
    v_cols: u32,
    // Invocations that store the keys of a token, and its values.
    k_stores: u32,
    v_stores: u32,
    k_words: u32,
    v_words: u32,
    cache_rows: u32,
}
var<immediate> p: Params;

{{include flat}}
{{include half}}
{{include rounded}}
{{include k}}
{{include v}}

@compute @workgroup_size({{FLAT}})
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let at = flat_index(id, groups);
    let n_stores = p.k_stores + p.v_stores;
    let t = at / n_stores;
    if (t >= min(batch[p.at_batch], p.n_rows)) {
        return;
    }
    let row = batch[p.at_batch + 4u + 3u * p.max_tokens + t];
    if (row >= p.cache_rows) {
        return;
    }
    let i = at % n_stores;
    if (i < p.k_stores) {
        k_store_token(t, i, row);
    } else {
        v_store_token(t, i - p.k_stores, row);
    }
}
